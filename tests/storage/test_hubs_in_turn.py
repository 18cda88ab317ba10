"""Loads from the disk: hubs take turns, however many loads each has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tidegate.storage.segments.cold_reads import HubsInTurn, InlineExecutor


class _Loads:
    """Loads of two threads, which note their order and end when the test says so."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(3)
        self.hubs = HubsInTurn(self.threads, 2)
        self.made: list[str] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def ask(self, hub_id: str) -> Future[Any]:
        def load() -> str:
            self.made.append(hub_id)
            self.begun.release()
            assert self.may_end.acquire(timeout=60)
            return hub_id

        return self.hubs.submit(hub_id, load)


def test_a_hub_waits_for_one_load_of_a_busy_one() -> None:
    """And work of other kinds for none: one thread is never used for loads."""
    loads = _Loads()
    asked = [loads.ask("busy") for _ in range(20)]
    for _ in range(2):
        assert loads.begun.acquire(timeout=60)
    assert loads.threads.submit(lambda: 7).result(timeout=60) == 7
    asked += [loads.ask("quiet"), loads.ask("quiet"), loads.ask("other")]
    loads.may_end.release(len(asked))
    assert [each.result(timeout=60) for each in asked] == ["busy"] * 20 + ["quiet"] * 2 + ["other"]
    assert loads.made[:2] == ["busy"] * 2
    assert "quiet" in loads.made[2:5]
    assert "other" in loads.made[2:6]
    loads.threads.shutdown()


@pytest.mark.parametrize("make", [InlineExecutor, lambda: ThreadPoolExecutor(1)], ids=["inline", "thread"])
def test_a_load_that_fails_ends_no_other(make: Callable[[], ThreadPoolExecutor]) -> None:
    """Its error is its waiter's; the thread goes to the next one, also after all were done."""

    def fail() -> None:
        raise OSError("damaged")

    hubs = HubsInTurn(make(), 1)
    for _ in range(3):
        failed, loaded = hubs.submit("a", fail), hubs.submit("b", lambda: 1)
        assert loaded.result(timeout=60) == 1
        assert isinstance(failed.exception(timeout=60), OSError)
