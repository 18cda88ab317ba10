"""Checks all keys and tokens of peers: wrong ones are counted, logged, and answered with a delay.

A correct key is never delayed, and does not reset the count: an attacker with the same address gains nothing
from it. While an address has ``WAITING_MAX`` delayed answers for a policy, its keys for that policy are
refused unchecked, correct ones included; otherwise parallel connections could guess without delay. The
refusal says when to try again, and other policies and addresses are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tidegate.broker.attempts import FailedAttempts
from tidegate.broker.names import shown_policy_name
from tidegate.broker.peers import Door, Peer
from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidKeyError, ServerBusyError, TidegateError, UnauthorizedError

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


class KeyGuard:
    """The guard of one namespace."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts = FailedAttempts()
        self._attempts_in_urls = FailedAttempts()
        """Counted apart: pages of other sites make a visitor's browser send any URL, but no header or body of
        ours, and must not have the visitor's correct keys refused."""
        self._failures: Counter[Door] = Counter()
        self._is_released = asyncio.Event()

    def failures(self, door: Door) -> int:
        """Keys and tokens refused since the service started, unchecked ones included."""
        return self._failures[door]

    def judge(self, peer: Peer, policy: str | None, verify: Callable[[], T]) -> T:
        """The result of ``verify``, which checks a key of ``policy`` (as the peer names it).

        policy: None for a token that no guess makes, which is always checked.
        Raises what ``verify`` raises, an InvalidKeyError with the delay of its answer; ServerBusyError if too
        many answers to the address are delayed.
        """
        return self.judge_any(peer, () if policy is None else (policy,), lambda _: verify())

    def judge_any(
        self,
        peer: Peer,
        names: Sequence[str],
        verify: Callable[[Sequence[str]], T],
        *,
        is_in_url: bool = False,
    ) -> T:
        """``judge`` for what names no policy, so that one guess is at the keys of several.

        names: what a wrong one counts for. verify: gets those of them that keys are still checked of.
        is_in_url: whether a URL is all that it came with.
        """
        now = self._clock.monotonic()
        attempts = self._attempts_in_urls if is_in_url else self._attempts
        waits_s = {name: attempts.refused_for_s(peer.address, name, now=now) for name in names}
        checked = [name for name, wait_s in waits_s.items() if wait_s <= 0.0]
        try:
            if names and not checked:
                raise _busy(min(waits_s.values()))
            return verify(checked)
        except (UnauthorizedError, ServerBusyError) as error:
            self._failures[peer.door] += 1
            if not isinstance(error, InvalidKeyError) or not names:
                raise
            delays_s = [attempts.note(peer.address, name, now=now) for name in checked]
            _log.info("a wrong key for the policy %r came from %s", shown_policy_name(names[-1]), peer)
            if len(checked) < len(names):  # one that was not checked may be the right one
                raise _busy(max(waits_s.values())) from None
            error.answer_after_s = max(delays_s)
            raise

    async def wait_before_answer(self, error: TidegateError) -> None:
        """Return when ``error`` may be answered: immediately, or after the delay of a wrong key."""
        if isinstance(error, InvalidKeyError) and error.answer_after_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(error.answer_after_s):
                    await self._is_released.wait()

    def release(self) -> None:
        """End all delays, because the service stops."""
        self._is_released.set()


def _busy(retry_after_s: float) -> ServerBusyError:
    return ServerBusyError(
        "Too many attempts with a wrong key from this address.",
        next_step="Try again later.",
        retry_after_s=retry_after_s,
    )
