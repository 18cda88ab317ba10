"""What work costs, counted in calls or steps, not in time: the same on any machine."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any


def calls_of(work: Callable[[], object]) -> int:
    """The calls that ``work`` makes, of Python's own functions too."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


async def steps_of(work: Callable[[], Awaitable[object]]) -> int:
    """The steps of the interpreter that the event loop makes until ``work`` is done, in Tidegate's code."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if "tidegate" not in frame.f_globals.get("__name__", ""):
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await work()
    finally:
        sys.settrace(before)
    return steps
