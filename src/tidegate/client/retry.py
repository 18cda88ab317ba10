"""Decides when to retry, and after how long. Pure: the jitter is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.model.errors import InvalidArgumentError, TidegateError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter.

    The defaults cover an outage of about 30 s (our choice), such as an upgrade of ``tidegate serve``.
    """

    retries_max: int = 10
    """Tries after the first; 0 raises every error immediately."""
    delay_s: float = 0.1
    """Wait before the first retry."""
    delay_s_max: float = 5.0
    """The longest wait before jitter."""
    multiplier: float = 2.0
    """Each wait is this many times the one before."""
    jitter: float = 0.2
    """Random part of a wait, 0 <= jitter <= 1, which spreads the retries of many clients."""

    def __post_init__(self) -> None:
        if self.retries_max < 0 or self.delay_s < 0 or self.delay_s_max < self.delay_s:
            raise InvalidArgumentError(f"Invalid retry policy {self!r}.")
        if self.multiplier < 1 or not 0 <= self.jitter <= 1:
            raise InvalidArgumentError(f"Invalid retry policy {self!r}.")

    def delay_before(
        self, retry: int, *, jitter_fraction: float, error: TidegateError | None = None
    ) -> float:
        """Seconds to wait before retry number ``retry`` (1 is the first).

        jitter_fraction: 0 <= fraction < 1, drawn by the caller; 0 gives the longest wait.
        error: the error that is retried; the wait is at least its ``retry_after_s``.
        """
        assert retry >= 1
        # The exponent is limited so that very many retries do not overflow a float.
        back_off_s = min(self.delay_s_max, self.delay_s * self.multiplier ** min(retry - 1, 64))
        delay_s = back_off_s * (1.0 - self.jitter * jitter_fraction)
        if error is not None and error.retry_after_s is not None:
            return max(delay_s, error.retry_after_s)
        return delay_s

    def decide_retry(self, error: TidegateError, *, retries_done: int) -> bool:
        """Whether to retry an operation that failed with ``error`` after ``retries_done`` retries.

        Transient errors are retried, and errors of unknown kind: internal errors of the service often pass.
        """
        is_worth_it = error.is_transient or type(error) is TidegateError
        return is_worth_it and retries_done < self.retries_max
