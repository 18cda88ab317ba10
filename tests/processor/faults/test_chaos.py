"""Hosts in processes of their own under random faults: what they leave behind is whole, whatever was done.

``make chaos`` runs the same with a million events; TIDEGATE_CHAOS_EVENTS changes their number here.
"""

from __future__ import annotations

import os

import pytest
from tests.needs import ci_has
from tests.processor.faults.chaos import ChaosSettings, Fault
from tests.processor.faults.host_process import LEASES_APART, Breakage
from tests.processor.faults.runs import run_chaos
from tests.processor.faults.work import PARTITION_COUNT

EVENTS = int(os.environ.get("TIDEGATE_CHAOS_EVENTS", "48000")) // PARTITION_COUNT * PARTITION_COUNT


@ci_has("database_url", "postgresql", "sqlite", "mariadb")
async def test_transactions_leave_each_event_once(database_url: str | None, seed: int) -> None:
    """Rows + dead letters = events, none twice, none missing, no two owners side by side; on both databases.

    A share of the events fails by raising, another is put aside by the handler.
    """
    result = await run_chaos(ChaosSettings(EVENTS, seed), database_url)
    assert result.findings == []
    assert result.totals.rows + result.totals.dead_letters == EVENTS
    assert result.totals.takeovers > 0
    check_faults(result.report.faults, is_proxied=database_url is not None)
    assert (result.report.connections_cut > 0) is (database_url is not None)
    assert (result.report.commits_cut > 0) is (database_url is not None)


@pytest.mark.repeats
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_leases_apart_leave_each_event_once(database_url: str, seed: int) -> None:
    """Transactions are fenced by the checkpoints' own epochs, whatever happens to the leases' hosts."""
    settings = ChaosSettings(EVENTS, seed, environments=({LEASES_APART: "1"},))
    result = await run_chaos(settings, database_url)
    assert result.findings == []
    assert result.totals.rows + result.totals.dead_letters == EVENTS
    assert result.totals.takeovers > 0
    check_faults(result.report.faults, is_proxied=True)


@ci_has("database_url", "mariadb", "sqlite", "postgresql")
async def test_published_events_are_in_their_hub_once(database_url: str | None, seed: int) -> None:
    """From hub to database to hub: none lost, none twice, each key in order, whatever was killed or cut."""
    settings = ChaosSettings(EVENTS // 2 // PARTITION_COUNT * PARTITION_COUNT, seed, is_publishing=True)
    result = await run_chaos(settings, database_url)
    assert result.findings == []
    check_faults(result.report.faults, is_proxied=database_url is not None)


@ci_has("database_url", "sqlite", "postgresql", "mariadb")
async def test_plain_checkpoints_leave_none_out_and_keep_the_order(
    database_url: str | None, seed: int
) -> None:
    """At least once: everything is seen, nothing before its predecessor, nothing again once checkpointed."""
    result = await run_chaos(ChaosSettings(EVENTS, seed, is_transactional=False), database_url)
    assert result.findings == []
    check_faults(result.report.faults, is_proxied=database_url is not None)


@pytest.mark.repeats
async def test_a_checkpoint_that_is_committed_apart_is_found(seed: int) -> None:
    """The canary: hosts whose transaction is in two halves, and which die between them, are found out."""
    settings = ChaosSettings(
        EVENTS // 2 // PARTITION_COUNT * PARTITION_COUNT,
        seed,
        breakage=Breakage.CHECKPOINT_APART,
        faults=(Fault.DEATH_IN_COMMIT,),
    )
    result = await run_chaos(settings, None)
    assert result.report.faults[Fault.DEATH_IN_COMMIT] > 0
    assert any("are there twice" in finding for finding in result.findings), result.findings
    assert any("tidegate audit" in finding for finding in result.findings), result.findings


def check_faults(faults: dict[Fault, int], *, is_proxied: bool) -> None:
    """Each kind was done at least once: a run without faults shows nothing."""
    needs_proxy = {Fault.CUT_ALL, Fault.CUT_IN_COMMIT}
    assert {fault for fault in Fault if is_proxied or fault not in needs_proxy} == faults.keys()
