"""A rate limit that allows bursts of one second: tokens accumulate over time and are taken."""

from __future__ import annotations


class TokenBucket:
    """One rate. Times are seconds of a monotonic clock."""

    def __init__(self, rate: float, *, now: float) -> None:
        """rate: tokens per second; the bucket holds one second of them, and starts full."""
        self._rate = rate
        self._tokens = rate  # negative: debt
        self._filled_at = now

    def wait_s(self, cost: float, *, now: float) -> float:
        """Seconds until ``cost`` tokens are available, if none are taken meanwhile; 0.0: now.

        A cost beyond what the bucket holds waits for a full bucket.
        """
        self._fill(now)
        return max(0.0, (min(cost, self._rate) - self._tokens) / self._rate)

    def take(self, cost: float, *, now: float) -> None:
        """Take tokens, available or not: missing ones become debt."""
        self._fill(now)
        self._tokens -= cost

    def use_up(self, ahead_s: float, *, now: float) -> None:
        """Go into debt by the tokens of ``ahead_s`` seconds."""
        self._fill(now)
        self._tokens = min(self._tokens, -self._rate * ahead_s)

    def set_rate(self, rate: float, *, now: float) -> None:
        """Change the rate from now on. Debt stays; tokens beyond the new capacity are lost."""
        self._fill(now)
        self._rate = rate
        self._tokens = min(self._tokens, rate)

    def _fill(self, now: float) -> None:
        elapsed = max(0.0, now - self._filled_at)
        self._filled_at = max(self._filled_at, now)
        self._tokens = min(self._rate, self._tokens + elapsed * self._rate)
