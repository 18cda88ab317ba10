"""The requests and answers of the administration: they check requests, and make the schemas of the OpenAPI
document.

A request with an unknown field is refused, so that a misspelt setting is not mistaken for one that was left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from tidegate.broker import BackupState, Claim
from tidegate.model.hub_settings import HUB_SETTINGS, PARTITION_COUNT_DEFAULT, HubSetting
from tidegate.model.limits import PARTITIONS_MAX, Tier


class Shape(Struct, forbid_unknown_fields=True):
    """An object. A field that may be left out of a request is ``UNSET`` then, or None."""

    def given(self) -> dict[str, object]:
        """The fields that are set, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


def _says(description: str) -> Meta:
    return Meta(description=description)


def _shape(name: str, required: Mapping[str, Any], optional: Mapping[str, Any]) -> type[Shape]:
    """A shape whose fields are declared elsewhere: their types by name."""
    unset = [(each, kind | UnsetType, UNSET) for each, kind in optional.items()]
    made = defstruct(name, [*required.items(), *unset], bases=(Shape,))
    assert issubclass(made, Shape)
    return made


REFERENCE: Final = "#/components/schemas/"


_POLICIES_USED: Final = (
    "The policy whose key was used (`a, b`: several); empty: the service, or no valid key."
)


class AuditRecord(Shape):
    time: Annotated[str, _says("The time: UTC, in ISO 8601.")]
    action: Annotated[str, _says("What was done.")]
    target: Annotated[str, _says("The target: HUB, HUB/policies/NAME; empty: the namespace.")]
    policy: Annotated[str, _says(_POLICIES_USED)]
    scope: Annotated[str, _says("The event hub of that policy; empty: the namespace.")]
    address: Annotated[str, _says("The client's address; empty if unknown.")]
    door: Annotated[str, _says("amqp, http, console, or service.")]
    old: Annotated[str | None, _says("The values before, as JSON; null if there were none.")]
    new: Annotated[str | None, _says("The values now, as JSON; null if there are none.")]
    hub: Annotated[
        str,
        _says(
            "The event hub that the policy or its token was for; $blob: a signature for the namespace's "
            "storage account; empty: the namespace."
        ),
    ]


_BEFORE: Final = "Null: made before the service was last started."


class Backup(Shape):
    name: Annotated[str, _says("Its name.")]
    place: Annotated[str, _says("Where it is on the service's machine: a data directory to start from.")]
    state: Annotated[BackupState, _says("Nothing is left of one that failed.")]
    partition_count: Annotated[int | None, _says(f"Partitions in it. {_BEFORE}")]
    event_count: Annotated[int | None, _says(f"Events in it. {_BEFORE}")]
    bytes_total: Annotated[int | None, _says(f"Bytes of segments in it. {_BEFORE}")]
    bytes_copied: Annotated[int | None, _says(f"How many of them are there. {_BEFORE}")]
    failure: Annotated[str | None, _says("Why it failed; null: it did not.")]


class Consumer(Shape):
    consumer_group: Annotated[str, _says("The consumer group, in lower case.")]
    store: Annotated[str, _says("ACCOUNT/CONTAINER, in which its processors keep it.")]
    namespace: Annotated[str, _says("The host name by which its processors reach the service.")]
    partition_id: Annotated[str, _says("The partition.")]
    owner: Annotated[str, _says("The processor that has claimed it last; empty: none.")]
    renewed_at: Annotated[str | None, _says("When: UTC, in ISO 8601; null: never.")]
    lease_age_ms: Annotated[int | None, _says("Milliseconds since then.")]
    sequence_number: Annotated[int | None, _says("Of the last processed event; null: no checkpoint.")]
    checkpoint_at: Annotated[str | None, _says("When the checkpoint was written.")]
    lag_events: Annotated[int | None, _says("Events still to be read; null: it is of another log.")]
    lost_events: Annotated[int | None, _says("Events that retention removed before they were read.")]


class ConsumerPartition(Shape):
    partition_id: Annotated[str, _says("The partition.")]
    sequence_number: Annotated[
        Annotated[int, Meta(ge=-1, lt=10**18)] | None,  # as in a checkpoint of official processors
        _says("Of the last processed event; -1: none was; null: none is known."),
    ] = None


class ConsumerReport(Shape):
    owner: Annotated[str, _says("What the processor calls itself.")]
    partitions: Annotated[
        list[ConsumerPartition], Meta(max_length=PARTITIONS_MAX), _says("What it owns.")
    ] = []
    released: Annotated[
        list[str],
        Meta(max_length=PARTITIONS_MAX),
        _says("Ids of partitions that it owns no longer; a number in partitions is then its last one."),
    ] = []


class Named(Shape):
    name: Annotated[str, _says("Its name.")]


class Namespace(Shape):
    tier: Annotated[Tier, _says("The tier of Event Hubs whose limits apply.")]
    event_bytes_max: Annotated[int, _says("Largest event or batch that the tier allows, in bytes.")]
    partitions_max: Annotated[int, _says("Partitions per event hub that the tier allows.")]
    consumer_groups_max: Annotated[
        int, _says("Consumer groups per hub beside $Default that the tier allows.")
    ]
    retention_hours_max: Annotated[int, _says("Hours of retention that the tier allows.")]
    can_add_partitions: Annotated[bool, _says("Whether the tier can add partitions to an event hub.")]
    throughput_units: Annotated[int | None, _says("Throughput units; null means no limit.")]
    throttled_requests: Annotated[int, _says("Batches refused for the units since the service started.")]
    throttled_events: Annotated[int, _says("Events in them.")]
    throttled_bytes: Annotated[int, _says("Bytes in them.")]
    delayed_deliveries: Annotated[int, _says("How often a receiver waited because of the units.")]


class NamespaceUpdate(Shape):
    tier: Annotated[Tier | UnsetType, _says("The tier whose limits apply from now on.")] = UNSET
    throughput_units: Annotated[int | UnsetType | None, _says("1 or more; null means no limit.")] = UNSET


class Statistics(Shape):
    incoming_events: Annotated[int, _says("Events stored.")]
    incoming_bytes: Annotated[int, _says("Bytes stored.")]
    outgoing_events: Annotated[int, _says("Events delivered.")]
    outgoing_bytes: Annotated[int, _says("Bytes delivered.")]
    incoming_requests: Annotated[int, _says("Batches sent, including refused ones.")]
    throttled_requests: Annotated[int, _says("Batches refused for the throughput units.")]
    stored_bytes: Annotated[int, _says("Bytes that its files take now.")]


_CAPTURE_OPTIONS: Final[Mapping[str, Any]] = {
    "is_enabled": Annotated[bool, _says("False pauses; enabled again, it continues where it stopped.")],
    "size_window_bytes": Annotated[
        int, _says("Bytes of events, as stored and 150 more for each, after which a file is closed.")
    ],
    "time_window_s": Annotated[int, _says("Seconds after which a file is closed.")],
    "is_empty_skipped": Annotated[bool, _says("Whether a window without events leaves no file.")],
    "name_format": Annotated[
        str, _says("The names of files; contains each of Event Hubs' fields in braces.")
    ],
}
_DESTINATION: Final[Mapping[str, Any]] = {
    "destination": Annotated[str, _says("A directory of the service's machine, or a URL that fsspec knows.")]
}
Capture: Final = _shape("Capture", {**_DESTINATION, **_CAPTURE_OPTIONS}, {})
CaptureSettings: Final = _shape("CaptureSettings", _DESTINATION, _CAPTURE_OPTIONS)


class CaptureStatistics(Shape):
    captured_files: Annotated[
        int, _says("Files finished since the service started, or the settings changed.")
    ]
    captured_events: Annotated[int, _says("Events in them.")]
    captured_bytes: Annotated[int, _says("Bytes of these events, as stored.")]
    backlog_events: Annotated[int, _says("Events in the log that are not in a finished file yet.")]
    backlog_bytes: Annotated[int, _says("Their bytes, as far as Capture has counted.")]
    missing_events: Annotated[int, _says("Events that retention removed before they were captured.")]
    is_failing: Annotated[bool, _says("Whether Capture cannot continue.")]
    last_error: Annotated[str, _says("The current or last error; empty if there was none.")]


def _setting(setting: HubSetting) -> Any:
    """The type of a setting in a description."""
    if setting.is_nullable:
        return Annotated[setting.kind | None, _says(f"{setting.sentence}; null is {setting.default}.")]
    return Annotated[setting.kind, _says(f"{setting.sentence}.")]


def _change(setting: HubSetting) -> Any:
    """The type of a setting in a request."""
    words = f"{setting.sentence}; null is" if setting.is_nullable else "Null is"
    return Annotated[setting.kind | None, _says(f"{words} {setting.default}.")]


_CHANGES: Final = {setting.name: _change(setting) for setting in HUB_SETTINGS}
_COUNT: Final = f"{PARTITION_COUNT_DEFAULT} if omitted; it can only grow later."
_MORE: Final = (
    "Now or more: adds partitions, if the tier can. Keys then map to other partitions. More requires a "
    "policy of the namespace."
)

EventHub: Final = _shape(
    "EventHub",
    {
        "name": Annotated[str, _says("As its creator spelled it; case-insensitive.")],
        "created_at": Annotated[str, _says("When it was created: ISO 8601, UTC.")],
        "partition_ids": Annotated[list[str], _says('"0", "1", … in order.')],
        "namespace_id": Annotated[str, _says("Of the namespace, the same by whatever name it is reached.")],
        **{setting.name: _setting(setting) for setting in HUB_SETTINGS},
        "consumer_groups": Annotated[list[str], _says("Their names, $Default first.")],
        "capture": Annotated[Capture | None, _says("Null: not captured.")],
    },
    {},
)
EventHubCreation: Final = _shape(
    "EventHubCreation",
    {"name": Annotated[str, _says("Letters, digits, '.', '-' and '_'.")]},
    {"partition_count": Annotated[int, _says(_COUNT)], **_CHANGES},
)
EventHubUpdate: Final = _shape(
    "EventHubUpdate",
    {},
    {
        "partition_count": Annotated[int, _says(_MORE)],
        **_CHANGES,
    },
)


class History(Shape):
    history_id: Annotated[str, _says("Random: of one start of the service, or one repair.")]
    first_sequence_number: Annotated[int, _says("It lasts until the next history begins.")]


class Partition(Shape):
    partition_id: Annotated[str, _says('"0", "1", …')]
    begin_sequence_number: Annotated[
        int, _says("Of the first event in the log, or of the next event if it is empty.")
    ]
    last_enqueued_sequence_number: Annotated[int, _says("-1 if there never was an event.")]
    last_enqueued_offset: Annotated[str, _says('"-1" if there never was an event.')]
    last_enqueued_time: Annotated[str | None, _says("ISO 8601, UTC; null if there never was an event.")]
    is_empty: Annotated[bool, _says("Whether the log has no events.")]
    histories: Annotated[list[History], _says("In order; at most the last 100.")]


_KEY: Final = "Shown only with a Manage claim."


class Policy(Shape):
    name: Annotated[str, _says("Its name; case-sensitive.")]
    claims: Annotated[list[Claim], _says("The rights that its keys give.")]
    primary_key: Annotated[str | UnsetType, _says(_KEY)] = UNSET
    secondary_key: Annotated[str | UnsetType, _says(f"Equivalent to the primary key. {_KEY}")] = UNSET


_MADE: Final = _says("Generated if omitted or null.")


class PolicyCreation(Shape):
    name: Annotated[str, _says("Letters, digits, '.', '-' and '_'.")]
    claims: Annotated[list[Claim], _says("At least one; Manage includes the others.")]
    primary_key: Annotated[str | None, _MADE] = None
    secondary_key: Annotated[str | None, _MADE] = None


class KeyRegeneration(Shape):
    is_secondary: Annotated[bool, _says("Which key; by default the primary key.")] = False
    key: Annotated[str | None, _MADE] = None


DEAD_LETTERS_PER_REQUEST_MAX: Final = 100
"""Of one request that adds them, and of a page (our choice: each reads an event, up to 100 MB together)."""
_CHOSEN_MAX: Final = 1_000
_NUMBER_MAX: Final = 2**63 - 1


class DeadLetterStatus(StrEnum):
    """As the database has them, and any."""

    OPEN = "open"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"
    ALL = "all"


_SequenceNumber = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]


class EventPointer(Shape):
    partition_id: Annotated[str, _says("The event's partition.")]
    sequence_number: Annotated[_SequenceNumber, _says("Its sequence number there.")]


class NewDeadLetter(EventPointer):
    reason: Annotated[str, Meta(min_length=1), _says("Why it failed; 2,000 characters are kept.")]
    error_type: Annotated[str, _says("Such as the exception's class; 2,000 characters are kept.")] = ""
    traceback: Annotated[str, _says("The last 16,000 characters are kept.")] = ""


class DeadLetterAddition(Shape):
    dead_letters: Annotated[
        list[NewDeadLetter],
        Meta(min_length=1, max_length=DEAD_LETTERS_PER_REQUEST_MAX),
        _says(f"1 to {DEAD_LETTERS_PER_REQUEST_MAX} failed events."),
    ]


class AddedDeadLetters(Shape):
    added: Annotated[int, _says("How many were written, or reopened with one more attempt.")]
    already_open: Annotated[int, _says("How many were open already; these stay as they are.")]
    missing: Annotated[list[EventPointer], _says("Events that the log does not have: nothing is kept.")]


_FILTER_CHARACTERS_MAX: Final = 2_000
"""As reasons are stored; databases refuse to search for text that is much longer."""
_Filter = Annotated[str, Meta(max_length=_FILTER_CHARACTERS_MAX)] | None
_REASON: Final = _says("Only with this part of the reason, ignoring case (ASCII letters).")
_ERROR_TYPE: Final = _says("Only of this error type.")
_OF_PARTITION: Final = _says("Only of this partition.")


class DeadLetterQuery(Shape):
    status: Annotated[DeadLetterStatus, _says("Open ones by default.")] = DeadLetterStatus.OPEN
    partition_id: Annotated[_Filter, _OF_PARTITION] = None
    reason: Annotated[_Filter, _REASON] = None
    error_type: Annotated[_Filter, _ERROR_TYPE] = None
    after: Annotated[str | None, _says("The previous page's `next`.")] = None
    limit: Annotated[
        int,
        Meta(ge=1, le=DEAD_LETTERS_PER_REQUEST_MAX),
        _says(f"Dead letters on the page, 1 to {DEAD_LETTERS_PER_REQUEST_MAX}."),
    ] = 50


class DeadLetter(EventPointer):
    status: Annotated[str, _says("open, redriven or discarded.")]
    attempts: Annotated[int, _says("How often it failed.")]
    last_failed_at: Annotated[str, _says("ISO 8601, UTC.")]
    error_type: Annotated[str, _says("As given when it was added.")]
    reason: Annotated[str, _says("As given when it was added.")]
    partition_key: Annotated[str | None, _says("The event's, if a pipeline or host wrote it; null: none.")]
    pipeline: Annotated[
        str, _says("The Tidegate pipeline that wrote it, whose redrive runs it; empty: none.")
    ]


class DeadLetterPage(Shape):
    dead_letters: Annotated[list[DeadLetter], _says("The latest failure first.")]
    next: Annotated[str | None, _says("Of the next page, for `after`; null: there is none.")]


class DeadLetterChoice(Shape):
    partition_id: Annotated[_Filter, _OF_PARTITION] = None
    sequence_numbers: Annotated[
        Annotated[list[_SequenceNumber], Meta(max_length=_CHOSEN_MAX)] | None,
        _says(f"Only these, up to {_CHOSEN_MAX:,}; needs a partition."),
    ] = None
    reason: Annotated[_Filter, _REASON] = None
    error_type: Annotated[_Filter, _ERROR_TYPE] = None


class DeadLetterRedrive(DeadLetterChoice):
    maximum: Annotated[
        Annotated[int, Meta(ge=1, le=_NUMBER_MAX)] | None, _says("At most so many; null: all.")
    ] = None


class DeadLetterDiscard(DeadLetterChoice, kw_only=True):
    because: Annotated[str, Meta(min_length=1), _says("Why, for their history.")]


class ClosedDeadLetters(Shape):
    closed: Annotated[int, _says("How many were redriven, or discarded.")]
    is_complete: Annotated[bool, _says("False: time or `maximum` ended it before the last; repeat it.")]


class ErrorDetail(Shape):
    status: Annotated[int, _says("The HTTP status.")]
    condition: Annotated[str, _says("The AMQP condition with the same meaning; one per kind of error.")]
    message: Annotated[str, _says("A sentence, and what to do next.")]


class Error(Shape):
    error: Annotated[ErrorDetail, _says("What is wrong.")]


def schemas() -> dict[str, Any]:
    """The JSON Schema of each shape, by name, in the order above (2020-12, as OpenAPI 3.1 has it)."""
    return {name: schema for found in each_schema() for name, schema in found.items()}


def each_schema() -> Iterator[dict[str, Any]]:
    """The same in parts of some milliseconds: of each shape and of those within it."""
    for shape in _shapes(Shape):
        _, found = msgspec.json.schema_components([shape], ref_template=f"{REFERENCE}{{name}}")
        for kind in (Tier, Claim, BackupState, DeadLetterStatus):  # msgspec sorts their values
            if kind.__name__ in found:
                found[kind.__name__]["enum"] = [each.value for each in kind]
        yield found


def _shapes(of: type[Shape]) -> Iterator[type[Shape]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _shapes(kind)
