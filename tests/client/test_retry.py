"""The retry schedule is arithmetic: every wait is known from its arguments."""

from __future__ import annotations

import pytest

from tidegate.client.retry import RetryPolicy
from tidegate.model.errors import (
    BrokenError,
    InvalidArgumentError,
    NotFoundError,
    OperationTimeoutError,
    ServerBusyError,
    TidegateError,
    UnauthorizedError,
)


def test_waits_double_up_to_the_maximum() -> None:
    """Back-off grows by the multiplier and stays at its bound, however long the row of retries."""
    policy = RetryPolicy(delay_s=0.5, delay_s_max=3.0, multiplier=2.0, jitter=0.0)
    waits = [policy.delay_before(retry, jitter_fraction=0.9) for retry in (1, 2, 3, 4, 5, 10_000)]
    assert waits == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_jitter_only_shortens_by_its_part() -> None:
    """Jitter spreads clients out, within the stated part of a wait."""
    policy = RetryPolicy(delay_s=1.0, delay_s_max=1.0, jitter=0.5)
    assert policy.delay_before(1, jitter_fraction=0.0) == 1.0
    assert policy.delay_before(1, jitter_fraction=0.5) == 0.75


def test_a_wait_that_the_service_asked_for_is_not_undercut() -> None:
    """A busy service's retry_after_s wins over a shorter back-off, and loses to a longer one."""
    policy = RetryPolicy(delay_s=0.1, delay_s_max=20.0, jitter=0.0)
    busy = ServerBusyError("busy", retry_after_s=4.0)
    assert policy.delay_before(1, jitter_fraction=0.0, error=busy) == 4.0
    assert policy.delay_before(8, jitter_fraction=0.0, error=busy) == pytest.approx(12.8)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BrokenError("line cut"), True),
        (OperationTimeoutError("late"), True),
        (ServerBusyError("busy"), True),
        (UnauthorizedError("key"), False),
        (TidegateError("amqp:internal-error"), True),
        (NotFoundError("hub"), False),
    ],
)
def test_only_transient_errors_are_retried(error: TidegateError, expected: bool) -> None:
    """A wrong key is never tried again; a cut line is, as often as the policy says and no more."""
    policy = RetryPolicy(retries_max=2)
    assert policy.decide_retry(error, retries_done=1) is expected
    assert policy.decide_retry(error, retries_done=2) is False


@pytest.mark.parametrize(
    "arguments",
    [
        {"retries_max": -1},
        {"delay_s": 2.0, "delay_s_max": 1.0},
        {"delay_s": -1.0},
        {"multiplier": 0.5},
        {"jitter": 1.5},
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(arguments: dict[str, float]) -> None:
    """A nonsensical schedule is the caller's error at once, not a strange wait later."""
    with pytest.raises(InvalidArgumentError):
        RetryPolicy(**arguments)  # type: ignore[arg-type]
