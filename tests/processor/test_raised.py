"""Errors that do not derive from Exception, or that Python cannot print: no partition stands still."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click
import pytest
from tests.processor.hosts import STALLING, Recorder, Subject, checkpoint_all, publish, until
from tests.support.hard_errors import PanicError, fail_together, panic, parse_badly

from tidegate.model.errors import TidegateError
from tidegate.model.events import ReceivedEvent
from tidegate.processor import CloseReason, GroupKey, Lease, MemoryStore, PartitionContext
from tidegate.processor.pump.pump import PartitionPump
from tidegate.processor.raised import is_of_call
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

Handle = Callable[[PartitionContext, Sequence[ReceivedEvent]], Awaitable[None]]


RAISING = pytest.mark.parametrize("fail", [panic, fail_together, parse_badly])


@RAISING
async def test_a_batch_comes_again_as_after_an_exception(
    hub_service: HubService, hub: str, store: MemoryStore, fail: Callable[[], None]
) -> None:
    """It goes to process_error, and nothing is skipped; the session and the host continue."""
    tries = iter(range(2))

    async def fail_twice(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        if events[0].sequence_number == 4:
            for _ in tries:
                fail()
        await context.checkpoint()

    subject = Subject(hub_service, hub, store, fail_twice, max_batch_size=4)
    await publish(hub_service, hub, 10)
    async with subject.running():
        await until(lambda: len(subject.numbers) == 18)
        assert subject.host.statistics().partitions["0"].error is None
    assert subject.numbers == [*range(4), *[4, 5, 6, 7] * 2, *range(4, 10)]
    assert subject.reported == [], "what a handler raises is its own affair"
    assert subject.journal.of("0").count("open") == 1
    assert [type(error) for error in subject.journal.errors] == [TidegateError] * 2
    causes = {type(error.__cause__).__name__ for error in subject.journal.errors}
    assert causes <= {"PanicError", "BaseExceptionGroup", "SystemExit"}
    assert f"raised {causes.pop()}" in str(subject.journal.errors[0])


async def test_an_error_that_python_cannot_print_is_logged(
    hub_service: HubService,
    hub: str,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python 3.13 and later raise for an unknown attribute whose name, here an event's, cannot be encoded."""

    class Printed(traceback.TracebackException):
        def __init__(
            self, kind: type[BaseException], error: BaseException, *others: Any, **named: Any
        ) -> None:
            super().__init__(kind, error, *others, **named)
            if isinstance(error, AttributeError):
                "\ud800".encode()

    tries = iter(range(2))

    async def fail_twice(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        for _ in tries:
            await context.on_unknown()  # type: ignore[attr-defined]

    subject = Subject(hub_service, hub, store, fail_twice)
    await publish(hub_service, hub, 3)
    with monkeypatch.context() as patch:  # pytest itself prints errors
        patch.setattr(traceback, "TracebackException", Printed)
        async with subject.running():
            await until(lambda: subject.numbers == [0, 1, 2] * 3)
    assert subject.journal.of("0").count("open") == 1
    assert subject.reported == []
    assert "a batch failed (AttributeError: " in caplog.text


@RAISING
async def test_the_other_calls_of_a_processor(
    hub_service: HubService, hub: str, store: MemoryStore, fail: Callable[[], None]
) -> None:
    """An open is tried again; what process_error and close raise is only reported."""
    opened = 0

    class Failing(Recorder):
        async def open(self, context: PartitionContext) -> None:
            nonlocal opened
            opened += 1
            if opened == 1:
                fail()
            await super().open(context)

        async def process_error(self, context: PartitionContext, error: Exception) -> None:
            await super().process_error(context, error)
            fail()

        async def close(self, context: PartitionContext, reason: CloseReason) -> None:
            await super().close(context, reason)
            fail()

    failures = iter([ValueError("once")])

    async def fail_once(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        for failure in failures:
            raise failure

    subject = Subject(hub_service, hub, store, fail_once)
    await publish(hub_service, hub, 3)
    async with subject.host.running(factory=lambda context: Failing(subject.journal, fail_once)):
        await until(lambda: subject.numbers == [0, 1, 2] * 2)
    assert subject.journal.error_types() == ["TidegateError", "ValueError"]
    assert subject.journal.of("0")[-1] == "close shutdown"
    # Of open, then of process_error, close, process_error, close.
    assert [type(error) for error in subject.reported] == [TidegateError] * 5


@pytest.mark.parametrize("error", [PanicError("of the pump"), GeneratorExit(), asyncio.CancelledError()])
async def test_an_error_of_the_pump_itself_ends_the_host(
    hub_service: HubService,
    hub: str,
    store: MemoryStore,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its lease would be kept, and neither this host nor another one would process the partition."""

    async def fail(*arguments: object) -> None:
        raise error

    async def fail_to_open(*arguments: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(PartitionPump, "_decide_step", fail)
    monkeypatch.setattr(Recorder, "open", fail_to_open)
    subject = Subject(hub_service, hub, store)
    with pytest.raises(TidegateError):
        async with subject.running():
            await asyncio.wait_for(subject.host.wait(), 30)
    assert [type(reported) for reported in subject.reported] == [TidegateError]
    leases = (await store.list_leases(subject.host.group)).leases
    assert [lease.owner for lease in leases.values()] == [""]


class _FailingStore(MemoryStore):
    """Panics at the first of each kind of call that a pump makes of it."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.calls_in_vain = {"list_checkpoints": 1, "acquire again": 1}

    def _fail(self, what: str) -> None:
        if self.calls_in_vain[what]:
            self.calls_in_vain[what] -= 1
            raise PanicError(what)

    async def list_checkpoints(self, group: GroupKey) -> Any:
        self._fail("list_checkpoints")
        return await super().list_checkpoints(group)

    async def acquire(self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None) -> Any:
        if expected is not None and expected.owner == owner:
            self._fail("acquire again")
        return await super().acquire(group, partition_id, owner, expected=expected)


async def test_a_store_that_panics_is_asked_again(hub_service: HubService, hub: str) -> None:
    """As after an Exception: the partition is opened again, under a new epoch where it was stalled."""
    hanging = iter([asyncio.Event()])

    async def hang_once(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in hanging:
            await event.wait()
        await context.checkpoint()

    store = _FailingStore()
    subject = Subject(hub_service, hub, store, hang_once, manager_options=STALLING)
    await publish(hub_service, hub, 3)
    async with subject.running():
        await until(lambda: subject.host.statistics().events_processed == 3)
    types = [type(error.__cause__ or error).__name__ for error in subject.reported]
    assert types == ["PanicError", "PartitionStalledError", "PanicError"]
    assert not any(store.calls_in_vain.values())


class _Calling(list[Exception]):
    """What on_exception gets, and what it then does."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call

    def append(self, error: Exception) -> None:
        super().append(error)
        self._call()


async def test_a_callback_that_panics_is_logged(
    hub_service: HubService, hub: str, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """on_exception cannot end a pump, either."""

    class FailingOnce(Recorder):
        async def open(self, context: PartitionContext) -> None:
            await super().open(context)
            if self.journal.of("0").count("open") == 1:
                raise ValueError("once")

    subject = Subject(hub_service, hub, store, checkpoint_all)
    subject.reported = _Calling(panic)
    await publish(hub_service, hub, 3)
    async with subject.host.running(factory=lambda context: FailingOnce(subject.journal, checkpoint_all)):
        await until(lambda: subject.numbers == [0, 1, 2])
    assert "on_exception of host" in caplog.text


# --- what ends the program nevertheless -------------------------------------------------------------------


@contextmanager
def _signalled(handler: Callable[[int, FrameType | None], object]) -> Iterator[Callable[[], None]]:
    """Gives a call that sends this process a signal with this handler."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield lambda: signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def _exit(*arguments: object) -> None:
    raise SystemExit(3)


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", ["ctrl-c", "signal"])
def test_a_handler_in_which_the_program_is_ended(
    hub_service: HubService, hub: str, store: MemoryStore, end: str
) -> None:
    """Ctrl-C, and a signal for which the program exits, come wherever the main thread is."""

    async def run(send: Callable[[], None]) -> None:
        async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
            send()

        subject = Subject(hub_service, hub, store, handle)
        await publish(hub_service, hub, 3)
        async with subject.running():
            await asyncio.wait_for(subject.host.wait(), 30)

    with _signalled(_exit) as send, pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        asyncio.run(run(_interrupt if end == "ctrl-c" else send))
    assert caught.type is (KeyboardInterrupt if end == "ctrl-c" else SystemExit)


def test_a_callback_may_end_the_program(hub_service: HubService, hub: str, store: MemoryStore) -> None:
    """Also from within a session, here for what process_error raises."""

    class Failing(Recorder):
        async def process_error(self, context: PartitionContext, error: Exception) -> None:
            raise ValueError("second")

    async def fail(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        raise ValueError("first")

    async def run() -> None:
        subject = Subject(hub_service, hub, store)
        subject.reported = _Calling(lambda: _exit() if len(subject.reported) == 1 else None)
        await publish(hub_service, hub, 3)
        async with subject.host.running(factory=lambda context: Failing(subject.journal, fail)):
            await asyncio.wait_for(subject.host.wait(), 30)

    with pytest.raises(SystemExit) as caught:
        asyncio.run(run())
    assert caught.value.code == 3


class _Exiting:
    def __call__(self, *arguments: object) -> None:
        sys.exit(3)


def _reset_and_exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(3)


@pytest.mark.parametrize("handler", [_exit, functools.partial(_exit, 3), _Exiting(), _reset_and_exit])
def test_the_exit_of_a_signal_is_not_of_the_call(handler: Callable[..., object]) -> None:
    """However the program's signal handler is written."""
    with _signalled(handler) as send:
        with pytest.raises(SystemExit) as caught:
            send()
        assert not is_of_call(caught.value)


@click.command()
@click.option("--speed", type=float)
def _command(speed: float) -> None:
    """Is never reached."""


@pytest.mark.parametrize("parse", [parse_badly, lambda: _command(["--speed", "fast"])])
def test_invalid_arguments_are_of_the_call(parse: Callable[[], None]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse()
    assert is_of_call(caught.value)
    assert is_of_call(BaseExceptionGroup("with another", [caught.value, ValueError()]))


async def test_an_exit_of_another_thread_is_of_the_call() -> None:
    """Also where the main thread waits for it."""
    with pytest.raises(SystemExit) as caught:
        await asyncio.to_thread(_exit)
    assert is_of_call(caught.value)
    assert await asyncio.to_thread(is_of_call, SystemExit(3))


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), SystemExit(2)]
)
def test_an_interruption_is_not_of_the_call(error: BaseException) -> None:
    """A group is judged by what it holds, as a nursery's with Ctrl-C."""
    assert not is_of_call(error)
    group = BaseExceptionGroup("outer", [ValueError(), BaseExceptionGroup("inner", [error])])
    assert not is_of_call(group)
