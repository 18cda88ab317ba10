"""Every feature of Event Hubs, whether it is here, and the tests that show it.

``python -m tests.compatibility docs/reference`` (part of `make docs`) makes compatibility.md of this table;
tests/test_compatibility.py holds that every named test exists and that the page is up to date. So a row
promises nothing that no test shows: a feature without a test is left out, with its reason.

The rows are issue 3's list, and what Azure has besides.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from tests.interop.suites.results import read_results, table

PAGE: Final = "compatibility.md"


class Status(Enum):
    """What became of a feature."""

    DONE = "done"
    DIFFERENT = "different"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the page; build it with ``done``, ``different`` or ``left_out``."""

    name: str
    status: Status
    why: str
    """For what is done: what to know, often empty. Else: what differs, or is missing, and why."""
    tests: tuple[str, ...]
    """Node ids without parameters, beneath ``tests/``."""


def done(name: str, *tests: str, note: str = "") -> Feature:
    """It works as in Event Hubs."""
    return Feature(name, Status.DONE, note, tests)


def different(name: str, why: str, *tests: str) -> Feature:
    """It is here, and not quite as in Event Hubs."""
    return Feature(name, Status.DIFFERENT, why, tests)


def left_out(name: str, why: str) -> Feature:
    """It is not here."""
    return Feature(name, Status.LEFT_OUT, why, ())


PUBLISHING: Final = (
    done(
        "AMQP 1.0 over TCP, TLS and WebSocket",
        "interop/test_sdk_sync.py::test_send_and_receive",
        "interop/test_sdk_async.py::test_send_and_receive",
        "interop/test_sdk_javascript.py::test_send_and_receive",
        "interop/test_sdk_go.py::test_events_arrive_as_they_were_sent",
        "interop/test_sdk_java.py::test_events_arrive_as_they_were_sent",
        "server/test_websocket.py::test_handshake",
        "client/test_websocket.py::test_events_travel_in_a_websocket",
        note="TCP without TLS is for `UseDevelopmentEmulator=true`.",
    ),
    done(
        "HTTPS: one event, batches, to a hub, to a partition, as a publisher",
        "server/test_http.py::test_publish_one_event",
        "server/test_http.py::test_publish_a_batch_to_a_partition",
        "server/test_http.py::test_publish_as_a_publisher",
    ),
    done(
        "An event or batch over the limit is refused",
        "interop/test_publishing.py::test_event_over_the_limit",
        "interop/test_sdk_sync.py::test_event_over_the_limit_is_refused_and_the_producer_goes_on",
        "interop/test_sdk_javascript.py::test_refusals_are_clear",
        "gateway/test_ingress.py::test_the_hubs_own_limit",
        "server/test_http.py::test_bad_bodies_are_refused",
        note="`amqp:link:message-size-exceeded`, HTTP 413. The limit is the tier's, or the hub's own.",
    ),
    done(
        "Partition key to partition by Event Hubs' own hash",
        "interop/test_sdk_sync.py::test_partition_key_chooses_the_partition_and_is_kept",
        "interop/test_sdk_javascript.py::test_partition_key_chooses_the_partition_and_is_kept",
        "broker/test_namespace.py::test_events_go_to_the_partition_of_their_key",
        note="The Python SDK's buffered producer chooses the partition itself, by a hash of its own.",
    ),
    done(
        "Without a key events go round the partitions",
        "interop/test_sdk_sync.py::test_events_without_key_are_spread",
        "server/test_http.py::test_events_without_a_key_take_turns",
    ),
    done(
        "A key on a partition's own link or address: the partition wins, the key is kept",
        "gateway/test_ingress.py::test_key_and_partition_together",
        "server/test_http.py::test_the_partition_of_the_address_wins_over_the_key",
    ),
    done(
        "Named publishers, their tokens, and their revocation",
        "interop/test_publishing.py::test_publisher",
        "interop/test_publishing.py::test_publisher_with_another_key",
        "interop/test_publishing.py::test_publisher_revoked",
        "server/test_http.py::test_what_a_publisher_may_not",
        "server/test_http_atom.py::test_revoking_a_publisher",
    ),
    done(
        "Idempotent producers",
        "interop/test_sdk_javascript.py::test_buffered_producer",
        "gateway/test_idempotent_producers.py::test_a_lost_acknowledgement_survives_a_restart",
        "gateway/test_idempotent_producers.py::test_a_newer_instance_shuts_out_the_older",
        "gateway/test_idempotent_producers.py::test_a_gap_and_a_wrong_start_are_refused",
        note="The official Python SDK has none; ours has.",
    ),
    done(
        "Buffered producers of the SDKs",
        "interop/test_sdk_sync.py::test_buffered_producer",
        "interop/test_sdk_async.py::test_buffered_producer",
        "interop/test_sdk_javascript.py::test_buffered_producer",
        "interop/test_publishing.py::test_buffered_keys",
    ),
    different(
        "Bodies of all kinds, properties, ids, annotations and sizes arrive as they were sent",
        "An event that an official client cannot decode is delivered as a body, also one with a char or a"
        " decimal; Azure delivers it, and such clients receive nothing more.",
        "interop/test_sdk_sync.py::test_annotated_messages_round_trip",
        "interop/test_sdk_sync.py::test_properties_of_every_type_round_trip",
        "interop/test_sdk_javascript.py::test_bodies_of_every_kind_cross",
        "interop/test_sdk_javascript.py::test_sizes",
        "wire/test_delivery.py::test_nothing_of_the_producers_message_changes",
        "interop/test_undecodable_events.py::test_python",
        "interop/test_undecodable_events.py::test_javascript",
        "interop/test_undecodable_events.py::test_go",
        "interop/test_undecodable_events.py::test_java",
    ),
    different(
        "When an event is acknowledged",
        "Once it is on this machine's disk, synced; Azure answers once several replicas have it.",
        "interop/test_kill.py::test_acknowledged_events_survive_sigkill",
        "storage/test_power_loss.py::test_acknowledged_events_survive_power_losses",
    ),
)

READING: Final = (
    done(
        "Consumer groups: `$Default` always; create, list, delete; limits by tier",
        "cli/test_hub_commands.py::test_consumer_groups",
        "broker/test_namespace.py::test_consumer_groups_have_receivers_of_their_own",
        "broker/test_settings.py::test_the_tier_decides_the_limits",
        "interop/test_sdk_sync.py::test_consumer_group_names_ignore_case",
    ),
    done(
        "Reading from an offset, a sequence number, a time, the earliest and the latest",
        "interop/test_sdk_sync.py::test_receive_from_sequence_number",
        "interop/test_sdk_sync.py::test_receive_from_offset",
        "interop/test_sdk_sync.py::test_receive_from_enqueued_time",
        "interop/test_sdk_sync.py::test_receive_from_latest",
        "interop/test_sdk_javascript.py::test_receive_from_position",
        "interop/test_sdk_go.py::test_positions",
        "interop/test_sdk_java.py::test_positions",
    ),
    different(
        "Offsets",
        "The sequence number as text; Azure's are sparse numbers. Clients must take both as opaque.",
        "gateway/test_egress.py::test_events_come_with_sequence_number_and_offset",
    ),
    done(
        "A position beyond the end is an error",
        "interop/test_sdk_sync.py::test_position_beyond_the_end_is_refused",
    ),
    done(
        "Five readers without epoch per partition and group, and no sixth",
        "interop/test_epochs.py::test_the_sixth_reader",
        "broker/test_receivers.py::test_the_epoch_table",
    ),
    done(
        "Epochs (owner levels): every rule",
        "gateway/test_epochs.py::test_every_ordered_pair",
        "interop/test_sdk_sync.py::test_higher_owner_level_steals",
        "interop/test_sdk_sync.py::test_lower_owner_level_and_none_are_refused",
        "interop/test_epochs.py::test_the_group_is_open_again_when_the_owner_has_gone",
        "interop/test_sdk_javascript.py::test_higher_owner_level_steals",
        "interop/test_sdk_go.py::test_owner_levels",
        "interop/test_sdk_java.py::test_owner_levels",
    ),
    done(
        "Position filters of generic AMQP clients",
        "wire/test_selector.py::test_every_clients_form_is_understood",
        "wire/test_selector.py::test_and_joins_comparisons",
        "gateway/test_egress.py::test_only_filters_in_force_are_in_the_answer",
        note="By offset, sequence number or enqueued time, with `>`, `>=` or `=`, joined by `AND`; either "
        "quotes or none, any case, and the old `x-opt-enqueuedtimeutc`; at most 8 comparisons. Other "
        "filters are ignored, and not in the answer.",
    ),
    done(
        "Unsettled deliveries, for receivers that ask for them (snd-settle-mode unsettled)",
        "gateway/test_egress.py::test_who_asks_for_unsettled_deliveries_decides_about_them",
        "gateway/test_egress.py::test_others_get_settled_deliveries",
        note="Whatever the receiver decides, nothing is sent again. Mixed mode, the default of Qpid Proton "
        "and rhea, gets settled deliveries: Proton's `receiver.accept()` takes `options=AtLeastOnce()`.",
    ),
    done(
        "Requests to `$management` and `$cbs` with a dynamic reply-to, or without a message-id",
        "gateway/test_requests.py::test_an_address_that_the_service_makes_up",
        note="As Qpid Proton's `SyncRequestResponse` sends them. Dynamic addresses are for responses alone.",
    ),
    done(
        "A second link of the same name in a session steals the first",
        "amqp/test_stealing.py::test_the_older_link_ends_and_the_newer_is_attached",
        "gateway/test_epochs.py::test_a_stolen_link_frees_its_place_at_once",
        note="Names of different sessions and connections do not meet.",
    ),
    done(
        "Clients with small frames (max-frame-size from 512)",
        "amqp/test_fitting.py::test_no_frame_is_larger_than_the_peer_takes",
        "amqp/test_fitting.py::test_a_peer_with_frames_below_the_minimum_is_closed",
        note="Long link properties are not repeated to them, and error texts are cut short.",
    ),
    done(
        "Runtime metrics with each delivery, where asked for",
        "interop/test_sdk_sync.py::test_last_enqueued_event_properties",
        "interop/test_sdk_javascript.py::test_last_enqueued_event_properties",
        "gateway/test_egress.py::test_runtime_metrics_only_where_asked",
    ),
    done(
        "Properties of hubs and partitions",
        "interop/test_sdk_sync.py::test_hub_and_partition_properties",
        "interop/test_sdk_javascript.py::test_hub_and_partition_properties",
        "interop/test_sdk_go.py::test_properties",
    ),
    done(
        "The SDKs' event processors with their checkpoints in Blob Storage",
        "interop/test_processor_sharing.py::test_both_sides_share_the_partitions",
        "interop/test_processor_sharing.py::test_each_side_goes_on_from_the_others_checkpoints",
        "interop/test_sdk_javascript.py::test_processor_with_checkpoints",
        "interop/test_sdk_go.py::test_processors_with_checkpoints",
        "interop/test_sdk_java.py::test_processors_with_checkpoints",
        note="Ours can share a consumer group with them.",
    ),
    different(
        "Dead letters of consumers in any SDK",
        "Event Hubs has none. Over HTTP: a pointer and a reason, before the checkpoint; the event is copied.",
        "interop/test_dead_letters.py::test_with_the_javascript_sdk",
        "interop/test_dead_letters.py::test_with_the_java_sdk",
        "server/test_http_dead_letters.py::test_what_is_added_is_listed_once",
        "server/test_http_dead_letters.py::test_rights",
    ),
    done(
        "Many partitions and idle consumers",
        "interop/test_sdk_partitions.py::test_thirty_two_partitions",
        "interop/test_sdk_sync.py::test_idle_consumer_stays_connected",
        "server/test_idle_memory.py::test_idle_connections",
    ),
)

KEEPING: Final = (
    different(
        "Retention by time",
        "By size, too. An event goes at most a tenth of the time late.",
        "broker/test_retention.py::test_an_event_goes_within_a_tenth_of_its_hours",
        "broker/test_settings.py::test_retention_by_time_can_be_changed",
        "broker/test_settings.py::test_retention_by_size_can_be_set_later",
        "storage/test_partition_log.py::test_retention_removes_whole_old_segments",
    ),
    done(
        "A reader that has fallen behind goes on with the first event that is held, or is told which that is",
        "interop/test_retention.py::test_an_overtaken_reader_goes_on_with_the_first_event_held",
        "interop/test_retention.py::test_an_overtaken_reader_can_be_told",
        "interop/test_retention.py::test_a_reader_that_is_overtaken_while_it_reads_is_told",
        note="The setting `is_lost_position_refused` makes it an error for every SDK; Tidegate's own readers "
        "are always told.",
    ),
    done(
        "A hub is deleted and created again under connected clients",
        "interop/test_hub_recreated.py::test_pythons_producers",
        "interop/test_hub_recreated.py::test_pythons_buffered_producer",
        "interop/test_hub_recreated.py::test_pythons_asyncio_producer",
        "interop/test_hub_recreated.py::test_pythons_consumer",
        "gateway/test_ingress.py::test_a_hub_is_deleted_and_created_again",
        "gateway/test_egress.py::test_receivers_of_a_deleted_hub",
        note="`amqp:not-found` in between. Readers that resume at a position of the deleted hub skip the "
        "new one's events up to it, as their SDKs ask for that position.",
    ),
    done(
        "Partitions are added to a hub in the tiers Premium and Dedicated, within the tier's range",
        "broker/test_settings.py::test_partitions_are_added",
        "broker/test_settings.py::test_a_partition_count_that_cannot_be",
        "interop/test_sdk_partitions.py::test_added_partitions",
        "broker/test_namespace.py::test_limits_of_a_hub",
        "broker/test_settings.py::test_the_tier_decides_the_limits",
        note="Azure ends the links of clients when it adds partitions; here they go on.",
    ),
    done(
        "Hubs, groups, policies, revocations, producers' numbers and the log survive a restart",
        "broker/test_namespace.py::test_everything_is_there_after_a_restart",
        "broker/test_settings.py::test_settings_survive_a_restart",
        "broker/test_policies.py::test_policies_survive_a_restart",
        "broker/test_producers.py::test_epochs_and_counts_survive_a_restart",
        "broker/test_power_loss.py::test_changes_are_whole_and_kept_over_a_power_loss",
    ),
    left_out(
        "Log compaction",
        "Keeping the last event of each key serves tables; here tables are in SQL, written exactly once.",
    ),
)

LETTING_IN: Final = (
    done(
        "SAS policies of the namespace and of hubs, with Send, Listen and Manage",
        "broker/test_policies.py::test_claims_of_a_new_policy",
        "broker/test_policies.py::test_a_hubs_policy_is_good_for_its_hub_only",
        "cli/test_administration_commands.py::test_a_policys_life",
    ),
    done(
        "Tokens over CBS, in the HTTP header, and SASL PLAIN",
        "broker/test_authorization.py::test_a_token_of_the_official_sdk_is_accepted",
        "gateway/test_requests.py::test_plain_takes_a_policy",
        "server/test_http.py::test_who_may_not_publish",
        "interop/test_sdk_sync.py::test_wrong_key_is_an_authentication_error",
    ),
    done(
        "Expiry is enforced on open links",
        "gateway/test_requests.py::test_expired_token_ends_open_links",
        "gateway/test_requests.py::test_expiry_is_noticed_without_traffic",
    ),
    different(
        "Changing keys while clients are connected",
        "It counts at once, for open links, too; Azure lets them live until their token expires.",
        "interop/test_sdk_access.py::test_a_regenerated_key_ends_live_clients",
        "broker/test_policies.py::test_either_key_lets_in_and_each_is_regenerated_by_itself",
    ),
    done(
        "TLS with your certificate, or with one made at the first start",
        "server/test_app.py::test_a_certificate_of_your_own",
        "server/test_certificates.py::test_strict_client_accepts_each_name",
        "interop/test_sdk_go.py::test_events_arrive_as_they_were_sent",
        note="Of the one made at the first start clients trust the authority, by its file.",
    ),
    done(
        "Microsoft Entra ID, managed identities, roles",
        "interop/test_entra.py::test_the_official_sdk",
        "server/test_token_issuers.py::test_discovery_and_new_keys",
        "access/test_entra.py::test_http",
        note="Roles are declared in the service's configuration. Tried with OpenID issuers on this machine, "
        "not with Azure's.",
    ),
    left_out(
        "Private Link, virtual networks, IP firewall, network security perimeters",
        "The machine's own firewall does this; the service listens on loopback unless told otherwise.",
    ),
    left_out("Customer-managed keys, encryption at rest", "An encrypted file system does this."),
)

CAPACITY: Final = (
    done(
        "Throughput units: what exceeds them is refused as server-busy, receivers are slowed",
        "broker/test_throttling.py::test_one_unit_in_numbers",
        "interop/test_publishing.py::test_throttled_producer",
        "interop/test_sdk_javascript.py::test_throttled_producer_backs_off",
        "interop/test_sdk_go.py::test_throttled_producer_backs_off",
        "interop/test_sdk_java.py::test_throttled_producer_backs_off",
        "interop/test_publishing.py::test_throttled_consumer_gets_everything",
        "server/test_http.py::test_throttled_requests_are_told_when_to_come_back",
        note="Off by default; set at run time. Who is refused waits and sends again: the SDKs for "
        "JavaScript, Go and Java do that by themselves, Python's tells its caller.",
    ),
    done(
        "Tiers with their limits",
        "broker/test_settings.py::test_the_tier_decides_the_limits",
        "broker/test_settings.py::test_a_lower_tier_leaves_what_exists",
        "cli/test_administration_commands.py::test_the_tier_is_shown_and_set",
    ),
    left_out("Auto-inflate", "Units cost nothing here: set as many as you want, or none."),
    left_out("Processing units, capacity units, dedicated clusters", "The machine is yours."),
    left_out(
        "Application groups", "Units are the namespace's. A service per application keeps applications apart."
    ),
)

CAPTURE: Final = (
    done(
        "Avro files with Event Hubs' schema and names",
        "interop/test_capture.py::test_captured_files_read_as_azures_do",
        "wire/test_capture.py::test_a_name_has_the_documented_parts",
        "wire/test_capture.py::test_an_event_keeps_everything",
    ),
    done(
        "Windows by size and time, and skipping of empty ones",
        "capture/test_window.py::test_size_closes_with_the_event_that_reaches_it",
        "capture/test_window.py::test_time_closes_before_the_first_event_beyond_it",
        "capture/test_service.py::test_empty_windows_leave_files_unless_skipped",
    ),
    different(
        "Destinations",
        "Azure Blob Storage and Data Lake as there; also a directory, and whatever fsspec names.",
        "capture/test_azure_blob.py::test_files_go_to_a_container",
        "capture/test_service.py::test_whatever_fsspec_names_is_a_destination",
    ),
    done(
        "After a crash no event is missing from the files and none is in two",
        "capture/test_crashes.py::test_any_step_may_be_the_last_one",
        "capture/test_kill.py::test_killed_while_writing_files",
    ),
    left_out(
        "Capture as Parquet or Delta Lake", "In Azure that is a job of Stream Analytics, not of Capture."
    ),
)

RUNNING: Final = (
    done(
        "Everything can be changed at run time, by command line and HTTP",
        "cli/test_administration_commands.py::test_a_hubs_settings_change_one_by_one",
        "server/test_http_admin.py::test_both_doors_lead_to_the_same",
        "server/test_http_admin.py::test_the_document_is_valid_and_served",
        note="By an API of its own, with an OpenAPI document.",
    ),
    different(
        "Administration with Atom documents (azure-servicebus 0.21, .NET's `NamespaceManager`)",
        "Event hubs, consumer groups, partitions, revoked publishers. Make policies (`AuthorizationRules`) "
        "with `tidegate policy` or `/api/v1`; an unknown entity is 404. Queues, "
        "topics, relays and Azure Resource Manager are not here. Not run here: .NET.",
        "server/test_http_atom.py::test_an_event_hubs_life",
        "server/test_http_atom.py::test_user_metadata_is_kept",
        "server/test_http_atom.py::test_a_consumer_groups_life",
        "server/test_http_atom.py::test_partitions",
        "server/test_http_atom.py::test_who_may",
    ),
    done(
        "The official emulator's Config.json",
        "server/test_config_file.py::test_the_emulators_file_is_taken_as_it_is",
        "test_docs_emulator.py::test_the_guide_works_as_it_stands",
    ),
    different(
        "Declaring what is there",
        "A TOML or JSON file at the start, for what Azure has resource templates.",
        "server/test_applying.py::test_everything_declared_is_made_once",
        "server/test_config_file.py::test_toml_and_json_say_the_same",
    ),
    different(
        "Metrics and logs",
        "For Prometheus, under Azure Monitor's names; log lines as text or JSON.",
        "server/test_metrics.py::test_numbers_are_those_of_what_happened",
        "server/test_metrics.py::test_names_follow_the_conventions",
        "server/test_log_format.py::test_each_line_is_one_json_object",
    ),
    done(
        "Idle connections are closed, those that are used stay",
        "gateway/test_idle_connections.py::test_with_links",
        "gateway/test_idle_connections.py::test_without_a_link",
    ),
    different(
        "Several namespaces",
        "A service is one namespace; run several side by side.",
        "server/test_namespaces.py::test_two_services_are_two_namespaces",
    ),
    different(
        "Health, stopping, and looking after the data",
        "`/health`, a stop that drains, and `tidegate check`, since nobody else does it for you.",
        "server/test_http.py::test_health",
        "server/test_stopping.py::test_a_stop_under_load_loses_nothing_and_leaves_nobody_hanging",
        "storage/test_check.py::test_a_repair_keeps_all_that_is_intact",
    ),
    left_out(
        "Azure Resource Manager, its SDKs and templates",
        "They administer subscriptions. The service has its own API, commands and file.",
    ),
    left_out("Diagnostic settings, Azure Monitor", "Metrics and logs go to your own tools."),
    different(
        "Data Explorer in the portal",
        "The console's explorer: events by partition, time, key and text, and sending.",
        "console/test_explorer_page.py::test_pages_of_all_partitions_lead_there_and_back",
        "console/test_explorer_events.py::test_filters_and_their_bound",
        "console/test_explorer_send_page.py::test_one_event_is_sent_by_its_form",
    ),
)

BESIDE: Final = (
    left_out(
        "Geo-disaster recovery, geo-replication, availability zones",
        "One machine, one directory: back it up. Clients that offer geo-replication work without it.",
    ),
    left_out(
        "Kafka endpoint", "Another protocol with its own clients and offsets; Kafka itself is free to run."
    ),
    left_out(
        "Schema Registry", "A service of its own beside the log; events carry whatever a registry asks for."
    ),
    left_out(
        "Azure Functions, Stream Analytics, Event Grid",
        "They run in Azure and find hubs by its resource manager. Processors, SQL and Spark are here.",
    ),
)

AREAS: Final = {
    "Publishing": PUBLISHING,
    "Reading": READING,
    "Keeping": KEEPING,
    "Letting in": LETTING_IN,
    "Capacity": CAPACITY,
    "Capture": CAPTURE,
    "Running it": RUNNING,
    "What Azure has beside the hub": BESIDE,
}
"""Heading → its rows, in the order of the page."""

SUITES: Final = (
    "Counts of `make interop`, which runs the SDKs' own live tests, unmodified, and programs of ours\n"
    "against a real service. Not run here: the SDK for .NET and Azure Functions, which need .NET.\n"
    "\n"
    "In long-runs, clients of four languages go through restarts, the deletion of their hub, throttling\n"
    "and tokens that run out. Two defaults of the SDKs are changed there, as applications should: Python's\n"
    "synchronous consumer retries for ever and reports nothing unless `retry_total=0`, and JavaScript's\n"
    "clients report an error after four tries 30 s apart unless `retryDelayInMs` is less.\n"
    "\n"
    "The Rust SDK is run on one thread. On several, and with a service on the same machine, a send may not\n"
    "return: fe2o3-amqp 0.16.2 below it misses an acknowledgement that comes before its own note.\n"
    'Use `#[tokio::main(flavor = "current_thread")]` there.'
)


def page() -> str:
    """The whole of compatibility.md."""
    lines = [
        "# Compatibility",
        "",
        "Made by `make docs`; do not edit.",
        "",
        "Every feature of Event Hubs: *done*; *different*, and how; or *left out*, and why. What is done or",
        "different is shown by the tests named beside it. Tried with the official SDKs for Python",
        "(azure-eventhub 5.15), JavaScript (@azure/event-hubs 6.0, 5.12 and 2.1), Go (azeventhubs 2.0),",
        "Java (azure-messaging-eventhubs 5.21) and Rust (azure_messaging_eventhubs 0.16), unmodified.",
    ]
    for heading, features in AREAS.items():
        lines += ["", f"## {heading}", "", "| feature | | | shown by |", "|---|---|---|---|"]
        for feature in features:
            tests = " ".join(map(_link, feature.tests))
            lines.append(f"| {feature.name} | {feature.status.value} | {feature.why} | {tests} |")
    lines += ["", "## What clients' suites say", "", SUITES, "", *table(read_results())]
    return "\n".join(lines) + "\n"


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../../tests/{path})"


if __name__ == "__main__":
    (Path(sys.argv[1]) / PAGE).write_text(page(), encoding="utf-8")
