"""Computes slow answers once for all callers, and caches them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tidegate.model.clock import Clock
from tidegate.model.errors import ServerBusyError, TidegateError
from tidegate.transport.reused import WORK_SHARE
from tidegate.transport.tasks import TaskOwner

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_ANSWERS_MAX: Final = 64
"""Maximum answers cached, least recently used dropped first; also the maximum computed concurrently."""


@dataclass(slots=True)
class _Answer(Generic[T]):
    task: asyncio.Task[T | TidegateError]
    started_s: float
    ended_s: float | None = None
    is_whole: Callable[[T], bool] = lambda _: True
    waiting: int = 0
    """Callers that wait for it."""

    def is_kept(self, now_s: float, kept_s: float, work_share: int) -> bool:
        if self.ended_s is None:
            return True
        if self.task.cancelled() or self.task.exception():
            return False
        result = self.task.result()
        if isinstance(result, TidegateError) or not self.is_whole(result):
            return False
        return now_s - self.ended_s < max(kept_s, work_share * (self.ended_s - self.started_s))


class SharedAnswers(Generic[K, T]):
    """Answers by key. Used on the event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        kept_s: float,
        is_work_counted: bool = True,
        is_whole: Callable[[T], bool] = lambda _: True,
        is_for_waiting: bool = False,
        tasks: TaskOwner | None = None,
    ) -> None:
        """kept_s: minimum seconds for which an answer is cached. is_work_counted: cache it for 10 times its
        computing time if that is longer. is_whole: False: do not cache it, as an error. is_for_waiting: stop
        computing when the last caller that waits is cancelled; their number is the only limit then. tasks:
        compute them; None: its own.
        """
        self._is_whole = is_whole
        self._is_for_waiting = is_for_waiting
        self._is_work_counted = is_work_counted
        self._clock = clock
        self._kept_s = kept_s
        self._tasks = tasks or TaskOwner("console answers")
        self._answers: OrderedDict[K, _Answer[T]] = OrderedDict()
        self._look: asyncio.TimerHandle | None = None
        """The next look for answers that are out of date."""

    async def ask(
        self, key: K, work: Callable[[], Coroutine[Any, Any, T]], *, at_most_s: float | None
    ) -> T | None:
        """The cached answer, or that of ``work``; None if it takes longer than ``at_most_s`` seconds (None:
        no limit), while ``work`` continues. Raises what ``work`` raises, which is not cached; ServerBusyError
        if too many answers are being computed.
        """
        now_s = self._clock.monotonic()
        answer = self._answers.get(key)
        if answer is None or not self._is_kept(answer, now_s):
            if self._tasks.task_count >= _ANSWERS_MAX and not self._is_for_waiting:
                raise ServerBusyError(
                    f"{_ANSWERS_MAX} questions to the database wait for their answers, the most that the "
                    "console asks at once.",
                    next_step="Ask again in a few seconds.",
                )
            answer = self._answers[key] = _Answer(
                self._tasks.start(_outcome_of(work()), name="answer"), now_s, is_whole=self._is_whole
            )
            answer.task.add_done_callback(lambda _, ended=answer: self._note_end(ended))  # type: ignore[misc]
        self._answers.move_to_end(key)
        while len(self._answers) > _ANSWERS_MAX:
            self._answers.popitem(last=False)
        answer.waiting += 1
        try:
            done, _ = await asyncio.wait([answer.task], timeout=at_most_s)
        finally:
            answer.waiting -= 1
            if self._is_for_waiting and not answer.waiting and not answer.task.done():
                answer.task.cancel()
                if self._answers.get(key) is answer:
                    del self._answers[key]  # one who asks next must not get the cancellation
        if not done:
            return None
        result = answer.task.result()
        if isinstance(result, TidegateError):
            raise result
        return result

    def forget(self) -> None:
        """Drop all answers, after a change."""
        self._answers.clear()

    async def close(self) -> None:
        """Cancel running computations."""
        if self._look is not None:
            self._look.cancel()
        await self._tasks.close()

    def _note_end(self, answer: _Answer[T]) -> None:
        answer.ended_s = self._clock.monotonic()
        if self._look is None:
            self._look_later()

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(self._kept_s, self._drop_old)

    def _drop_old(self) -> None:
        """Do not wait until they are asked for again: drawn pages that are closed would stay in memory."""
        self._look = None
        now_s = self._clock.monotonic()
        for key in [key for key, answer in self._answers.items() if not self._is_kept(answer, now_s)]:
            del self._answers[key]
        if self._answers:
            self._look_later()

    def _is_kept(self, answer: _Answer[T], now_s: float) -> bool:
        return answer.is_kept(now_s, self._kept_s, WORK_SHARE if self._is_work_counted else 0)


async def _outcome_of(work: Coroutine[Any, Any, T]) -> T | TidegateError:
    """The result or expected error of ``work`` as a value, so that the task does not fail."""
    try:
        return await work
    except TidegateError as error:
        return error
