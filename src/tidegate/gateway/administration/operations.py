"""The administration: every operation with its address, its claims, its values, and what it calls.

The rule: one table. Routes, checks and the OpenAPI document are made of it, and a handler only translates
between plain values and one call of the broker. ``$management`` carries the same rows over AMQP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import islice
from typing import Final, TypeVar, cast

from msgspec import UNSET

from tidegate.broker import (
    AuditRecord,
    Backup,
    Broker,
    Claim,
    EventHub,
    EventHubStatistics,
    Partition,
    SharedAccessPolicy,
)
from tidegate.gateway.administration import shapes
from tidegate.gateway.administration.consumers import consumer_rows
from tidegate.gateway.administration.dead_letters import DeadLetterKeeper
from tidegate.gateway.administration.partition_lists import each_partition, in_slices
from tidegate.gateway.administration.shapes import Shape
from tidegate.model.capture import CaptureSettings, CaptureStatistics
from tidegate.model.errors import NotFoundError
from tidegate.model.hub_settings import PARTITION_COUNT_DEFAULT, hub_changes_in
from tidegate.model.times import time_of
from tidegate.transport.sliced_work import SlicedWork

S = TypeVar("S", bound=Shape)

PREFIX: Final = "/api/v1"
"""Before every address of the administration. (``$admin`` would be a variable to a shell.)"""


AUDIT_RECORDS_MAX: Final = 1_000
"""Records that one answer has (our choice: some 300 KB)."""


class Needs(Enum):
    """The claims that allow an operation; any one of them is enough, except for ``REDRIVE``."""

    MANAGE = (Claim.MANAGE,)
    SEE = (Claim.MANAGE, Claim.LISTEN)
    """A Listen claim shows entities; only a Manage claim shows keys."""
    REDRIVE = (Claim.SEND, Claim.LISTEN)
    """Both: it publishes events, of what a consumer has noted."""

    @property
    def alternatives(self) -> tuple[tuple[Claim, ...], ...]:
        """Of each group, one claim is needed."""
        return tuple((claim,) for claim in self.value) if self is Needs.REDRIVE else (self.value,)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the administration, its claims checked."""

    broker: Broker
    capture_statistics: Callable[[], Mapping[str, CaptureStatistics]]
    """By the name of each hub that is captured now."""
    parameters: Mapping[str, str]
    """Of the address, by name."""
    body: Shape | None = field(repr=False)
    """Of the operation's shape, also if it is in the address's query; None: it has none."""
    is_manager: bool
    """Whether the token also has Manage here."""
    sliced_work: SlicedWork
    """For long lists."""
    encode_row: Callable[[object], object]
    """Encodes a row of a long list (``Operation.is_long_list``)."""
    dead_letters: DeadLetterKeeper | None = None
    """None: the service has no database."""

    @property
    def event_hub(self) -> EventHub:
        """The event hub of the address. Raises NotFoundError."""
        return self.broker.event_hub(self.parameters["hub"])

    @property
    def keeper(self) -> DeadLetterKeeper:
        """The dead letters. Raises NotFoundError if the service has none."""
        if self.dead_letters is None:
            raise NotFoundError(
                "This service keeps no dead letters: it has no database.",
                next_step="Set its `database` (`tidegate serve --database URL`), and start it again.",
            )
        return self.dead_letters

    @property
    def of_group(self) -> tuple[EventHub, str]:
        """Event hub and consumer group of the address. Raises NotFoundError."""
        return self.event_hub, self.event_hub.find_consumer_group(self.parameters["group"])

    @property
    def scope(self) -> str | None:
        """The event hub whose policies are meant; None: the namespace's."""
        return self.parameters.get("hub")

    @property
    def values(self) -> Mapping[str, object]:
        """The given fields of the body."""
        return self.wanted(Shape).given()

    def wanted(self, kind: type[S]) -> S:
        """The body."""
        assert isinstance(self.body, kind)
        return self.body


Handler = Callable[[Call], object]
"""Returns the plain value of the answer (None: no body), or an awaitable of it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    method: str
    path: str
    """Behind ``PREFIX``; names of parameters in braces. ``hub`` is also what the claims must be for."""
    operation_id: str
    summary: str
    needs: Needs
    handler: Handler
    request: type[Shape] | None = None
    """Of the body, or of the query of a GET; None: there is none."""
    answer: type[Shape] | None = None
    """None: the answer has a status and no body."""
    is_list: bool = False
    """Whether the answer is a list of ``answer``."""
    is_long_list: bool = False
    """Whether the answer is a list of rows that the handler has encoded, in slices."""
    status: int = 200
    is_listen_enough: bool = False
    """Whether Listen is enough over AMQP as well; everything else requires Manage there."""
    is_of_namespace: bool = False
    """True: requires a policy of the namespace, because its effect reaches beyond the event hub."""
    is_http_only: bool = False
    """True: ``$management`` does not carry it."""
    body_bytes_max: int = 65_536
    """Maximum body of a request (our choice: many times the largest valid one)."""


def _read_namespace(call: Call) -> object:
    throughput = call.broker.throughput
    return {
        "tier": call.broker.tier.value,
        **asdict(call.broker.limits),
        "throughput_units": throughput.units,
        **asdict(throughput.statistics()),
    }


async def _update_namespace(call: Call) -> object:
    wanted = call.wanted(shapes.NamespaceUpdate)
    if wanted.throughput_units is not UNSET:
        await call.broker.set_throughput_units(wanted.throughput_units)
    if wanted.tier is not UNSET:
        await call.broker.set_tier(wanted.tier)
    return _read_namespace(call)


async def _list_audit_records(call: Call) -> object:
    records = islice(call.broker.audit.each_newest_first(), AUDIT_RECORDS_MAX)
    return await in_slices((call.encode_row(_audit_record(record)) for record in records), call.sliced_work)


async def _list_event_hubs(call: Call) -> object:
    rows = (call.encode_row(_event_hub(event_hub)) for event_hub in call.broker.list_event_hubs())
    return await in_slices(rows, call.sliced_work)


async def _create_event_hub(call: Call) -> object:
    values = call.values
    partition_count = cast(int, values.get("partition_count", PARTITION_COUNT_DEFAULT))
    return _event_hub(
        await call.broker.create_event_hub(
            cast(str, values["name"]), partition_count=partition_count, **hub_changes_in(values)
        )
    )


async def _update_event_hub(call: Call) -> object:
    values = call.values
    partition_count = cast("int | None", values.get("partition_count"))
    return _event_hub(
        await call.broker.update_event_hub(
            call.parameters["hub"], partition_count=partition_count, **hub_changes_in(values)
        )
    )


async def _create_consumer_group(call: Call) -> object:
    name = call.wanted(shapes.Named).name
    await call.event_hub.create_consumer_group(name)
    return {"name": name}


async def _report_consumer(call: Call) -> None:
    wanted = call.wanted(shapes.ConsumerReport)
    numbers = {each.partition_id: each.sequence_number for each in wanted.partitions}
    await call.broker.keep_report(
        call.event_hub,
        call.parameters["group"],
        owner=wanted.owner,
        sequence_numbers=numbers,
        released=wanted.released,
        collect=lambda steps: in_slices(steps, call.sliced_work),
    )


async def _create_policy(call: Call) -> object:
    wanted = call.wanted(shapes.PolicyCreation)
    policy = await call.broker.create_policy(
        call.scope,
        wanted.name,
        wanted.claims,
        key=wanted.primary_key,
        secondary_key=wanted.secondary_key,
    )
    return _policy(policy, call)


async def _regenerate_key(call: Call) -> object:
    wanted = call.wanted(shapes.KeyRegeneration)
    policy = await call.broker.regenerate_key(
        call.scope, call.parameters["policy"], is_secondary=wanted.is_secondary, key=wanted.key
    )
    return _policy(policy, call)


async def _namespace_statistics(call: Call) -> object:
    return await _statistics(call, call.broker.each_statistics(), call.broker.list_event_hubs())


async def _hub_statistics(call: Call) -> object:
    event_hub = call.event_hub
    return await _statistics(call, event_hub.each_statistics(), (event_hub,))


async def _statistics(
    call: Call, each_counts: Iterator[EventHubStatistics], event_hubs: Sequence[EventHub]
) -> dict[str, int]:
    counts = await in_slices(each_counts, call.sliced_work)
    sizes = (size for hub in event_hubs for size in hub.each_stored_bytes())
    stored_bytes = sum(await in_slices(sizes, call.sliced_work))
    return {**asdict(sum(counts, EventHubStatistics())), "stored_bytes": stored_bytes}


async def _list_partitions(call: Call) -> object:
    async def row(partition: Partition) -> object:
        return call.encode_row(await _partition(partition))

    return await each_partition(call.event_hub, row, call.sliced_work)


async def _list_consumers(call: Call) -> object:
    rows = map(call.encode_row, consumer_rows(call.broker, call.event_hub))
    return await in_slices(rows, call.sliced_work)


async def _list_revoked_publishers(call: Call) -> object:
    rows = (call.encode_row({"name": name}) for name in call.event_hub.revoked_publishers)
    return await in_slices(rows, call.sliced_work)


async def _revoke_publisher(call: Call) -> object:
    name = call.wanted(shapes.Named).name
    await call.event_hub.revoke_publisher(name)
    return {"name": name}


def _read_capture(call: Call) -> object:
    settings = call.event_hub.description.capture
    if settings is None:
        raise NotFoundError(f"The event hub {call.event_hub.name!r} is not captured.")
    return settings.to_mapping()


def _read_capture_statistics(call: Call) -> object:
    found = call.capture_statistics().get(call.event_hub.name)
    if found is None:
        raise NotFoundError(f"The event hub {call.event_hub.name!r} is not captured now.")
    return asdict(found)


async def _set_capture(call: Call) -> object:
    await call.broker.set_capture(call.parameters["hub"], CaptureSettings.from_mapping(call.values))
    return _read_capture(call)


async def _delete_capture(call: Call) -> None:
    _read_capture(call)
    await call.broker.set_capture(call.parameters["hub"], None)


async def _create_backup(call: Call) -> object:
    return _backup(await call.broker.backups.create())


async def _list_backups(call: Call) -> object:
    return [_backup(backup) for backup in await call.broker.backups.list_all()]


async def _read_backup(call: Call) -> object:
    return _backup(await call.broker.backups.read(call.parameters["backup"]))


def _policy_operations(prefix: str, suffix: str, of: str) -> tuple[Operation, ...]:
    """The same for the namespace and for an event hub."""
    see, manage, shape = Needs.SEE, Needs.MANAGE, shapes.Policy
    one, path = f"{prefix}/policies/{{policy}}", f"{prefix}/policies"
    return (
        Operation(
            "GET", path, f"list{suffix}Policies", f"The policies of {of}.", see,
            lambda call: [_policy(policy, call) for policy in call.broker.policies(call.scope)],
            answer=shape, is_list=True,
        ),
        Operation(
            "POST", path, f"create{suffix}Policy", f"Create a policy of {of}, effective immediately.", manage,
            _create_policy, request=shapes.PolicyCreation, answer=shape, status=201,
        ),
        Operation(
            "GET", one, f"read{suffix}Policy", "One policy.", see,
            lambda call: _policy(call.broker.policy(call.scope, call.parameters["policy"]), call),
            answer=shape,
        ),
        Operation(
            "DELETE", one, f"delete{suffix}Policy",
            "Delete a policy. Connections opened with its keys end.", manage,
            lambda call: call.broker.delete_policy(call.scope, call.parameters["policy"]),
            status=204,
        ),
        Operation(
            "POST", f"{one}/regenerate-key", f"regenerate{suffix}Key",
            "Replace one of a policy's keys. Connections opened with the old key end.", manage,
            _regenerate_key, request=shapes.KeyRegeneration, answer=shape,
        ),
    )  # fmt: skip


_HUB: Final = "/event-hubs/{hub}"
_LETTERS: Final = f"{_HUB}/consumer-groups/{{group}}/dead-letters"

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET", "/namespace", "readNamespace", "Tier, limits and throughput units.", Needs.SEE,
        _read_namespace, answer=shapes.Namespace,
    ),
    Operation(
        "PATCH", "/namespace", "updateNamespace", "Set the tier or the throughput units.", Needs.MANAGE,
        _update_namespace, request=shapes.NamespaceUpdate, answer=shapes.Namespace,
    ),
    Operation(
        "GET", "/statistics", "readStatistics",
        "Counts of the namespace since the service started, and its size.",
        Needs.SEE,
        _namespace_statistics,
        answer=shapes.Statistics,
    ),
    Operation(
        "GET", "/audit", "listAuditRecords", "The newest changes and sign-ins, newest first.",
        Needs.MANAGE, _list_audit_records, answer=shapes.AuditRecord, is_list=True, is_long_list=True,
    ),
    Operation(
        "POST", "/backups", "createBackup",
        "Begin a backup of this moment, on the service's machine. One is made at a time.", Needs.MANAGE,
        _create_backup, answer=shapes.Backup, status=201,
    ),
    Operation(
        "GET", "/backups", "listBackups", "The backups, and the one that is being made.", Needs.MANAGE,
        _list_backups, answer=shapes.Backup, is_list=True,
    ),
    Operation(
        "GET", "/backups/{backup}", "readBackup", "One backup, and how far it is.", Needs.MANAGE,
        _read_backup, answer=shapes.Backup,
    ),
    Operation(
        "DELETE", "/backups/{backup}", "deleteBackup", "Delete a backup; one that is being made ends.",
        Needs.MANAGE, lambda call: call.broker.backups.delete(call.parameters["backup"]), status=204,
    ),
    *_policy_operations("", "", "the namespace"),
    Operation(
        "GET", "/event-hubs", "listEventHubs", "The event hubs, in the order of their creation.", Needs.SEE,
        _list_event_hubs, answer=shapes.EventHub, is_list=True, is_long_list=True,
    ),
    Operation(
        "POST", "/event-hubs", "createEventHub", "Create an event hub.", Needs.MANAGE, _create_event_hub,
        request=shapes.EventHubCreation, answer=shapes.EventHub, status=201,
    ),
    Operation(
        "GET", _HUB, "readEventHub", "One event hub.", Needs.SEE,
        lambda call: _event_hub(call.event_hub),
        answer=shapes.EventHub,
    ),
    Operation(
        "PATCH", _HUB, "updateEventHub", "Change settings of an event hub, all or none.", Needs.MANAGE,
        _update_event_hub, request=shapes.EventHubUpdate, answer=shapes.EventHub,
    ),
    Operation(
        "DELETE", _HUB, "deleteEventHub", "Delete an event hub and all its events.", Needs.MANAGE,
        lambda call: call.broker.delete_event_hub(call.parameters["hub"]),
        status=204,
    ),
    Operation(
        "GET", f"{_HUB}/statistics", "readEventHubStatistics",
        "Counts of an event hub since the service started, and its size.", Needs.SEE,
        _hub_statistics,
        answer=shapes.Statistics,
    ),
    Operation(
        "GET", f"{_HUB}/partitions", "listPartitions", "The partitions' beginnings and ends.", Needs.SEE,
        _list_partitions, answer=shapes.Partition, is_list=True, is_long_list=True,
    ),
    Operation(
        "GET", f"{_HUB}/partitions/{{partition}}", "readPartition", "The beginning and end of one partition.",
        Needs.SEE,
        lambda call: _partition(call.event_hub.partition(call.parameters["partition"])),
        answer=shapes.Partition,
    ),
    Operation(
        "GET", f"{_HUB}/consumer-groups", "listConsumerGroups", "The consumer groups, $Default first.",
        Needs.SEE,
        lambda call: [{"name": name} for name in call.event_hub.description.consumer_groups],
        answer=shapes.Named, is_list=True, is_listen_enough=True,
    ),
    Operation(
        "POST", f"{_HUB}/consumer-groups", "createConsumerGroup", "Create a consumer group.", Needs.MANAGE,
        _create_consumer_group, request=shapes.Named, answer=shapes.Named, status=201,
    ),
    Operation(
        "DELETE", f"{_HUB}/consumer-groups/{{group}}", "deleteConsumerGroup", "Delete a consumer group.",
        Needs.MANAGE,
        lambda call: call.event_hub.delete_consumer_group(call.parameters["group"]),
        status=204,
    ),
    Operation(
        "GET", f"{_HUB}/consumers", "listConsumers",
        "Owners, checkpoints and lag of official processors that keep them in the service.", Needs.SEE,
        _list_consumers, answer=shapes.Consumer, is_list=True, is_long_list=True, is_listen_enough=True,
    ),
    Operation(
        "PUT", f"{_HUB}/consumers/{{group}}", "reportConsumer",
        "Report the partitions of a processor whose leases and checkpoints are elsewhere: owners and lag "
        "then show them.", Needs.SEE, _report_consumer, request=shapes.ConsumerReport, status=204,
        is_listen_enough=True,
    ),
    Operation(
        "POST", _LETTERS, "addDeadLetters",
        "Keep failed events, with a copy of each. One that is open already stays as it is.", Needs.SEE,
        lambda call: call.keeper.add(*call.of_group, call.wanted(shapes.DeadLetterAddition)),
        request=shapes.DeadLetterAddition, answer=shapes.AddedDeadLetters, is_http_only=True,
        body_bytes_max=262_144,  # 100 with 2,000 characters of reason and traceback each
    ),
    Operation(
        "GET", _LETTERS, "listDeadLetters", "The dead letters of a consumer group, page by page.", Needs.SEE,
        lambda call: call.keeper.page(*call.of_group, call.wanted(shapes.DeadLetterQuery)),
        request=shapes.DeadLetterQuery, answer=shapes.DeadLetterPage, is_http_only=True,
    ),
    Operation(
        "POST", f"{_LETTERS}/redrive", "redriveDeadLetters",
        "Publish open dead letters again, to their partitions, and close them. At least once.", Needs.REDRIVE,
        lambda call: call.keeper.redrive(*call.of_group, call.wanted(shapes.DeadLetterRedrive)),
        request=shapes.DeadLetterRedrive, answer=shapes.ClosedDeadLetters, is_http_only=True,
    ),
    Operation(
        "POST", f"{_LETTERS}/discard", "discardDeadLetters", "Close open dead letters for good.",
        Needs.MANAGE,
        lambda call: call.keeper.discard(*call.of_group, call.wanted(shapes.DeadLetterDiscard)),
        request=shapes.DeadLetterDiscard, answer=shapes.ClosedDeadLetters, is_http_only=True,
    ),
    *_policy_operations(_HUB, "EventHub", "an event hub"),
    Operation(
        "GET", f"{_HUB}/revoked-publishers", "listRevokedPublishers", "The revoked publishers.",
        Needs.SEE, _list_revoked_publishers, answer=shapes.Named, is_list=True, is_long_list=True,
    ),
    Operation(
        "POST", f"{_HUB}/revoked-publishers", "revokePublisher",
        "Revoke a publisher: it may no longer send, and its open links end.", Needs.MANAGE, _revoke_publisher,
        request=shapes.Named, answer=shapes.Named, status=201,
    ),
    Operation(
        "DELETE", f"{_HUB}/revoked-publishers/{{publisher}}", "restorePublisher",
        "Restore a revoked publisher, so that it may send again.", Needs.MANAGE,
        lambda call: call.event_hub.restore_publisher(call.parameters["publisher"]),
        status=204,
    ),
    Operation(
        "GET", f"{_HUB}/capture", "readCapture", "The settings of Capture; 404 if there are none.",
        Needs.SEE, _read_capture, answer=shapes.Capture,
    ),
    Operation(
        "GET", f"{_HUB}/capture/statistics", "readCaptureStatistics",
        "The state of Capture; 404 while nothing is captured.", Needs.SEE, _read_capture_statistics,
        answer=shapes.CaptureStatistics,
    ),
    Operation(
        "PUT", f"{_HUB}/capture", "setCapture", "Set up Capture; replaces all settings.",
        Needs.MANAGE, _set_capture, request=shapes.CaptureSettings, answer=shapes.Capture,
        is_of_namespace=True,
    ),
    Operation(
        "DELETE", f"{_HUB}/capture", "deleteCapture", "Stop capturing events.", Needs.MANAGE,
        _delete_capture, status=204,
    ),
)  # fmt: skip
"""Every operation there is."""


def _audit_record(record: AuditRecord) -> dict[str, object]:
    values = (("old", record.old), ("new", record.new))
    return asdict(record) | {name: value and json.dumps(value) for name, value in values}


def _event_hub(event_hub: EventHub) -> dict[str, object]:
    description = event_hub.description
    return {
        "name": description.name,
        "created_at": _time_text(description.created_at_ms),
        "partition_ids": list(description.partition_ids),
        "namespace_id": description.namespace_id,
        **description.settings(),
        "consumer_groups": list(description.consumer_groups),
        "capture": None if description.capture is None else description.capture.to_mapping(),
    }


async def _partition(partition: Partition) -> dict[str, object]:
    ends = await partition.ends()
    last_ms = ends.last_enqueued_time_ms
    return {
        "partition_id": ends.partition_id,
        "begin_sequence_number": ends.begin_sequence_number,
        "last_enqueued_sequence_number": ends.last_enqueued_sequence_number,
        "last_enqueued_offset": ends.last_enqueued_offset,
        "last_enqueued_time": None if last_ms is None else _time_text(last_ms),
        "is_empty": ends.is_empty,
        "histories": [history._asdict() for history in ends.histories],
    }


def _backup(backup: Backup) -> dict[str, object]:
    return asdict(backup) | {"state": backup.state.value}


def _policy(policy: SharedAccessPolicy, call: Call) -> dict[str, object]:
    described: dict[str, object] = {
        "name": policy.name,
        "claims": [claim.value for claim in Claim if claim in policy.claims],
    }
    if call.is_manager:
        described |= {"primary_key": policy.key, "secondary_key": policy.secondary_key}
    return described


def _time_text(time_ms: int) -> str:
    return time_of(time_ms).isoformat(timespec="milliseconds")
