"""A hub's policy sees nothing of an earlier hub of that name: the database and the service's memory know such
things by the name alone, and the name may have been another tenant's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.processing_support import ended_job, recreate_hub, signed_in
from tests.console.support import PlainBrowser, console_service

from tidegate.broker import Claim
from tidegate.console.consumers import groups
from tidegate.console.consumers import page as consumers_page
from tidegate.console.dead_letters import letters
from tidegate.console.dead_letters import page as dead_letters_page
from tidegate.console.frame import shared_answers
from tidegate.sql import Database
from tidegate.testing.hub import HubService


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('database')}/shared.db"


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    """The same, opened; its tables exist."""
    with Database.open(database_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, database: Database
) -> Iterator[HubService]:
    """A service with that database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGATE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        # What one test has asked for is not kept for the next, and pages wait for what they show.
        patch.setattr(letters, "_PAGES_S", 0.0)
        patch.setattr(letters, "_SUMS_S", 0.0)
        patch.setattr(groups, "_LOOK_S", 0.0)
        patch.setattr(shared_answers, "_WORK_SHARE", 0)
        for module in (dead_letters_page, consumers_page):
            patch.setattr(module, "FIRST_PAINT_S", 30.0)
        with console_service(tmp_path_factory.mktemp("console"), database=database_url) as started:
            yield started


def test_jobs(service: HubService, plain_browser: PlainBrowser) -> None:
    """A job's title quotes a reason, its actor names a policy and an address, its output quotes events."""
    hub = service.create_hub(partition_count=1)
    former = signed_in(service, hub, Claim.MANAGE)
    started = former.post("/dead-letters/discard", {"hub": hub, "because": "a former secret"})
    ended_job(former, started)
    address = started.headers["location"]
    recreate_hub(service, hub)
    tenant = signed_in(service, hub, Claim.MANAGE)
    assert "former" not in tenant.get("/console/jobs").text
    for path in (address, address.replace("/console", "/console/live", 1)):
        answer = tenant.get(path)
        absent = tenant.get(path.replace(path[-12:], "0123456789ab"))
        assert (answer.status, answer.text.replace(path[-12:], "0123456789ab")) == (404, absent.text)
    assert tenant.post(f"{address}/cancel").status == 404
    own = tenant.post("/dead-letters/discard", {"hub": hub, "because": "our own"})
    assert "our own" in ended_job(tenant, own)
    assert "our own" in tenant.get("/console/jobs").text
    # A policy of the namespace covers both hubs.
    assert "a former secret" in plain_browser.get(address).text
