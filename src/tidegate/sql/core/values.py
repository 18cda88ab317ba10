"""The values of the transactional core: keys, checkpoints, dead letters, results.

It touches no database; every module of the package may import it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol, Self

from tidegate.model.errors import InvalidArgumentError, text_of, traceback_of
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP, spelled_group
from tidegate.model.position import parse_time
from tidegate.wire.event_codec import encode_event

Row = Mapping[str, object]
"""One row of the target table: column name → value."""

REASON_CHARACTERS_MAX: Final = 2_000
"""Longer reasons are cut (our choice: reasons are for lists; the traceback keeps more)."""
TRACEBACK_CHARACTERS_MAX: Final = 16_000
"""Longer tracebacks keep their end, where the error is (our choice)."""
KEY_CHARACTERS_MAX: Final = 256
"""Longer partition keys are cut: an event within a batch may have one of 64 KB, and an index of PostgreSQL
takes 2,704 bytes, three names included (our choice: twice what the service allows for batches)."""


OVER_HTTP: Final = "(over HTTP)"
"""Stands for a pipeline's name in dead letters that were added over HTTP. For that Listen is enough, so they
count for nothing that a handler's own dead letters decide: they park no key, and no audit expects them."""


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    """A consumer: an event hub and a consumer group, in the spelling in which keys are stored.

    Event Hubs ignores case in both names, so both are stored in lower case, except ``$Default``.
    """

    event_hub: str
    consumer_group: str = DEFAULT_CONSUMER_GROUP

    def __post_init__(self) -> None:
        if not self.event_hub or not self.consumer_group:
            raise InvalidArgumentError("A consumer needs the name of an event hub and of a consumer group.")
        object.__setattr__(self, "event_hub", self.event_hub.lower())
        object.__setattr__(self, "consumer_group", spelled_group(self.consumer_group.lower()))

    def __str__(self) -> str:
        return f"{self.event_hub}/{self.consumer_group}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a consumer is in one partition, and who moved it there."""

    event_hub: str
    consumer_group: str
    partition_id: str
    next_sequence_number: int | None
    """The resume point: the first event not yet processed. None if nothing was ever committed."""
    offset: str | None
    """Offset of the last processed event; None if the batch did not know it."""
    enqueued_time_ms: int | None
    """When the last processed event was accepted: milliseconds since 1970-01-01 UTC; None as above."""
    event_hub_created_at_ms: int | None
    """Which hub of this name the sequence numbers belong to; None if unknown."""
    transaction_token: str | None
    """The transaction that moved it last; distinguishes a lost COMMIT from a failed one."""
    owner: str | None
    """Who moved it last: ``host:process`` unless the owner named itself."""
    lease_epoch: int | None
    """Of the last owner's lease; None: it had none."""
    updated_at: datetime
    history_id: str | None = None
    """The history of the log in which the last processed event was read; None if unknown."""


@dataclass(frozen=True, slots=True)
class EventPlace:
    """An event's place in the log, for the dead letter of a row that the database refused."""

    offset: str
    enqueued_time_ms: int
    partition_key: str | None = None
    payload: bytes | None = None
    """The encoded event, if the dead letter is to have a copy."""


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """A dead letter to be written: an event that could not be processed, with its reason."""

    sequence_number: int
    offset: str
    enqueued_time_ms: int
    error_type: str
    """The exception's class name."""
    reason: str
    """One line; at most REASON_CHARACTERS_MAX characters are stored."""
    traceback: str = ""
    partition_key: str | None = None
    payload: bytes | None = None
    """The encoded event, for ``wire.event_codec``; None: only the pointer into the log is kept."""

    @classmethod
    def from_exception(
        cls, event: ReceivedEvent, error: BaseException, *, is_payload_copied: bool = False
    ) -> NewDeadLetter:
        """The dead letter of an event whose handler raised; without key and copy if it cannot be decoded."""
        place = place_of(event, is_payload_copied=is_payload_copied)
        return cls.at_place(event.sequence_number, place, error)

    @classmethod
    def from_text(
        cls, event: ReceivedEvent, error_type: str, reason: str, *, is_payload_copied: bool = False
    ) -> NewDeadLetter:
        """The dead letter of an event whose reason is a sentence instead of an exception."""
        place = place_of(event, is_payload_copied=is_payload_copied)
        return cls.at_place(event.sequence_number, place, reason, error_type=error_type)

    @classmethod
    def at_place(
        cls, sequence_number: int, place: EventPlace, error: BaseException | str, *, error_type: str = ""
    ) -> NewDeadLetter:
        """The dead letter of the event at ``place``. error_type: empty: the exception's class name."""
        error_type, traceback = error_type or type(error).__name__, ""
        # A reason that a function returned was never raised.
        if isinstance(error, BaseException) and error.__traceback__ is not None:
            traceback = traceback_of(error)
        return cls(
            sequence_number,
            place.offset,
            place.enqueued_time_ms,
            error_type,
            reason=error if isinstance(error, str) else text_of(error),
            traceback=traceback,
            partition_key=place.partition_key,
            payload=place.payload,
        )


def place_of(event: ReceivedEvent, *, is_payload_copied: bool = False) -> EventPlace:
    """The place of ``event``; without key and copy if its bytes cannot be decoded."""
    partition_key: str | None = None
    payload: bytes | None = None
    try:
        contents = event.decode()
        partition_key = contents.partition_key
        if is_payload_copied:
            payload = bytes(encoded_form_of(event))
    except Exception:  # whatever is wrong with the bytes, the pointer is still valid
        payload = None
    return EventPlace(event.offset, event.enqueued_time_ms, partition_key, payload)


def encoded_form_of(event: ReceivedEvent) -> bytes | memoryview:
    """The event as it was received; one that a test created from contents is encoded."""
    if event.encoded is not None:
        return event.encoded
    contents = event.contents
    data = EventData(
        body=contents.body,
        properties=contents.properties,
        content_type=contents.content_type,
        message_id=contents.message_id,
        correlation_id=contents.correlation_id,
    )
    return encode_event(data, contents.partition_key)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one committed batch did."""

    rows: int
    """Rows inserted into the target table."""
    dead_letters: int
    """Events that became dead letters."""
    skipped: int
    """Sequence numbers of the batch that an earlier transaction had committed already."""
    start_sequence_number: int
    """The first sequence number that this transaction committed; ``until`` if there was nothing to do."""
    until_sequence_number: int
    """The new resume point: the first event not yet processed."""


class DeadLetterStatus(StrEnum):
    """The state of a dead letter."""

    OPEN = "open"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as stored."""

    event_hub: str
    consumer_group: str
    partition_id: str
    sequence_number: int
    offset: str
    enqueued_time_ms: int
    partition_key: str | None
    error_type: str
    reason: str
    traceback: str
    payload: bytes | None
    """The encoded event; None: only the log has it."""
    status: DeadLetterStatus
    attempts: int
    """How often it failed; at least 1."""
    first_failed_at: datetime
    last_failed_at: datetime
    pipeline: str
    """Name of the pipeline or handler that wrote it; empty: none. ``(over HTTP)``: it was added that way."""


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters by all given fields; None matches any value."""

    event_hub: str | None = None
    consumer_group: str | None = None
    pipeline: str | None = None
    partition_id: str | None = None
    sequence_numbers: tuple[int, ...] | None = None
    status: DeadLetterStatus | None = DeadLetterStatus.OPEN
    """Open ones by default."""
    error_type: str | None = None
    reason_contains: str | None = None
    """A part of the reason, ignoring case (ASCII letters)."""
    reason_is: str | None = None
    """The whole reason, as stored."""
    failed_from: datetime | None = None
    """Last failed at this time or later (aware)."""
    failed_until: datetime | None = None
    """Last failed before this time (aware)."""
    enqueued_from: datetime | None = None
    """The event was enqueued at this time or later (aware)."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, str], *, now_utc: datetime) -> Self:
        """Parse the fields of a URL or a form: the inverse of ``to_fields``.

        An empty or missing field matches any value, except ``state``, which defaults to ``open``; ``all``
        matches any. Times may be relative to ``now_utc`` (``2h``). Fields of other names are ignored.
        Raises InvalidArgumentError for an invalid state, sequence number or time.
        """

        def time(name: str) -> datetime | None:
            return parse_time(fields[name], now_utc=now_utc) if fields.get(name) else None

        return cls(
            event_hub=fields.get("hub") or None,
            consumer_group=fields.get("group") or None,
            pipeline=fields.get("pipeline") or None,
            partition_id=fields.get("partition") or None,
            sequence_numbers=_numbers(fields.get("number", "")),
            status=_status(fields.get("state", "")),
            error_type=fields.get("error_type") or None,
            reason_contains=fields.get("reason") or None,
            reason_is=fields.get("reason_is") or None,
            failed_from=time("from"),
            failed_until=time("until"),
            enqueued_from=time("enqueued_from"),
        )

    def to_fields(self) -> dict[str, str]:
        """The given fields as strings; ``state`` only if it is not ``open``."""
        found: dict[str, object] = {
            "hub": self.event_hub,
            "group": self.consumer_group,
            "pipeline": self.pipeline,
            "partition": self.partition_id,
            "number": None if self.sequence_numbers is None else ",".join(map(str, self.sequence_numbers)),
            "state": "all" if self.status is None else self.status.value,
            "error_type": self.error_type,
            "reason": self.reason_contains,
            "reason_is": self.reason_is,
            "from": None if self.failed_from is None else self.failed_from.isoformat(),
            "until": None if self.failed_until is None else self.failed_until.isoformat(),
            "enqueued_from": None if self.enqueued_from is None else self.enqueued_from.isoformat(),
        }
        if self.status is DeadLetterStatus.OPEN:
            del found["state"]
        return {name: str(value) for name, value in found.items() if value is not None}

    def until(self, time: datetime) -> Self:
        """The same filter, without dead letters that failed last at ``time`` or later."""
        earliest = time if self.failed_until is None else min(time, self.failed_until)
        return replace(self, failed_until=earliest)


def _status(text: str) -> DeadLetterStatus | None:
    try:
        return None if text == "all" else DeadLetterStatus(text or DeadLetterStatus.OPEN)
    except ValueError as error:
        raise InvalidArgumentError(
            f"Invalid dead-letter state {text[:40]!r}.", next_step="Use open, redriven, discarded or all."
        ) from error


def _numbers(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    for each in text.split(","):
        if not (each.isascii() and each.isdigit() and len(each) < 19):
            raise InvalidArgumentError(
                f"{each[:40]!r} is not a sequence number.", next_step="Give a number, 0 or more."
            )
    return tuple(map(int, text.split(",")))


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How many dead letters share an error type and a reason."""

    error_type: str
    reason: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action on a dead letter."""

    event_hub: str
    consumer_group: str
    partition_id: str
    sequence_number: int
    action: str
    """``redriven``, ``redrive_failed`` or ``discarded``."""
    actor: str
    at: datetime
    detail: str
    """The reason given, or the error of the attempt."""
    transaction_token: str


@dataclass(frozen=True, slots=True)
class RedriveReason:
    """A redrive's results for dead letters with the same error type and reason."""

    error_type: str
    reason: str
    """As before the redrive."""
    considered: int
    redriven: int
    failed: int
    waiting: int


@dataclass(frozen=True, slots=True)
class RedriveFailure:
    """Dead letters that failed again in a redrive with the same error type and reason."""

    error_type: str
    reason: str
    """As it is now."""
    count: int
    partition_id: str
    sequence_number: int
    """Of the first one."""


@dataclass(frozen=True, slots=True)
class RedriveReport:
    """What a redrive did, or would do (``is_dry_run``)."""

    considered: int = 0
    """Open dead letters that were considered, except ``exhausted`` ones."""
    redriven: int = 0
    """Closed, in the same transaction as their rows."""
    rows: int = 0
    """Inserted by a ``Pipeline``; what another handler wrote is not counted."""
    failed: int = 0
    """Failed again: still open, with the new reason and one more attempt."""
    waiting: int = 0
    """Not run: parked, because an earlier one of the same partition key is open."""
    exhausted: int = 0
    """Skipped: had already failed ``attempts_max`` times."""
    lost: tuple[tuple[str, int], ...] = ()
    """(partition id, sequence number) of events neither in the log nor copied: still open."""
    taken_by_others: int = 0
    """Closed by another process meanwhile: this redrive wrote nothing for them."""
    by_reason: tuple[RedriveReason, ...] = ()
    """The same counts by reason, the most frequent first."""
    failures: tuple[RedriveFailure, ...] = ()
    """Why ``failed`` ones failed, the most frequent first."""
    is_dry_run: bool = False


class EventReader(Protocol):
    """Reads single events back from a log, for a redrive. ``BlockingConsumer`` is one."""

    def read_events(
        self, event_hub: str, partition_id: str, sequence_numbers: Sequence[int]
    ) -> Iterable[ReceivedEvent]:
        """The events with these ascending sequence numbers, in this order.

        Raises PositionOutOfRangeError if the log no longer holds one of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Rows, each with the event that it came from.

    ``values[i]`` has its columns in the order of ``columns`` and came from the event ``sequence_numbers[i]``;
    these never descend. An event may have no row or several.
    """

    columns: tuple[str, ...]
    values: Sequence[tuple[object, ...]]
    sequence_numbers: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.sequence_numbers):
            raise InvalidArgumentError(
                f"There are {len(self.values)} rows and {len(self.sequence_numbers)} sequence numbers; each "
                "row needs the sequence number of its event."
            )

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self) -> Sequence[int]:
        """The sequence numbers of the rows' events."""
        return self.sequence_numbers

    def between(self, start: int, until: int) -> PartitionRows:
        """The rows of the events in ``[start, until)``."""
        numbers = self.sequence_numbers
        if not numbers or (numbers[0] >= start and numbers[-1] < until):
            return self
        low, high = bisect_left(numbers, start), bisect_left(numbers, until)
        return PartitionRows(self.columns, self.values[low:high], numbers[low:high])


PlaceOf = Callable[[int], EventPlace]
"""Returns an event's place by its sequence number."""


def storable_key(partition_key: str) -> str:
    """A partition key as stored in dead letters. Keys that begin alike and are longer count as one: their
    events wait for each other."""
    text = storable_text(partition_key)
    units = text.encode("utf-16-le")  # the length of SQL Server's column is in these
    if len(units) <= 2 * KEY_CHARACTERS_MAX:
        return text
    return units[: 2 * (KEY_CHARACTERS_MAX - 1)].decode("utf-16-le", "ignore") + "…"


def storable_text(
    text: str,
    characters_max: int | None = None,
    *,
    is_end_kept: bool = False,
    bytes_max: int | None = None,
) -> str:
    """``text`` in a form that every database accepts: no NUL, no lone surrogates, cut to ``characters_max``,
    and to ``bytes_max`` in UTF-8 (None: not cut)."""
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if characters_max is not None and len(text) > characters_max:
        text = "…" + text[-characters_max + 1 :] if is_end_kept else text[: characters_max - 1] + "…"
    if bytes_max is not None and len(encoded := text.encode()) > bytes_max:
        mark = "…".encode()
        text = (encoded[: bytes_max - len(mark)]).decode("utf-8", "ignore") + "…"
    return text
