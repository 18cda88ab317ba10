"""The figures of the demo, and that a wrong one is noticed."""

from __future__ import annotations

from examples.flights.accounting import StageRate, account_partitions


def test_exact_accounts() -> None:
    """Rows and dead letters that are not rows yet make up the events; redriven ones are rows already."""
    dead_letters = {("0", "open"): 3, ("0", "redriven"): 2, ("0", "discarded"): 1}
    (account,) = account_partitions({"0": 10}, {"0": 6}, dead_letters)
    assert account.is_exact
    assert account.describe() == "partition 0: 6 rows + 4 dead letters = 10 events"


def test_a_missing_or_doubled_row_is_noticed() -> None:
    """One row too few in one partition and one too many in another do not cancel out."""
    accounts = account_partitions({"0": 10, "1": 10}, {"0": 9, "1": 11}, {})
    assert [account.is_exact for account in accounts] == [False, False]
    assert "≠" in accounts[0].describe()


def test_rows_of_a_partition_without_events_are_noticed() -> None:
    """Rows that no event can have made fail the account instead of being left out."""
    accounts = account_partitions({"0": 1}, {"0": 1, "7": 5}, {})
    assert [account.is_exact for account in accounts] == [True, False]


def test_rates() -> None:
    """A stage that had nothing to do has no rate."""
    assert StageRate("publish", 1000, 0.5).events_per_s == 2000.0
    assert StageRate("publish", 0, 0.5).events_per_s == 0.0
