"""What a host concludes from its own readings of the leases, whatever the store's clock says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.processor.lease import Lease, LeaseSnapshot, LeaseWatch

_START = datetime(2026, 11, 20, 12, tzinfo=UTC)
_LOOKS = st.lists(
    st.tuples(
        st.floats(0.1, 60.0),  # since the last look
        st.booleans(),  # renewed since then
        st.floats(-1e6, 1e6),  # how far the store's clock is ahead
    ),
    min_size=1,
    max_size=30,
)


@given(_LOOKS)
@pytest.mark.slow
def test_a_lease_is_over_when_it_should_be_and_never_kept_by_a_wrong_clock(
    looks: list[tuple[float, bool, float]],
) -> None:
    """Unchanged for its duration between two readings, it is expired; renewed since the last one, by a clock
    that is the same at both, it is not."""
    watch = LeaseWatch()
    now_s, unchanged_since_s, version, ahead_s = 0.0, 0.0, 0, 0.0
    renewed_at = _START
    for wait_s, is_renewed, next_ahead_s in looks:
        now_s += wait_s
        ahead_s = next_ahead_s
        now = _START + timedelta(seconds=now_s + ahead_s)
        if is_renewed or version == 0:
            version, renewed_at, unchanged_since_s = version + 1, now, now_s
        lease = Lease("0", "a", 1, None, renewed_at, str(version))
        seen = watch.check(LeaseSnapshot({"0": lease}, now), asked_at=now_s, answered_at=now_s)
        checked = seen.leases["0"]
        assert checked.renewed_at <= lease.renewed_at
        assert checked.version == lease.version
        if now_s - unchanged_since_s >= 30.001:
            assert checked.is_expired(seen.now, 30.0)
        if unchanged_since_s == now_s:
            assert not checked.is_expired(seen.now, 30.0)


def test_the_time_of_a_slow_answer_is_not_counted() -> None:
    """The lease may have been renewed between the moment when the store read it and that of its answer."""
    watch = LeaseWatch()
    lease = Lease("0", "a", 1, None, _START + timedelta(hours=1), "1")
    watch.check(LeaseSnapshot({"0": lease}, _START), asked_at=0.0, answered_at=20.0)
    seen = watch.check(LeaseSnapshot({"0": lease}, _START), asked_at=45.0, answered_at=60.0)
    assert (seen.now - seen.leases["0"].renewed_at).total_seconds() == 25.0


def test_a_request_is_overdue_whatever_the_stores_clock_says() -> None:
    """Made while that was an hour ahead, it counts from the host's first reading; a new one counts anew."""
    watch = LeaseWatch()

    def is_overdue(now_s: float, requester: str) -> bool:
        lease = Lease("0", "a", 1, None, _START, f"{now_s}", requester, _START + timedelta(hours=1))
        now = _START + timedelta(seconds=now_s)
        seen = watch.check(LeaseSnapshot({"0": lease}, now), asked_at=now_s, answered_at=now_s)
        return seen.leases["0"].is_request_overdue(seen.now, 30.0)

    looks = [(0.0, "b"), (29.0, "b"), (30.0, "b"), (31.0, "c"), (60.0, "c"), (61.0, "c")]
    assert [is_overdue(*look) for look in looks] == [False, False, True, False, False, True]
