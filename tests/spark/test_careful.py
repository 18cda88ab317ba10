"""A handler's failure policy in a writing task: as in a host, without a Spark around it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from sqlalchemy import BigInteger, CheckConstraint, Column, MetaData, Table, select
from tests.sql.support import dead_numbers
from tests.support.hard_errors import parse_badly

from tidegate.client.retry import RetryPolicy
from tidegate.columns.batches import event_batch
from tidegate.model.errors import (
    BrokenError,
    DatabaseUnavailableError,
    InvalidArgumentError,
    PartitionPausedError,
    PartitionStoppedError,
    TidegateError,
)
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor.policies import FailureAction, FailurePolicy
from tidegate.spark.runtime.patience import PATIENCE_S, Patience, patiently
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.ownership import claim_checkpoints
from tidegate.spark.sql_sink.commits import needed_columns
from tidegate.spark.sql_sink.plan import SinkPlan
from tidegate.spark.sql_sink.writer import TaskWriter
from tidegate.sql import ArrowHandler, BatchHandler, Database, DeadLetters, Handler, Pipeline
from tidegate.wire.encoded_events import EncodedEvents
from tidegate.wire.event_codec import encode_event

_CONNECTION_STRING = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=calls"

called = Table("called", MetaData(), Column("number", BigInteger, primary_key=True, autoincrement=False))
"""A row for each event for which the handler succeeded."""


class Service:
    """What a handler calls: away for some calls, or for some events."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.calls_in_vain = 0
        """Of the next calls."""
        self.error: Exception = ConnectionRefusedError("nobody listens")
        self.bad: set[int] = set()

    def handle(self, event: ReceivedEvent) -> dict[str, object]:
        """The handler."""
        number = json.loads(event.body)["number"]
        self.calls.append(number)
        if self.calls_in_vain:
            self.calls_in_vain -= 1
            raise self.error
        if number in self.bad:
            raise ValueError(f"event {number} is bad")
        return {"number": number}


@pytest.fixture
def service() -> Service:
    """A service that answers."""
    return Service()


class Time:
    """As ``time``: waits pass at once."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        self.waits_max = 100

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if len(self.waits) == self.waits_max:
            raise TimeoutError(f"a wait of {seconds}")
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time of all waits in the test."""
    clock = Time()
    monkeypatch.setattr("tidegate.spark.runtime.patience.time", clock)
    return clock


def plan_of(
    database_url: str, handler: Handler | BatchHandler, policy: FailurePolicy | None, table: Table = called
) -> SinkPlan:
    """A claimed pipeline; fifty events in a transaction."""
    pipeline = Pipeline("calls", "calls", table, handler, policy=policy)
    database = Database.shared(database_url)
    database.ensure_table(table)
    claim = claim_checkpoints(
        database,
        pipeline.consumer,
        event_hub_created_at_ms=1,
        start_sequence_numbers={"0": 0, "1": 0},
        begin_sequence_numbers={"0": 0, "1": 0},
    )
    source = SourceOptions.parse({"connectionString": _CONNECTION_STRING})
    return SinkPlan(pipeline, database_url, source, claim, False, 50, 2**20)


def events_of(plan: SinkPlan, partition_id: str, numbers: range, key: str | None = None) -> pa.RecordBatch:
    """What the source gives; in partition 1, the handler sees numbers from 1,000 on."""
    first = 1000 if partition_id == "1" else 0
    bodies = [json.dumps({"number": first + number}).encode() for number in numbers]
    messages = [bytes(encode_event(EventData(body), key)) for body in bodies]
    events = EncodedEvents(numbers, [5] * len(numbers), [*map(str, numbers)], messages)
    return event_batch(partition_id, events, needed_columns(plan.pipeline, is_transformed=False))


def numbers_in(plan: SinkPlan) -> list[int]:
    """The rows."""
    with Database.shared(plan.database_url).read() as connection:
        return list(connection.execute(select(called.c.number).order_by(called.c.number)).scalars())


def test_an_outage_is_waited_for_in_the_task(database_url: str, service: Service, clock: Time) -> None:
    """No event becomes a dead letter, and each is processed once, in all partitions of the task."""
    plan = plan_of(database_url, service.handle, None)
    service.calls_in_vain = 6
    batches = [events_of(plan, "0", range(500)), events_of(plan, "1", range(20))]
    TaskWriter(plan).write(iter(batches))
    assert numbers_in(plan) == [*range(500), *range(1000, 1020)]
    assert dead_numbers(Database.shared(database_url)) == []
    assert plan.checkpoints() == {"0": 500, "1": 20}
    # A batch was begun twice; then one event, and another one beside it, were tried.
    assert len(clock.waits) == 3
    assert clock.waits == sorted(clock.waits)
    assert service.calls.count(400) == 1


@pytest.mark.parametrize(("is_named", "dead"), [(False, 1), (True, 0)])
def test_a_policy_names_more_errors(sqlite_url: str, service: Service, is_named: bool, dead: int) -> None:
    """Those of libraries with an error tree of their own."""

    class LibraryError(Exception):
        pass

    named = (LibraryError,) if is_named else ()
    plan = plan_of(sqlite_url, service.handle, FailurePolicy(outage_errors=named))
    service.error, service.calls_in_vain = LibraryError("away"), 1
    TaskWriter(plan).write(iter([events_of(plan, "0", range(30))]))
    assert len(dead_numbers(Database.shared(sqlite_url))) == dead
    assert len(numbers_in(plan)) == 30 - dead


def test_a_policy_retries(sqlite_url: str, service: Service) -> None:
    """What passes by itself makes no dead letter; what does not is one."""
    retry = RetryPolicy(retries_max=2, delay_s=0.01)
    plan = plan_of(sqlite_url, service.handle, FailurePolicy(retry=retry))
    service.error, service.calls_in_vain, service.bad = OSError("busy"), 1, {7}
    TaskWriter(plan).write(iter([events_of(plan, "0", range(10))]))
    assert dead_numbers(Database.shared(sqlite_url)) == [7]
    assert [letter.error_type for letter in DeadLetters(Database.shared(sqlite_url)).list()] == ["ValueError"]
    assert service.calls.count(7) >= 3


def test_a_policy_stops_before_the_event(database_url: str, service: Service) -> None:
    """Everything before it is committed, and the task fails with an error that names it."""
    plan = plan_of(database_url, service.handle, FailurePolicy(FailureAction.STOP))
    service.bad = {7}
    with pytest.raises(PartitionStoppedError, match="before event 7, which its handler failed for"):
        TaskWriter(plan).write(iter([events_of(plan, "0", range(20))]))
    assert plan.checkpoints()["0"] == 7
    assert (numbers_in(plan), dead_numbers(Database.shared(database_url))) == ([*range(7)], [])
    service.bad = set()
    assert TaskWriter(plan).write(iter([events_of(plan, "0", range(20))])) == {"0": 7}
    assert numbers_in(plan) == [*range(20)]


def test_a_policy_parks_the_key(database_url: str, service: Service) -> None:
    """Later events of the key wait behind it, also in later transactions; others do not."""
    plan = plan_of(database_url, service.handle, FailurePolicy(FailureAction.PARK_KEY))
    service.bad = {3}
    batches = [
        events_of(plan, "0", range(5), "a"),
        events_of(plan, "0", range(5, 60), "b"),
        events_of(plan, "0", range(60, 62), "a"),
    ]
    TaskWriter(plan).write(iter(batches))
    assert dead_numbers(Database.shared(database_url)) == [3, 4, 60, 61]
    assert numbers_in(plan) == [0, 1, 2, *range(5, 60)]


def test_too_many_dead_letters_pause_the_partition(sqlite_url: str, service: Service, clock: Time) -> None:
    """What is within the budget is committed; a later task of this process has no other budget."""
    plan = plan_of(sqlite_url, service.handle, FailurePolicy(dead_letters_per_minute=4))
    service.bad = {*range(5, 20)}

    clock.waits_max = 0
    for _ in range(2):
        with pytest.raises(TimeoutError, match="a wait of 10"):
            TaskWriter(plan).write(iter([events_of(plan, "0", range(30))]))
        assert plan.checkpoints()["0"] == 9
        assert dead_numbers(Database.shared(sqlite_url)) == [5, 6, 7, 8]
    service.bad = {2000}
    TaskWriter(plan).write(iter([events_of(plan, "1", range(5))]))
    assert plan.checkpoints() == {"0": 9, "1": 5}


def test_what_the_database_refuses_has_the_same_budget(
    database_url: str, service: Service, clock: Time
) -> None:
    """With what the handler fails for; another partition of the same transaction is committed."""
    refusing = called.to_metadata(MetaData())
    refusing.append_constraint(CheckConstraint("number < 5 OR number >= 1000"))
    plan = plan_of(database_url, service.handle, FailurePolicy(dead_letters_per_minute=4), refusing)
    service.bad = {3}

    clock.waits_max = 0
    for events in (events_of(plan, "1", range(5)), events_of(plan, "1", range(5, 10))):
        with pytest.raises(TimeoutError, match="a wait of 10"):
            TaskWriter(plan).write(iter([events, events_of(plan, "0", range(30))]))
        assert plan.checkpoints() == {"0": 8, "1": events["sequenceNumber"][-1].as_py() + 1}
        assert dead_numbers(Database.shared(database_url)) == [3, 5, 6, 7]
    assert numbers_in(plan) == [0, 1, 2, 4, *range(1000, 1010)]


def test_a_batch_function_is_not_called_for_each_event_of_an_outage(sqlite_url: str) -> None:
    """Its batch is not halved: the first failure shows it, and the log is asked for the events."""
    sizes: list[int] = []

    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        raise TimeoutError("no answer")

    plan = plan_of(sqlite_url, ArrowHandler(refuse, ("sequenceNumber", "body")), None)

    asked: list[int] = []

    class NoHub:
        def __init__(self, source: SourceOptions) -> None:
            pass

        def read_events(self, partition_id: str, numbers: list[int]) -> list[ReceivedEvent]:
            asked.extend(numbers)
            raise InvalidArgumentError("there is no hub")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidegate.spark.sql_sink.careful.HubReader", NoHub)
        with pytest.raises(InvalidArgumentError, match="there is no hub"):
            TaskWriter(plan).write(iter([events_of(plan, "0", range(40))]))
    assert (sizes, asked) == ([40], [*range(40)])


def test_a_batch_function_has_its_policy(sqlite_url: str) -> None:
    """It is given the columns that it asks for; its events come with them."""

    def check(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert batch.schema.names == ["sequenceNumber"]
        if 7 in batch.column(0).to_pylist():
            raise ValueError("event 7 is bad")
        return pa.RecordBatch.from_arrays([batch.column(0)], names=["number"])

    handler = ArrowHandler(check, ("sequenceNumber",))
    plan = plan_of(sqlite_url, handler, FailurePolicy(FailureAction.STOP))
    with pytest.raises(PartitionStoppedError, match="before event 7"):
        TaskWriter(plan).write(iter([events_of(plan, "0", range(20))]))
    assert numbers_in(plan) == [*range(7)]


@pytest.mark.parametrize(
    ("is_batch", "action"), [(False, None), (False, FailureAction.STOP), (True, FailureAction.STOP)]
)
def test_an_error_that_is_not_an_exception_is_its_events(
    sqlite_url: str, is_batch: bool, action: FailureAction | None
) -> None:
    """As pyo3's PanicException, or the SystemExit of argparse, which would end Spark's worker."""

    def of_event(event: ReceivedEvent) -> dict[str, object]:
        if event.sequence_number == 7:
            parse_badly()
        return {"number": event.sequence_number}

    def of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 7 in batch.column(0).to_pylist():
            parse_badly()
        return pa.RecordBatch.from_arrays([batch.column(0)] * 2, names=["sequenceNumber", "number"])

    handler = ArrowHandler(of_batch, ("sequenceNumber",)) if is_batch else of_event
    plan = plan_of(sqlite_url, handler, None if action is None else FailurePolicy(action))
    batches = [events_of(plan, "0", range(20))]
    if action is None:
        TaskWriter(plan).write(iter(batches))
        assert numbers_in(plan) == [*range(7), *range(8, 20)]
        assert dead_numbers(Database.shared(sqlite_url)) == [7]
    else:
        with pytest.raises(PartitionStoppedError, match="before event 7"):
            TaskWriter(plan).write(iter(batches))
        assert numbers_in(plan) == [*range(7)]


def _failing(times: int, error: Callable[[], Exception]) -> Callable[[], int]:
    left = times

    def attempt() -> int:
        nonlocal left
        if left:
            left -= 1
            raise error()
        return 5

    return attempt


def test_what_is_away_is_tried_again(clock: Time) -> None:
    """Also if Spark has wrapped the error; other errors are raised at once."""
    assert patiently(_failing(3, lambda: DatabaseUnavailableError("away")), "Testing") == 5
    wrapped = "Job aborted: Traceback\ntidegate.model.errors.BrokenError: cut\n\tat org.apache.X"
    assert patiently(_failing(2, lambda: RuntimeError(wrapped)), "Testing") == 5
    assert len(clock.waits) == 5
    for error in (InvalidArgumentError("no"), ValueError("no"), MemoryError()):
        with pytest.raises(type(error)):
            patiently(_failing(1, lambda error=error: error), "Testing")  # type: ignore[misc]
    with pytest.raises(BrokenError):
        patiently(_failing(1, lambda: BrokenError("cut")), "Testing", unless=BrokenError)
    assert len(clock.waits) == 5


def test_patience_has_an_end(clock: Time) -> None:
    """Of one outage, not of all together; a pause has none."""
    patience = Patience("Testing")

    def wait_long(error: TidegateError) -> None:
        while clock.now < 100.0 + 3 * PATIENCE_S:
            patience.wait(error)

    for _ in range(2):
        with pytest.raises(BrokenError):
            wait_long(BrokenError("cut"))
        assert PATIENCE_S <= clock.now - 100.0 < PATIENCE_S + 10
        patience.over()
        clock.now = 100.0
    clock.waits.clear()
    clock.waits_max = 1000
    wait_long(PartitionPausedError("the handler's service is away"))
    patience.wait(BrokenError("cut"))
