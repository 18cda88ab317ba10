"""What the console sends, beside the broker itself: no browser, no port."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.console.explorer_support import make_hub, read_page

from tidegate.amqp.message import Message, Properties
from tidegate.amqp.types import Symbol
from tidegate.broker import Broker
from tidegate.console.explorer import sending as events_sending
from tidegate.console.explorer.codec import EventEncoder
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.sending import EventSender, SendRun
from tidegate.console.explorer.values import (
    EventQuery,
    RunState,
    SendPlan,
    SingleEvent,
    Target,
)
from tidegate.model.errors import (
    EventTooLargeError,
    InvalidArgumentError,
    NotFoundError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)
from tidegate.model.events import EventContents
from tidegate.model.json_path import JsonPath

_WAIT_S = 30.0
_TEXT = Properties(content_type=Symbol("text/plain"))


async def _ended(sender: EventSender, run_id: str) -> RunState:
    await _until(lambda: sender.run("hub", run_id).state is not RunState.SENDING)
    return sender.run("hub", run_id).state


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not is_so():  # noqa: ASYNC110  (the console's pages look now and then, too)
            await asyncio.sleep(0.01)


def _always() -> bool:
    return True


def _plan(**changed: object) -> SendPlan:
    bodies = [b'{"d": 1}', b'{"d": 2}']
    plan = {"bodies": bodies, "target": Target(), "repeats": 3, "events_per_s": 1000} | changed
    return SendPlan(**plan)  # type: ignore[arg-type]


def _send(
    sender: EventSender,
    body: bytes,
    message: Message,
    target: Target,
    *,
    may_go_on: Callable[[], bool] = _always,
) -> Coroutine[Any, Any, tuple[str, int]]:
    return sender.send("hub", lambda: SingleEvent(body, message, target), may_go_on=may_go_on)


def _start(
    sender: EventSender, plan: SendPlan, *, hub: str = "hub", may_go_on: Callable[[], bool] = _always
) -> Coroutine[Any, Any, SendRun]:
    return sender.start_run(hub, lambda: plan, may_go_on=may_go_on)


def _with_property(value: str) -> Message:
    return Message(application_properties={"p": value})


async def test_one_event_goes_where_it_is_sent(
    broker: Broker, events: BrokerEvents, sender: EventSender
) -> None:
    """By key as every SDK's would, to a partition, or in turns; too large a one is refused."""
    hub = await make_hub(broker, 4)
    message = Message(properties=_TEXT, application_properties={"n": "1"})

    async def send(target: Target, body: bytes = b"body") -> tuple[str, int]:
        return await _send(sender, body, message, target)

    partition_id, number = await send(Target(partition_key="key"))
    assert partition_id == hub.partition_for("key").partition_id
    found = (await events.event("hub", partition_id, number)).event.contents
    assert found == EventContents(b"body", {"n": "1"}, "key", "text/plain")
    assert (await send(Target(partition_id="3")))[0] == "3"
    assert len({(await send(Target()))[0] for _ in range(4)}) == 4
    with pytest.raises(EventTooLargeError):
        await send(Target(), b"x" * 2_000_000)
    with pytest.raises(NotFoundError):
        await send(Target(partition_id="9"))
    broker.throughput.set_units(1)
    broker.throughput.use_up(60)
    with pytest.raises(ServerBusyError):
        await send(Target())


async def test_nothing_is_stored_once_the_right_has_ended(broker: Broker, sender: EventSender) -> None:
    """Protects a revocation from what waits: the right is checked directly before each event or batch."""
    hub = await make_hub(broker, 1)
    with pytest.raises(UnauthorizedError, match="may no longer send"):
        await _send(sender, b"x", Message(), Target(), may_go_on=lambda: False)
    checks = iter([True] * 3)
    plan = _plan(bodies=[b"x" * 900_000] * 10, repeats=10, events_per_s=10_000)
    run = await _start(sender, plan, may_go_on=lambda: next(checks, False))
    assert await _ended(sender, run.run_id) is RunState.STOPPED
    assert "may no longer send" in run.error
    assert run.sent == 3  # one per batch, of a hundred in its first step
    assert hub.partition("0").next_sequence_number == 3


async def test_a_set_is_sent_whole(broker: Broker, events: BrokerEvents, sender: EventSender) -> None:
    """Each line as often as asked for, in order per partition, with its key, type and properties."""
    hub = await make_hub(broker, 4)
    target = Target(key_path=JsonPath.parse(".d"))
    standard = Properties(content_type=Symbol("application/json"))
    plan = _plan(target=target, message=Message(properties=standard, application_properties={"set": "a"}))
    run = await _start(sender, plan)
    assert await _ended(sender, run.run_id) is RunState.DONE
    done = sender.run("hub", run.run_id)
    assert (done.sent, done.total, done.error) == (6, 6, "")
    contents = [event.contents for event in (await read_page(events, EventQuery("hub"))).events]
    expected = [
        EventContents(b'{"d": %d}' % d, {"set": "a"}, str(d), "application/json")
        for d in (1, 2)
        for _ in range(3)
    ]
    assert sorted(contents, key=str) == sorted(expected, key=str)
    assert {hub.partition_for(str(d)).partition_id for d in (1, 2)} == {
        event.partition_id for event in (await read_page(events, EventQuery("hub"))).events
    }


async def test_a_set_stops_when_told(broker: Broker, sender: EventSender) -> None:
    """By its button, and by the loss of the right to send; what was stored is what it says."""
    hub = await make_hub(broker, 1)
    run = await _start(sender, _plan(repeats=1_000_000, events_per_s=50))
    sender.stop_run("HUB", run.run_id)
    assert await _ended(sender, run.run_id) is RunState.STOPPED
    steps = iter((True, True))
    other = await _start(sender, _plan(repeats=1000, events_per_s=50), may_go_on=lambda: next(steps, False))
    assert await _ended(sender, other.run_id) is RunState.STOPPED
    assert "may no longer send" in sender.run("hub", other.run_id).error
    told = [sender.run("hub", known).sent for known in (run.run_id, other.run_id)]
    assert sum(told) == hub.partitions[0].next_sequence_number
    assert told[1] == 10
    assert [known.run_id for known in sender.runs("hub")] == [other.run_id, run.run_id]
    with pytest.raises(NotFoundError):
        sender.run("other", run.run_id)


@pytest.mark.slow
async def test_a_busy_service_is_waited_for(broker: Broker, sender: EventSender) -> None:
    """Throughput units hold a set up and lose nothing of it."""
    hub = await make_hub(broker, 1)
    broker.throughput.set_units(1)
    broker.throughput.use_up(600)
    run = await _start(sender, _plan())
    await _until(lambda: sender.run("hub", run.run_id).waits > 0)
    assert sender.run("hub", run.run_id).sent == 0
    broker.throughput.set_units(None)
    assert await _ended(sender, run.run_id) is RunState.DONE
    assert hub.partitions[0].next_sequence_number == 6


async def test_a_set_fails_with_a_reason(broker: Broker, sender: EventSender) -> None:
    """A hub that is deleted under it, or whose limit falls below its lines."""
    await make_hub(broker, 1)
    run = await _start(sender, _plan(repeats=1000, events_per_s=20))
    await broker.delete_event_hub("hub")
    assert await _ended(sender, run.run_id) is RunState.FAILED
    assert sender.run("hub", run.run_id).error
    await make_hub(broker, 1)
    plan = _plan(bodies=[b"x" * 2_000], repeats=1000, events_per_s=20)
    run = await _start(sender, plan)
    await broker.update_event_hub("hub", event_bytes_max=1024)
    assert await _ended(sender, run.run_id) is RunState.FAILED
    assert sender.run("hub", run.run_id).next_step == "Send fewer events per batch, or smaller ones."


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bodies": []}, "lines"),
        ({"repeats": 0}, "repeat"),
        ({"repeats": 10_000_000}, "events"),
        ({"events_per_s": 0}, "per second"),
        ({"events_per_s": 10**6}, "per second"),
        ({"bodies": [b"x" * 1024 * 1024] * 17}, "bytes"),
        ({"target": Target(key_path=JsonPath.parse(".none"))}, "Line 1: .*Nothing was sent"),
    ],
    ids=["no-lines", "no-repeats", "too-many", "no-rate", "too-fast", "too-large", "no-key"],
)
async def test_sets_are_bounded(
    broker: Broker, sender: EventSender, changed: dict[str, object], words: str
) -> None:
    """What would run for ever or fill the memory is refused before anything is sent."""
    hub = await make_hub(broker, 1)
    with pytest.raises(InvalidArgumentError, match=words):
        await _start(sender, _plan(**changed))
    assert hub.partitions[0].next_sequence_number == 0


async def test_lines_are_as_large_as_any_event(broker: Broker, sender: EventSender) -> None:
    """The line that the hub would not take is named; the largest that it takes is sent."""
    hub = await make_hub(broker, 1)
    bytes_max = hub.event_bytes_max
    with pytest.raises(EventTooLargeError, match=r"Line 2: .* bytes with its properties"):
        await _start(
            sender,
            _plan(bodies=[b"x", b"x" * 1000], message=_with_property("x" * (bytes_max - 900))),
        )
    assert hub.partitions[0].next_sequence_number == 0
    largest = b"x" * (bytes_max - 8)  # a data section's beginning has 8 bytes
    run = await _start(sender, _plan(bodies=[largest], repeats=1))
    assert await _ended(sender, run.run_id) is RunState.DONE
    with pytest.raises(EventTooLargeError):
        await _start(sender, _plan(bodies=[largest + b"x"], repeats=1))


async def test_a_set_with_large_properties_stays_small(
    broker: Broker, sender: EventSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of text cannot become gigabytes of events: what is encoded ends at the limit."""
    await make_hub(broker, 1)
    encoded_bytes = 0

    class Counting(EventEncoder):
        def encode(self, body: bytes, partition_key: str | None) -> bytes:
            nonlocal encoded_bytes
            encoded = super().encode(body, partition_key)
            encoded_bytes += len(encoded)
            return encoded

    monkeypatch.setattr(events_sending, "EventEncoder", Counting)
    plan = _plan(bodies=[b"x"] * 4_000, repeats=1, message=_with_property("x" * 64 * 1024))
    with pytest.raises(InvalidArgumentError, match="67,108,864 bytes, the key and the properties"):
        await _start(sender, plan)
    assert encoded_bytes < 68_000_000


@pytest.mark.parametrize("partition_id", [None, "0"], ids=["by-key", "fixed"])
async def test_a_long_key_is_refused_unencoded(
    broker: Broker, sender: EventSender, monkeypatch: pytest.MonkeyPatch, partition_id: str | None
) -> None:
    """A key over the limit is not made anything of, wherever it would go."""
    hub = await make_hub(broker, 1)

    def unexpected(encoder: EventEncoder, body: bytes, partition_key: str | None) -> bytes:
        pytest.fail("it is encoded")

    monkeypatch.setattr(EventEncoder, "encode", unexpected)
    target = Target(partition_id, partition_key="k" * 129)
    for words, started in (
        (
            "The partition key has 129 characters",
            _send(sender, b"x", Message(), target),
        ),
        ("Line 1: The partition key", _start(sender, _plan(target=target))),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            await started
    monkeypatch.undo()
    long = [b'{"d": "%s"}' % (b"k" * length) for length in (128, 129)]
    with pytest.raises(InvalidArgumentError, match="Line 2: The partition key has 129"):
        await _start(
            sender, _plan(bodies=long, target=Target(key_path=JsonPath.parse(".d"))), may_go_on=_always
        )
    assert hub.partitions[0].next_sequence_number == 0


async def test_a_key_is_not_looked_for_in_a_large_body(
    broker: Broker, sender: EventSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the event loop, which waits while JSON is parsed: a form of 16 MB held it up for nine seconds,
    and took half a gigabyte."""
    await make_hub(broker, 1)
    parsed: list[int] = []

    def parse(path: JsonPath, document: bytes) -> str:
        parsed.append(len(document))
        return "key"

    monkeypatch.setattr(JsonPath, "text_in", parse)
    target, large = Target(key_path=JsonPath.parse(".d")), b"x" * (64 * 1024 + 1)
    for started in (
        _send(sender, large, Message(), target),
        _start(sender, _plan(target=target, bodies=[large])),
    ):
        with pytest.raises(InvalidArgumentError, match="65,537 bytes; keys are looked for in 65,536"):
            await started
    await _send(sender, large[1:], Message(), target)
    assert parsed == [64 * 1024]


class _Lines(list[Any]):  # Any: lines of either kind
    """A list whose end can be seen."""


async def test_a_set_leaves_only_figures(
    broker: Broker, sender: EventSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is sent its lines are held once, and then no more: 32 ended ones are remembered."""
    await make_hub(broker, 1)
    held: list[weakref.ref[_Lines]] = []

    def encoded(plan: SendPlan, event_bytes_max: int, room: int) -> tuple[_Lines, int]:
        found, size = events_sending_encoded(plan, event_bytes_max, room)
        lines = _Lines(found)
        held.append(weakref.ref(lines))
        return lines, size

    events_sending_encoded = events_sending._encoded
    monkeypatch.setattr(events_sending, "_encoded", encoded)
    bodies = _Lines([b"line 1", b"line 2"])
    given = weakref.ref(bodies)
    run = await _start(sender, _plan(bodies=bodies, repeats=500, events_per_s=50))
    del bodies
    await _until(lambda: given() is None)
    assert held[0]() is not None
    assert sender.run("hub", run.run_id).state is RunState.SENDING
    sender.stop_run("hub", run.run_id)
    assert await _ended(sender, run.run_id) is RunState.STOPPED
    await _until(lambda: held[0]() is None)
    assert sender.run("hub", run.run_id).total == 1000


async def test_sets_are_bounded_together(
    broker: Broker, sender: EventSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight of the largest would hold 512 MB for as long as somebody likes. A hub leaves others as many bytes
    as it has; a set that ends makes room."""
    await make_hub(broker, 1)
    for name in ("other", "third"):
        await broker.create_event_hub(name, partition_count=1)
    plan = _plan(bodies=[b"x" * 400], repeats=1000, events_per_s=1)
    monkeypatch.setattr(events_sending, "_ALL_ENCODED_BYTES_MAX", 1_000)
    run = await _start(sender, plan)
    with pytest.raises(QuotaExceededError, match="1,000 are the maximum"):
        await _start(sender, plan)
    await _start(sender, plan, hub="other")
    with pytest.raises(QuotaExceededError, match="1,000 are the maximum"):
        await _start(sender, plan, hub="third")
    sender.stop_run("hub", run.run_id)
    await _ended(sender, run.run_id)
    await _start(sender, plan, hub="third")


async def test_only_so_many_sets_at_once(broker: Broker, sender: EventSender) -> None:
    """Of eight, one hub gets four, however they are started; others find places, and a set that ends makes
    room."""
    await make_hub(broker, 1)
    await broker.create_event_hub("other", partition_count=1)
    plan = _plan(repeats=1000, events_per_s=1)

    async def start(hub: str) -> list[SendRun]:
        runs = await asyncio.gather(
            *(_start(sender, plan, hub=hub) for _ in range(5)),
            return_exceptions=True,
        )
        refused = [run for run in runs if isinstance(run, BaseException)]
        assert {type(error) for error in refused} == {QuotaExceededError}
        return [run for run in runs if not isinstance(run, BaseException)]

    started = await start("Hub")
    assert (len(started), len(await start("other"))) == (4, 2)
    sender.stop_run("hub", started[0].run_id)
    await _ended(sender, started[0].run_id)
    await _start(sender, plan, hub="other")


async def test_ended_sets_of_one_hub_leave_others_theirs(
    broker: Broker, sender: EventSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of a second of small sets took the figures of all others' from their pages."""
    await make_hub(broker, 1)
    await broker.create_event_hub("other", partition_count=1)
    monkeypatch.setattr(events_sending, "_ENDED_RUNS_MAX", 2)
    first = await _start(sender, _plan(), hub="other")
    await _until(lambda: first.state is RunState.DONE)
    for spelling in ("hub", "Hub", "HUB"):
        run = await _start(sender, _plan(), hub=spelling)
        await _ended(sender, run.run_id)
    assert sender.runs("other") == [first]
    assert sender.runs("hub") == [run]
