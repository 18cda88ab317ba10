"""Live pages leave the event loop to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.console.frame import live, pages
from tidegate.console.frame.live import LiveStreams
from tidegate.console.frame.pages import Drawn, Pages
from tidegate.model.errors import ServerBusyError
from tidegate.transport.tasks import TaskOwner


async def test_live_pages_take_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and whatever differs between them: one is drawn after the other, with pauses of
    nine times the work; after a failure, too."""
    now, drawn = 100.0, list[float]()

    async def pass_time(seconds: float) -> None:
        nonlocal now
        now += max(0.0, seconds)
        await asyncio.sleep(0)

    def draw() -> int:
        nonlocal now
        drawn.append(now)
        now += 0.5
        if len(drawn) == 2:
            raise ValueError("not this one")
        return len(drawn)

    sessions: Any = SimpleNamespace(call_at_end=lambda call: None)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now))
    # Of that module alone: a service of other tests, in a thread of this process, sleeps as well.
    monkeypatch.setattr(live, "asyncio", SimpleNamespace(sleep=pass_time, Lock=asyncio.Lock))
    streams = LiveStreams(sessions)
    found = await asyncio.gather(*(streams.draw(draw) for _ in range(4)), return_exceptions=True)
    assert [found[0], *found[2:]] == [1, 3, 4]
    assert isinstance(found[1], ValueError)
    assert drawn == [100.0, 105.0, 110.0, 115.0]


async def test_what_live_pages_find_takes_of_the_same_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of a page's values count; what they wait for does not. They end as if awaited directly."""
    now = 100.0

    async def pass_time(seconds: float) -> None:
        nonlocal now
        now += max(0.0, seconds)

    async def find(failure: Exception | None) -> str:
        nonlocal now
        now += 0.25
        await asyncio.sleep(0)
        if failure is not None:
            raise failure
        now += 0.25
        return "values"

    sessions: Any = SimpleNamespace(call_at_end=lambda call: None)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(live, "asyncio", SimpleNamespace(sleep=pass_time, Lock=asyncio.Lock))
    streams = LiveStreams(sessions)
    assert await streams.charged(find(None)) == "values"
    # A rest begins with the first step, so the second one is a part of it.
    assert await streams.draw(lambda: now) == 100.25 + 9 * 0.25 + 9 * 0.25
    with pytest.raises(ValueError, match="not this one"):
        await streams.charged(find(ValueError("not this one")))
    async with TaskOwner("test") as tasks:
        waiting = tasks.start(streams.charged(asyncio.sleep(3600)), name="waiting")
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_page_finds_its_values_in_that_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a live page reads for its values counts as much as drawing them."""

    class Streams:
        """Those of a console, with what was charged to them."""

        charged_count = 0
        render: Callable[[], Awaitable[Mapping[str, str] | None]]

        async def charged(self, work: Coroutine[Any, Any, Mapping[str, Any]]) -> Mapping[str, Any]:
            self.charged_count += 1
            return await work

        async def draw(self, render: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
            return render()

        def stream(self, request: object, render: Any, *, every_s: float) -> None:
            self.render = render

    async def find(request: object) -> Mapping[str, Any]:
        assert streams.charged_count == 1
        return {"value": 7}

    async def ask(key: object, draw: Callable[[], Awaitable[Drawn]], *, at_most_s: float | None) -> Drawn:
        return await draw()

    for name in ("rights_of", "session_of"):
        monkeypatch.setattr(pages, name, lambda request: None)
    monkeypatch.setattr(pages, "is_personal", lambda template: False)
    monkeypatch.setattr(pages, "fragments", lambda request, parts, values: {"part": str(values["value"])})
    streams, request = Streams(), SimpleNamespace(scope={"path": "/x", "query_string": b""})
    console: Any = SimpleNamespace(streams=streams, drawn=SimpleNamespace(ask=ask))
    Pages(console).live(request, find, {"part": "x.html"})  # type: ignore[arg-type]
    assert await streams.render() == {"part": "7"}
    assert streams.charged_count == 1


async def test_what_differs_is_found_in_that_tenth_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream escapes and compares by itself, of pages with millions of characters; and a stream keeps no
    text. Only what differs is sent."""

    class Counted(LiveStreams):
        count = 0

        async def draw(self, render: Callable[[], Any]) -> Any:
            self.count += 1
            return await super().draw(render)

    pages_of_a_stream: list[dict[str, str] | None] = [
        {"a": "<1>", "b": "2"},
        {"a": "<1>", "b": "3"},
        {},
        None,
    ]

    async def render() -> dict[str, str] | None:
        return pages_of_a_stream.pop(0)

    sessions: Any = SimpleNamespace(call_at_end=lambda call: None, rights=lambda session: object())
    monkeypatch.setattr(live, "session_of", lambda request: None)
    streams = Counted(sessions)
    answer: Any = streams.stream(cast(Any, None), render, every_s=0.0)
    sent = [chunk async for chunk in answer.body_iterator]
    assert sent == [
        "event: a\ndata: &lt;1&gt;\n\nevent: b\ndata: 2\n\n",
        "event: b\ndata: 3\n\n",
        "event: end\ndata: \n\n",
    ]
    assert streams.count == 3


async def test_pages_that_are_not_read_have_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the event loop: a client that does not read keeps even the beginning of its pages waiting, and
    reads them all at once later. A place is free again when its answer ends; answers that never begin have
    none."""

    async def wait(*_: object) -> Any:
        await asyncio.sleep(3600)

    async def render() -> dict[str, str]:
        return {}

    monkeypatch.setattr(live, "STREAMS_MAX", 2)
    session = SimpleNamespace(hub="hub", policy_name="reader")
    monkeypatch.setattr(live, "session_of", lambda request: session)
    sessions: Any = SimpleNamespace(call_at_end=lambda call: None, rights=lambda session: object())
    streams = LiveStreams(sessions)

    def answer() -> Coroutine[Any, Any, None]:
        return streams.stream(cast(Any, None), render)({"type": "http"}, wait, wait)

    for _ in range(3):
        streams.stream(cast(Any, None), render)
    async with TaskOwner("test") as tasks, asyncio.timeout(30):
        first, second = tasks.start(answer(), name="page"), tasks.start(answer(), name="page")
        await asyncio.sleep(0)
        with pytest.raises(ServerBusyError):
            await answer()
        first.cancel()
        await asyncio.wait([first])
        third = tasks.start(answer(), name="page")
        await asyncio.sleep(0)
        assert not third.done()
        with pytest.raises(ServerBusyError):
            await answer()
        second.cancel()
