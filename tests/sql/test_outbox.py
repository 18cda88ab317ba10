"""Events that handlers publish: stored with the transaction, and in their hub once, whatever is cut off."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pytest
import sqlalchemy as sa
from tests.docs_support import ROOT
from tests.sql.support import CONSUMER, dead_numbers, events_between
from tests.sql.transaction_support import Partition, lease_of

from tidegate.client import BlockingConsumer, EventHubProducer, Namespace
from tidegate.client.connector import Connector
from tidegate.client.repeatable import RepeatableSender
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    EventTooLargeError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    OutboxInDoubtError,
    PartitionPausedError,
)
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor.handlers import TransactionContext
from tidegate.processor.policies import FailurePolicy
from tidegate.server.app import TidegateServer
from tidegate.sql import Database
from tidegate.sql.commit.transactions import SqlTransactions
from tidegate.sql.core.schema import outbox, outbox_lane
from tidegate.sql.handlers.forms import form_of
from tidegate.sql.outbox import lanes, relay, writer
from tidegate.sql.outbox.lanes import (
    Lane,
    LaneStep,
    find_start,
    read_hub,
    read_lanes,
    take_steps,
)
from tidegate.sql.outbox.relay import OutboxRelay
from tidegate.sql.outbox.writer import Outbox
from tidegate.testing.hub import HubService

GUIDE = ROOT / "docs/guides/publishing.md"
OTHER = b"of another producer"
KEYS = [f"key-{number}" for number in range(7)]


@dataclass
class Bench:
    """A database and a service, without a host: each step is made by hand."""

    database: Database
    service: HubService
    target: str
    outbox: Outbox = field(init=False)
    reported: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.database)

    def relay(self) -> OutboxRelay:
        """A new one, as a new process would have it."""
        namespace = Namespace.from_connection_string(self.service.connection_string)
        return OutboxRelay(
            self.outbox, CONSUMER, namespace, lambda: ["0"], lambda error, _: self.reported.append(error)
        )

    async def process(
        self, handler: object, start: int, until: int, *, policy: FailurePolicy | None = None
    ) -> None:
        """One transaction."""
        lease = lease_of(1)
        transactions = SqlTransactions(
            self.database,
            CONSUMER,
            lease,
            form_of(handler, CONSUMER),
            Partition(lease),
            policy=policy or FailurePolicy(),
            event_hub_created_at_ms=None,
            outbox=self.outbox,
        )
        await transactions.process(
            events_between(start, until), start_sequence_number=start, until_sequence_number=until
        )
        transactions.close()

    async def publish(self, start: int, until: int) -> None:
        """One transaction that publishes an event for each of its events."""
        await self.process(self.handle, start, until)

    def handle(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        """Publishes one event for each."""
        for event in events:
            number = event.sequence_number
            context.publish(self.target, EventData(b"%d" % number), partition_key=KEYS[number % len(KEYS)])

    async def relay_all(self) -> None:
        """By a new process, which ends in order."""
        await self.relay().finish(["0"], 60.0)

    def found(self) -> dict[str | None, list[int]]:
        """What the target hub has, by key, in order."""
        found: dict[str | None, list[int]] = {}
        with BlockingConsumer(self.service.connection_string, self.target) as consumer:
            for ends in consumer.get_all_partition_properties():
                numbers = range(ends.next_sequence_number)
                for event in consumer.read_events(self.target, ends.partition_id, numbers):
                    if event.body != OTHER:
                        found.setdefault(event.partition_key, []).append(int(event.body))
        return found

    def counts(self) -> tuple[int, int]:
        """Rows in the outbox, and events that its lanes say to wait."""
        with self.database.read() as connection:
            rows = connection.scalar(sa.select(sa.func.count()).select_from(outbox))
            lane = outbox_lane.c
            waiting = connection.scalar(sa.select(sa.func.sum(lane.next_number - lane.relayed_until)))
        return int(rows or 0), int(waiting or 0)

    async def send_others(self, count: int) -> None:
        """Events of another producer, in each partition of the target."""
        async with EventHubProducer.from_connection_string(
            self.service.connection_string, self.target
        ) as producer:
            for partition_id in ("0", "1"):
                await producer.send([EventData(OTHER)] * count, partition_id=partition_id)

    async def forget_producers(self) -> None:
        """What 1,000 other producers do to each partition of the target, with one that remembers one."""

        def limit(server: TidegateServer) -> None:
            for partition_id in ("0", "1"):
                log: Any = server.broker.event_hub(self.target).partition(partition_id)._log
                log.writer._producers._producers_max = 1

        self.service.ask(limit)
        await self.send_others(1)

    def move_lanes(self, **changes: object) -> None:
        """What a relay would have noted."""
        with self.database.writing() as connection, connection.begin():
            connection.execute(sa.update(outbox_lane).values(**changes))


@pytest.fixture
def bench(database: Database, hub_service: HubService) -> Bench:
    """With a target of two partitions, and a database of each kind."""
    return Bench(database, hub_service, hub_service.create_hub(partition_count=2))


@pytest.fixture
def light_bench(sqlite_url: str, hub_service: HubService) -> Iterator[Bench]:
    """The same with SQLite, for what no database decides."""
    with Database.open(sqlite_url) as database:
        yield Bench(database, hub_service, hub_service.create_hub(partition_count=2))


def expected(until: int) -> dict[str | None, list[int]]:
    """Each event once, in order by key."""
    return {key: list(range(index, until, len(KEYS))) for index, key in enumerate(KEYS) if index < until}


def run(work: Coroutine[object, object, None]) -> None:
    """On a loop of its own."""
    asyncio.run(work)


@pytest.mark.slow
def test_published_events_come_into_their_hub_once_and_in_order(bench: Bench) -> None:
    """Several transactions, a relay that comes later, and nothing left behind."""

    async def work() -> None:
        for start in range(0, 900, 300):
            relay = bench.relay()
            await bench.publish(start, start + 300)
            await relay.finish(["0"], 60.0)

    run(work())
    assert bench.found() == expected(900)
    assert bench.counts() == (0, 0)
    assert bench.reported == []


def test_what_is_not_committed_is_not_published(bench: Bench) -> None:
    """Nor is what a failed event, a rolled back savepoint or events after a checkpoint have published."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            number = event.sequence_number
            with suppress(KeyError), context.connection.begin_nested():
                bench.handle(context, [event])
                if number == 7:
                    raise KeyError  # undone, and no failure of the event
            if number == 3:
                raise ValueError("a bad event")
            if number == 7:
                context.checkpoint(event)

    async def work() -> None:
        relay = bench.relay()
        await bench.process(handle, 0, 10)
        await relay.finish(["0"], 60.0)

    run(work())
    done = [0, 1, 2, 4, 5, 6]
    assert bench.found() == {KEYS[each]: [each] for each in done}
    assert dead_numbers(bench.database) == [3]
    assert bench.counts() == (0, 0)


def test_a_savepoint_takes_back_only_what_was_published_in_it(bench: Bench) -> None:
    """What came before it stays, and what was released inside it goes along."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        before, inside, released, after = ([event] for event in events)
        bench.handle(context, before)
        with suppress(KeyError), context.connection.begin_nested():
            bench.handle(context, inside)
            with context.connection.begin_nested():
                bench.handle(context, released)
            raise KeyError
        bench.handle(context, after)

    async def work() -> None:
        relay = bench.relay()
        await bench.process(handle, 0, 4)
        await relay.finish(["0"], 60.0)

    run(work())
    assert bench.found() == {KEYS[0]: [0], KEYS[3]: [3]}


def test_savepoints_that_nothing_releases_lose_nothing(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the call stores what is left, whatever a database does to release a savepoint."""
    monkeypatch.setattr(writer, "_SAVES", re.compile("SAVEPOINT"))
    run(_publish_and_relay(light_bench, 0, 100))
    assert light_bench.found() == expected(100)


def test_a_relay_notes_nothing_under_another_ones_producer(light_bench: Bench) -> None:
    """It has sent under the former producer: what of that is stored has to be looked up."""

    async def work() -> None:
        relay = light_bench.relay()
        await light_bench.publish(0, 100)
        (first, *_) = read_lanes(light_bench.database, CONSUMER, ["0"])
        with pytest.raises(FencedError):
            take_steps(light_bench.database, [LaneStep(first.lane_id, 7, 10, 10, 20)])
        assert read_lanes(light_bench.database, CONSUMER, ["0"])[0] == first
        await relay.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == expected(100)


class CutError(Exception):
    """The process ends here."""


def cut_at(patch: pytest.MonkeyPatch, step: str) -> list[str]:
    """Make relays end at a step of their work; the list gets the step then."""
    cuts: list[str] = []

    def end(*_: object) -> NoReturn:
        cuts.append(step)
        raise CutError

    def lose(sender: RepeatableSender, *_: object) -> None:
        cuts.append(step)
        sender.close(ClosedError("The answer was lost."))

    def take(database: Database, steps: Sequence[LaneStep]) -> set[str]:
        if any(step.relayed_until for step in steps):
            end()
        return take_steps(database, steps)

    if step == "before it sends":
        patch.setattr(OutboxRelay, "_send", end)
    elif step == "before the acknowledgement":
        patch.setattr(RepeatableSender, "on_settled", lose)
    else:
        patch.setattr(relay, "take_steps", take)
    return cuts


async def work_off(begun: OutboxRelay) -> None:
    """All turns until nothing is left to do."""
    while await begun._turn():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before it sends", "before the acknowledgement", "before it deletes"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first batch", "later batch"])
def test_a_relay_that_ends_anywhere_is_continued(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str, is_first: bool
) -> None:
    """The next one finds out what is stored: nothing is lost, and nothing comes twice."""

    async def work() -> None:
        begun = bench.relay()
        if not is_first:
            await bench.publish(0, 100)
            await work_off(begun)
        await bench.publish(0 if is_first else 100, 300)
        with monkeypatch.context() as patch:
            cuts = cut_at(patch, step)
            with suppress(CutError):
                await work_off(begun)
            assert cuts
        bench.outbox.relays.clear()
        bench.reported.clear()
        await begun._connector.close()
        await bench.relay_all()

    run(work())
    assert bench.found() == expected(300)
    assert bench.counts() == (0, 0)
    assert bench.reported == []


@pytest.mark.slow
def test_two_relays_at_once_send_everything_once(bench: Bench) -> None:
    """A former owner that does not know it yet: they complete each other."""

    async def work() -> None:
        both = [bench.relay(), bench.relay()]
        for start in range(0, 500, 50):
            await bench.publish(start, start + 50)
            await asyncio.gather(*(each._turn() for each in both), return_exceptions=True)
        for each in both:
            await each.finish(["0"], 60.0)

    run(work())
    assert bench.found() == expected(500)
    assert bench.counts() == (0, 0)


@pytest.mark.parametrize("step", ["learn_message_bytes_max", "read_rows"])
@pytest.mark.slow
def test_a_later_owners_relay_is_no_alarm(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It continues a lane between two steps of this relay, whose look at the lane is old then."""
    monkeypatch.setattr(relay, "_ROWS_MAX", 1)
    attach, read = RepeatableSender.learn_message_bytes_max, lanes.read_rows

    async def work() -> None:
        loop = asyncio.get_running_loop()
        begun, later = light_bench.relay(), light_bench.relay()
        await light_bench.publish(0, 50)
        await light_bench.publish(50, 100)
        assert await begun._turn()  # it begins the producers

        async def continue_it() -> None:
            patch.undo()
            for _ in range(3):  # the first row of each lane is sent, and one of them deleted
                await later._turn()

        async def attach_late(sender: RepeatableSender) -> int | None:
            await continue_it()
            return await attach(sender)

        def read_late(*arguments: Any) -> object:
            asyncio.run_coroutine_threadsafe(continue_it(), loop).result(60)
            return read(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            if step == "read_rows":
                patch.setattr(relay, "read_rows", read_late)
            else:
                patch.setattr(RepeatableSender, "learn_message_bytes_max", attach_late)
            assert await begun._turn()
        await work_off(begun)
        for each in (begun, later):
            await each.finish(["0"], 60.0)

    run(work())
    assert light_bench.reported == []
    assert light_bench.found() == expected(100)
    assert light_bench.counts() == (0, 0)


def test_a_failure_of_a_lane_that_is_gone_is_forgotten(light_bench: Bench) -> None:
    """Its partition has another owner: the relay waits for its own work, and reports no error."""
    owned = ["0"]

    async def work() -> None:
        begun = light_bench.relay()
        begun._owned = lambda: owned
        await light_bench.publish(0, 100)
        with pytest.MonkeyPatch.context() as patch:
            cut_at(patch, "before the acknowledgement")
            for _ in range(2):
                await begun._turn()
        assert begun.statistics().error is not None
        owned.clear()
        await begun._turn()
        assert begun.statistics().error is None
        assert begun._wait_s() == relay._POLL_S
        await begun.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == expected(100)


@pytest.mark.slow
def test_a_lane_that_was_silent_asks_for_its_producer(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service may have forgotten it meanwhile: nothing is in doubt, as nothing was being sent."""
    monkeypatch.setattr(relay, "_KNOWN_S", 0.0)

    async def work() -> None:
        begun = light_bench.relay()
        await light_bench.publish(0, 100)
        await work_off(begun)
        await light_bench.forget_producers()
        await light_bench.publish(100, 200)
        await begun.finish(["0"], 60.0)

    run(work())
    assert light_bench.reported == []
    assert light_bench.found() == expected(200)
    assert light_bench.counts() == (0, 0)


@pytest.mark.slow
def test_a_forgotten_producer_is_replaced_if_nothing_is_in_doubt(light_bench: Bench) -> None:
    """The service remembers a limited number: a lane that was silent begins a new producer."""

    async def work() -> None:
        relay = light_bench.relay()
        await light_bench.publish(0, 100)
        await relay.finish(["0"], 60.0)
        await light_bench.forget_producers()
        relay = light_bench.relay()
        await light_bench.publish(100, 200)
        await relay.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == expected(200)
    assert light_bench.counts() == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["first stored", "later stored", "later not stored"])
def test_a_forgotten_producer_in_doubt_stops_its_lane(bench: Bench, case: str) -> None:
    """Whether the events are stored is not known, so none is sent, until an operator says which it is."""
    first, is_stored = 0 if case == "first stored" else 100, case != "later not stored"

    async def work() -> None:
        begun = bench.relay()
        if first:
            await bench.publish(0, first)
            await work_off(begun)
        await bench.publish(first, first + 100)
        if is_stored:
            with pytest.MonkeyPatch.context() as patch, suppress(CutError):
                cut_at(patch, "before it deletes")
                await work_off(begun)
        else:
            bench.move_lanes(sent_until=200)
        bench.outbox.relays.clear()
        await begun._connector.close()
        await bench.forget_producers()
        await bench.relay_all()

    run(work())
    assert {type(error) for error in bench.reported} == {OutboxInDoubtError}
    assert bench.found() == expected(first + 100 if is_stored else first)
    assert bench.counts() == (2, 100)
    bench.reported.clear()
    statements = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[is_stored]
    with bench.database.writing() as connection, connection.begin():
        lane_ids = connection.execute(sa.select(outbox_lane.c.lane_id)).scalars().all()
        for lane_id in lane_ids:
            for statement in statements.replace("LANE", lane_id).strip().removesuffix(";").split(";"):
                connection.execute(sa.text(statement))
    run(bench.relay_all())
    assert bench.reported == []
    assert bench.found() == expected(first + 100)
    assert bench.counts() == (0, 0)


def test_a_first_batch_is_not_repeated_to_a_service_that_may_have_forgotten_it(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the retries of one send: the answer is lost, and others write before it is sent again."""
    lost: set[RepeatableSender] = set()
    settle = RepeatableSender.on_settled

    def lose(sender: RepeatableSender, *arguments: Any) -> None:
        if sender in lost:
            settle(sender, *arguments)
        else:
            lost.add(sender)
            sender.on_detached(BrokenError("The answer was lost."))

    async def forget(*_: object) -> None:
        await light_bench.forget_producers()

    async def work() -> None:
        begun = light_bench.relay()
        await light_bench.publish(0, 100)
        with monkeypatch.context() as patch:
            patch.setattr(RepeatableSender, "on_settled", lose)
            patch.setattr(Connector, "wait_before_retry", forget)
            await begun.finish(["0"], 60.0)

    run(work())
    assert lost
    assert {type(error) for error in light_bench.reported} == {OutboxInDoubtError}
    assert all("(lane " in str(error) for error in light_bench.reported)
    assert light_bench.found() == expected(100)


@pytest.mark.slow
def test_a_first_batch_that_was_not_sent_is_sent_later(light_bench: Bench) -> None:
    """However many events of others followed: the service would know the producer if anything was stored."""

    async def work() -> None:
        begun = light_bench.relay()
        await light_bench.publish(0, 100)
        with pytest.MonkeyPatch.context() as patch, suppress(CutError):
            cut_at(patch, "before it sends")
            await work_off(begun)
        light_bench.outbox.relays.clear()
        await begun._connector.close()
        await light_bench.send_others(2000)
        await light_bench.relay_all()

    run(work())
    assert light_bench.reported == []
    assert light_bench.found() == expected(100)


def test_a_database_older_than_its_hub_is_noticed(light_bench: Bench) -> None:
    """A restored backup would publish its events a second time, under numbers that the service has."""

    async def work() -> None:
        relay = light_bench.relay()
        await light_bench.publish(0, 100)
        await relay.finish(["0"], 60.0)
        light_bench.move_lanes(next_number=10, relayed_until=10, sent_until=10)
        relay = light_bench.relay()
        await light_bench.publish(100, 200)
        await relay.finish(["0"], 60.0)

    run(work())
    assert {type(error) for error in light_bench.reported} == {OutboxInDoubtError}
    assert light_bench.found() == expected(100)


def lane(**changes: Any) -> Lane:
    """A lane whose producer has begun at event 50, when the target had 1,000."""
    return replace(Lane("lane", "0", "target", "1", 90, 50, 50, 7, 1, 50, 1000), **changes)


@pytest.mark.parametrize(
    ("changes", "stored", "known_since", "start"),
    [
        ({"producer_epoch": 0}, 0, None, None),
        ({}, 0, None, 50),
        ({"sent_until": 90}, 10, None, 60),
        ({"sent_until": 90, "relayed_until": 60}, 10, None, 60),
        ({"sent_until": 90, "relayed_until": 60}, 40, None, 90),
        ({"sent_until": 90}, 0, 1000, 50),  # it would be known, so nothing of it is stored
        ({"sent_until": 90}, 0, 1001, "in doubt"),
        ({"sent_until": 90}, 0, None, "in doubt"),
        ({"sent_until": 90, "relayed_until": 60}, 0, 1000, "in doubt"),  # forgotten: it had stored 10
        ({"sent_until": 90, "relayed_until": 60}, 5, None, None),  # an earlier log was restored
        ({"sent_until": 60, "relayed_until": 60}, 0, 9999, None),  # forgotten, and nothing in doubt
        ({"sent_until": 60, "relayed_until": 60}, 11, None, "in doubt"),  # an earlier database
        ({}, 1, None, "in doubt"),
    ],
)
def test_where_a_relay_continues(
    changes: dict[str, int], stored: int, known_since: int | None, start: object
) -> None:
    """Each row of the table of ``find_start``, at its edges."""
    if start == "in doubt":
        with pytest.raises(OutboxInDoubtError):
            find_start(lane(**changes), stored, known_since)
    else:
        assert find_start(lane(**changes), stored, known_since) == start


@pytest.mark.slow
def test_a_producer_that_has_used_its_numbers_is_replaced(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are 31 bits, and a lane's have no end; nor have epochs."""
    monkeypatch.setattr(lanes, "NUMBERS_MAX", 60)
    monkeypatch.setattr(lanes, "EPOCHS", 3)
    ids: set[int] = set()

    async def work() -> None:
        for start in range(0, 600, 60):
            relay = light_bench.relay()
            await light_bench.publish(start, start + 60)
            await relay.finish(["0"], 60.0)
            with light_bench.database.read() as connection:
                ids.update(connection.execute(sa.select(outbox_lane.c.producer_id)).scalars())

    run(work())
    assert light_bench.found() == expected(600)
    assert light_bench.counts() == (0, 0)
    assert len(ids) > 4  # two lanes


def test_a_full_outbox_pauses_its_partition(light_bench: Bench) -> None:
    """A hub that does not answer costs a bounded number of bytes; then everything continues by itself."""
    light_bench.outbox.bytes_max = 1000

    async def work() -> None:
        relay = light_bench.relay()
        await light_bench.publish(0, 100)
        with pytest.raises(PartitionPausedError, match="are not in their hubs yet; 1,000 are allowed"):
            await light_bench.publish(100, 200)
        await work_off(relay)
        await light_bench.publish(100, 200)
        await relay.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == expected(200)


@pytest.mark.slow
def test_one_transaction_may_publish_more_than_the_bound(light_bench: Bench) -> None:
    """Else it would be repeated for ever: nothing that it has published itself can be sent before."""
    light_bench.outbox.bytes_max = 1000

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            with context.connection.begin_nested():
                light_bench.handle(context, [event])

    async def work() -> None:
        relay = light_bench.relay()
        await light_bench.process(handle, 0, 100)
        await relay.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == expected(100)


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [False, True], ids=["unknown hub", "full outbox"])
@pytest.mark.parametrize("is_wrapped", [False, True], ids=["caught", "wrapped"])
def test_a_pause_is_no_failure_of_an_event(light_bench: Bench, is_full: bool, is_wrapped: bool) -> None:
    """Also for a handler that catches each event's error: nothing becomes a dead letter."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            try:
                with context.connection.begin_nested():
                    target = light_bench.target if is_full else "nowhere"
                    context.publish(target, EventData(b"1"), partition_id="0" if is_full else None)
            except Exception as error:
                if is_wrapped:
                    raise ValueError from error
                context.dead_letter(event, error)

    async def work() -> None:
        relay = light_bench.relay()
        if is_full:
            light_bench.outbox.bytes_max = 0
            await light_bench.process(handle, 0, 1)
        with pytest.raises(PartitionPausedError):
            await light_bench.process(handle, 1, 20)
        await relay.finish([], 60.0)

    run(work())
    assert dead_numbers(light_bench.database) == []


def test_a_service_that_is_away_is_waited_for(light_bench: Bench) -> None:
    """Its hub is known from the database, so events are stored meanwhile, also by a process that starts."""
    run(_publish_and_relay(light_bench, 0, 100))

    async def work() -> None:
        light_bench.outbox = Outbox(light_bench.database)  # a new process without a relay
        await light_bench.publish(100, 200)
        await light_bench.relay_all()

    run(work())
    assert light_bench.found() == expected(200)


async def _publish_and_relay(light_bench: Bench, start: int, until: int) -> None:
    relay = light_bench.relay()
    await light_bench.publish(start, until)
    await relay.finish(["0"], 60.0)


def test_what_cannot_be_published_is_said_at_once(light_bench: Bench) -> None:
    """An event's own fault is one event's; a hub that does not exist pauses the partition."""
    raised: list[BaseException] = []

    def trying(publish: Callable[[TransactionContext], None]) -> Callable[..., None]:
        def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
            try:
                publish(context)
            except BaseException as error:
                raised.append(error)
                raise

        return handle

    small = EventData(b"1")
    cases: list[Callable[[TransactionContext], None]] = [
        lambda context: context.publish(light_bench.target, EventData(b"1" * 2_000_000)),
        lambda context: context.publish(light_bench.target, small, partition_key="a", partition_id="0"),
        lambda context: context.publish(light_bench.target, small, partition_id="9"),
    ]

    async def work() -> None:
        relay = light_bench.relay()
        for number, case in enumerate(cases):
            await light_bench.process(trying(case), number, number + 1)
        with pytest.raises(PartitionPausedError, match="'nowhere' cannot be published to"):
            await light_bench.process(trying(lambda context: context.publish("nowhere", small)), 3, 4)
        await relay.finish(["0"], 60.0)

    run(work())
    # A handler that fails is run again, alone.
    assert {type(error) for error in raised} == {
        EventTooLargeError,
        InvalidArgumentError,
        NotFoundError,
        PartitionPausedError,
    }
    assert dead_numbers(light_bench.database) == [0, 1, 2]
    assert light_bench.found() == {}


@pytest.mark.slow
def test_large_events_become_several_batches(light_bench: Bench) -> None:
    """A batch has at most what the service takes, and events without a key stay together and in order."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            context.publish(light_bench.target, EventData(b"%d" % event.sequence_number + b" " * 300_000))

    async def work() -> None:
        relay = light_bench.relay()
        await light_bench.process(handle, 0, 8)
        assert light_bench.counts()[0] == 3
        await relay.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == {None: list(range(8))}


def test_without_numbers_a_relay_says_what_is_missing(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on Azure: events come at least once, and the log names the hub."""
    monkeypatch.setattr("tidegate.client.partition_sender.IDEMPOTENT_BATCH_CAPABILITY", "another")
    run(_publish_and_relay(light_bench, 0, 100))
    assert light_bench.found() == expected(100)
    assert light_bench.counts() == (0, 0)
    assert f"The service of {light_bench.target} does not recognise repeated batches" in caplog.text


def test_rows_that_are_missing_stop_their_lane(light_bench: Bench) -> None:
    """They were deleted by hand: the others are not sent out of turn."""

    async def work() -> None:
        relay = light_bench.relay()
        await light_bench.publish(0, 100)
        with light_bench.database.writing() as connection, connection.begin():
            connection.execute(sa.delete(outbox).where(outbox.c.number == 0))
        await light_bench.publish(100, 200)
        await relay.finish(["0"], 60.0)

    run(work())
    assert {type(error) for error in light_bench.reported} == {BrokenError}
    assert light_bench.found() == {}


@pytest.mark.slow
def test_lanes_take_turns(light_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane with many rows leaves the next turn to the others."""
    monkeypatch.setattr(relay, "_ROWS_MAX", 2)
    monkeypatch.setattr(relay, "_LANES_MAX", 1)

    async def work() -> None:
        begun = light_bench.relay()
        for number in range(10):
            await light_bench.publish(number * 50, number * 50 + 50)
        for _ in range(8):
            await begun._turn()
        with light_bench.database.read() as connection:
            relayed = connection.execute(sa.select(outbox_lane.c.relayed_until)).scalars().all()
        assert all(relayed), relayed
        await begun.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == expected(500)


@pytest.mark.slow
def test_added_partitions_are_used(light_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay looks for them from time to time, and transactions use what it finds."""
    monkeypatch.setattr(relay, "_LAYOUT_S", 0.0)

    async def work() -> None:
        begun = light_bench.relay()
        await light_bench.publish(0, 50)
        light_bench.service.call(
            lambda server: server.broker.update_event_hub(light_bench.target, partition_count=5)
        )
        await work_off(begun)
        assert len(light_bench.outbox.layouts[light_bench.target].partition_ids) == 5
        assert read_hub(light_bench.database, light_bench.target) is not None
        await light_bench.publish(50, 100)
        await begun.finish(["0"], 60.0)

    run(work())
    assert {key: sorted(numbers) for key, numbers in light_bench.found().items()} == expected(100)
