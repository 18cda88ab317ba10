"""The audit trail's file: kept over restarts, bounded, and never in the way of a change."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.broker.actors import actor_for
from tests.support.clocks import SetClock

from tidegate.broker import Action, Actor, AuditTrail, Claim, Door, Peer, acting_as, audit
from tidegate.broker.key_guard import KeyGuard
from tidegate.model.errors import InvalidKeyError
from tidegate.model.hub_settings import HubSettings
from tidegate.server.opening import open_broker
from tidegate.storage import line_file
from tidegate.storage.files import OsFiles, WritableFile
from tidegate.storage.line_file import LineFile
from tidegate.transport.tasks import TaskOwner

ANN = Actor(Peer(Door.HTTP, "192.0.2.7"), "ann", "hub")

CHANGES_FILE, HUBS_FILE, SIGN_INS_FILE = "audit.jsonl", "audit-hubs.jsonl", "sign-ins.jsonl"


class _FullFiles(OsFiles):
    """A disk without room for the audit trail."""

    def create(self, path: Path) -> WritableFile:
        """No room."""
        if path.name == CHANGES_FILE:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path)


def _trail(directory: Path) -> AuditTrail:
    return AuditTrail(SetClock(), partial(LineFile, OsFiles(), directory))


async def test_every_change_is_recorded_with_the_old_value(tmp_path: Path) -> None:
    """All that changes the namespace records itself, as whoever acts; what is refused is no change."""
    broker = await open_broker(tmp_path, clock=SetClock())
    with acting_as(ANN):
        await broker.create_event_hub("hub", partition_count=2, retention_hours=24)
        await broker.update_event_hub("hub", retention_hours=48)
        await broker.update_event_hub("hub", retention_hours=48)
        await broker.event_hub("hub").create_consumer_group("g")
        await broker.event_hub("hub").delete_consumer_group("G")
        await broker.event_hub("hub").revoke_publisher("p")
        await broker.event_hub("hub").restore_publisher("p")
        key = (await broker.create_policy("hub", "q", [Claim.SEND], key="a key that somebody has chosen")).key
        await broker.regenerate_key("hub", "q", is_secondary=True)
        await broker.delete_policy("hub", "q")
        await broker.set_throughput_units(3)
        await broker.delete_event_hub("hub")
        with pytest.raises(Exception, match="could not be found"):
            await broker.delete_event_hub("hub")
    records = list(reversed(broker.audit.newest_first()))
    await broker.close()
    assert {(each.policy, each.scope, each.address, each.door) for each in records} == {
        ("ann", "hub", "192.0.2.7", "http")
    }
    settings = {"partition_count": 2, **HubSettings().settings()}
    assert [(each.action, each.target, each.old, each.new) for each in records] == [
        ("createEventHub", "hub", None, {**settings, "retention_hours": 24}),
        ("updateEventHub", "hub", {"retention_hours": 24}, {"retention_hours": 48}),
        ("createConsumerGroup", "hub/consumergroups/g", None, None),
        ("deleteConsumerGroup", "hub/consumergroups/g", None, None),
        ("revokePublisher", "hub/publishers/p", None, None),
        ("restorePublisher", "hub/publishers/p", None, None),
        ("createPolicy", "hub/policies/q", None, {"claims": ["Send"], "chosen_keys": ["primary"]}),
        ("regenerateKey", "hub/policies/q", None, {"key": "secondary", "chosen": False}),
        ("deletePolicy", "hub/policies/q", {"claims": ["Send"]}, None),
        ("updateNamespace", "", {"throughput_units": None}, {"throughput_units": 3}),
        ("deleteEventHub", "hub", {**settings, "retention_hours": 48}, None),
    ]
    file = tmp_path / HUBS_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert key not in file.read_text()
    assert [json.loads(line)["action"] for line in file.read_text().splitlines()] == [
        each.action for each in records
    ]


async def test_who_acts_is_passed_on_to_tasks_and_threads(tmp_path: Path) -> None:
    """And to nobody beside: what no door was opened for is the service itself."""
    trail, tasks = _trail(tmp_path), TaskOwner("test")
    with acting_as(ANN):
        task = tasks.start(asyncio.to_thread(trail.record, Action.SIGN_IN), name="sign in")
    trail.record(Action.SIGN_OUT)
    await task
    await tasks.close()
    assert {(each.action, each.policy) for each in trail.newest_first()} == {
        ("signOut", ""),
        ("signIn", "ann"),
    }
    trail.close()


def test_records_are_read_back(tmp_path: Path) -> None:
    """Those before a restart, without a line that a crash has torn, which is written over."""
    first = _trail(tmp_path)
    first.record(Action.SIGN_IN, "one")
    first.close()
    with (tmp_path / SIGN_INS_FILE).open("a") as file:
        file.write('{"time": "torn')
    second = _trail(tmp_path)
    second.record(Action.SIGN_IN, "two")
    second.close()
    third = _trail(tmp_path)
    assert [record.target for record in third.newest_first()] == ["two", "one"]


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One older file is kept; the newest records are held, over a restart, too."""
    monkeypatch.setattr(line_file, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(audit, "RECORDS_MAX", 8)
    trail = _trail(tmp_path)
    for number in range(100):
        trail.record(Action.CREATE_CONSUMER_GROUP, str(number))
    trail.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.1.jsonl", CHANGES_FILE]
    assert all(path.stat().st_size <= 2_000 for path in tmp_path.iterdir())
    newest = [str(number) for number in range(99, 91, -1)]
    assert [record.target for record in trail.newest_first()] == newest
    assert [record.target for record in _trail(tmp_path).newest_first()] == newest


async def test_a_file_that_cannot_be_written_is_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The change stands, and is told in the log and in the console; later ones try again."""
    broker = await open_broker(tmp_path, clock=SetClock(), files=_FullFiles())
    with caplog.at_level(logging.INFO):
        await broker.create_event_hub("hub", partition_count=1)
    assert broker.event_hub("hub").name == "hub"
    assert [record.target for record in broker.audit.newest_first()] == ["hub"]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "createEventHub hub") in lines
    assert any(level == "ERROR" and "audit.jsonl cannot be written" in text for level, text in lines)
    await broker.close()


def test_refused_sign_ins_do_not_fill_the_trail(tmp_path: Path) -> None:
    """So many an hour are recorded; the first of the next hour tells how many were not."""
    clock = SetClock()
    trail = AuditTrail(clock, partial(LineFile, OsFiles(), tmp_path))
    for number in range(audit.SIGN_INS_MAX + 40):
        trail.record_refused_sign_in(f"guess-{number}", "192.0.2.1", "wrong")
    assert len(trail.newest_first()) == audit.SIGN_INS_MAX
    clock.advance(seconds=3_601)
    trail.record_refused_sign_in("x" * 1_000, "192.0.2.1", "wrong")
    newest = trail.newest_first()[0]
    assert newest.new == {"asked_as": "x" * 80, "reason": "wrong", "not_recorded": 40}
    assert (newest.policy, newest.address, newest.door) == ("", "192.0.2.1", "console")
    trail.close()


@pytest.mark.parametrize(
    "pasted",
    [
        "Endpoint=sb://h/;SharedAccessKeyName=a;SharedAccessKey=eyJzaWcKqYeTY0QKDeXGBF4mNlRGuHRZ9tNvGGsFWE4=",
        "eyJzaWcKqYeTY0QKDeXGBF4mNlRGuHRZ9tNvGGsFWE4=",
    ],
)
def test_a_key_in_the_wrong_field_is_not_recorded(
    tmp_path: Path, pasted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the trail nor by the log of wrong keys: whoever reads them would have the key."""
    caplog.set_level(logging.INFO)
    trail = AuditTrail(SetClock(), partial(LineFile, OsFiles(), tmp_path))
    trail.record_refused_sign_in(pasted, "192.0.2.1", "wrong")
    with pytest.raises(InvalidKeyError):
        KeyGuard(SetClock()).judge(Peer(Door.CONSOLE, "192.0.2.1"), pasted, _refuse)
    trail.close()
    assert [record.new for record in trail.newest_first()] == [
        {"asked_as": "(not a policy's name)", "reason": "wrong"}
    ]
    assert "(not a policy's name)" in caplog.text
    assert "eyJ" not in caplog.text + (tmp_path / SIGN_INS_FILE).read_text()


def _refuse() -> None:
    raise InvalidKeyError("wrong")


def test_sign_ins_of_a_policy_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So many an hour, in the log as well; another policy's are not counted with them."""
    clock = SetClock()
    trail = AuditTrail(clock, partial(LineFile, OsFiles(), tmp_path))
    with acting_as(ANN), caplog.at_level(logging.INFO, "tidegate.audit"):
        for _ in range(audit.SIGN_INS_MAX + 40):
            trail.record(Action.SIGN_IN)
            trail.record(Action.SIGN_OUT)
    assert len(trail.newest_first()) == len(caplog.records) == 2 * audit.SIGN_INS_MAX
    with acting_as(Actor(ANN.peer, "ann", "other hub")):
        trail.record(Action.SIGN_IN)
    assert (trail.newest_first()[0].scope, trail.newest_first()[0].new) == ("other hub", None)
    clock.advance(seconds=3_601)
    with acting_as(ANN):
        trail.record(Action.SIGN_IN)
        assert trail.newest_first()[0].new == {"not_recorded": 40}
        trail.record(Action.SIGN_IN)
        assert trail.newest_first()[0].new is None
    trail.close()


def test_containers_of_a_policy_with_listen_displace_no_changes(tmp_path: Path) -> None:
    """One of the namespace may create a thousand for each hub, which Manage is not needed for."""
    trail = AuditTrail(SetClock(), partial(LineFile, OsFiles(), tmp_path))
    with acting_as(ANN):
        for number in range(audit.SIGN_INS_MAX + 40):
            trail.record(Action.CREATE_CONTAINER, f"hub.blob/container-{number}")
            trail.record(Action.DELETE_CONTAINER, f"hub.blob/container-{number}")  # needs Manage
    counts = Counter(record.action for record in trail.newest_first())
    assert counts == {"createContainer": audit.SIGN_INS_MAX, "deleteContainer": audit.SIGN_INS_MAX + 40}
    trail.close()


async def test_a_hubs_policy_passes_for_none_of_the_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A hub's manager may name a policy like the namespace's: what says who it was says whose it is."""
    monkeypatch.setattr(audit, "POLICIES_MAX", 1)
    monkeypatch.setattr(audit, "SIGN_INS_MAX", 1)
    broker = await open_broker(tmp_path, clock=SetClock())
    hub = await broker.create_event_hub("hub", partition_count=1)
    with acting_as(Actor(policy="root", scope="hub")), caplog.at_level(logging.INFO, "tidegate.audit"):
        await broker.update_event_hub("hub", retention_hours=48)
        for action in (Action.SIGN_IN, Action.SIGN_IN, Action.SIGN_OUT):
            broker.audit.record(action)
    cell = await broker.control.read(f"hub/{hub.description.hub_id}")
    assert cell is not None
    assert json.loads(cell.value)["changed_by"] == "root of hub"
    assert "signIn by root of hub: 1 were not recorded" in caplog.text
    await broker.close()


@pytest.mark.parametrize("is_by_token", [False, True], ids=["policy of the hub", "token for the hub"])
@pytest.mark.parametrize("action", [Action.CREATE_CONSUMER_GROUP, Action.SIGN_IN])
def test_nothing_that_a_hubs_manager_does_pushes_out_the_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Action, is_by_token: bool
) -> None:
    """Somebody who manages one hub cannot make what others did to the namespace, and who signed in to it,
    disappear from the trail: also not with ever new policies, each of which may sign in."""
    monkeypatch.setattr(line_file, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(audit, "RECORDS_MAX", 8)
    trail, is_sign_in = _trail(tmp_path), action is Action.SIGN_IN
    with acting_as(Actor(policy="root")):
        trail.record(action if is_sign_in else Action.CREATE_POLICY, "before")
    for number in range(100):
        policy = f"made-{number}"
        actor = actor_for("hub", policy) if is_by_token else Actor(policy=policy, scope="hub")
        with acting_as(actor):
            trail.record(action, str(number))
    expected = [*(str(number) for number in range(99, 91, -1)), "before"]
    assert [record.target for record in trail.newest_first()] == expected
    trail.close()
    again = _trail(tmp_path)
    assert sorted(record.target for record in again.newest_first()) == sorted(expected)
    kind = "sign-ins" if is_sign_in else "audit"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{kind}-hubs.1.jsonl",
        f"{kind}-hubs.jsonl",
        f"{kind}.jsonl",
    ]


def test_tokens_for_a_hub_use_up_no_record_of_their_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their redrives are counted apart from those of who holds the key; each says what its token was for."""
    monkeypatch.setattr(audit, "SIGN_INS_MAX", 1)
    trail = _trail(tmp_path)
    for hub in ("hub", "hub", "another"):  # they share one count: names are free
        with acting_as(actor_for(hub, "root")):
            trail.record(Action.REDRIVE, hub)
    with acting_as(actor_for("", "root")):
        trail.record(Action.REDRIVE, "other")
    assert [(each.target, each.hub) for each in trail.newest_first()] == [("other", ""), ("hub", "hub")]
    trail.close()


def test_rights_on_the_namespace_beside_those_on_a_hub_are_the_namespaces(tmp_path: Path) -> None:
    """What an actor with both does is not among what the hub's manager can displace."""
    grants = [*actor_for("", "root").grants, *actor_for("hub", "ann").grants]
    trail = _trail(tmp_path)
    with acting_as(Actor.of([grants[0], replace(grants[1], scope="hub")], Peer(Door.HTTP, "192.0.2.7"))):
        trail.record(Action.UPDATE_EVENT_HUB, "hub")
    trail.close()
    assert [path.name for path in tmp_path.iterdir()] == [CHANGES_FILE]
    (record,) = _trail(tmp_path).newest_first()
    assert (record.policy, record.scope, record.hub) == ("root of the namespace, ann", "hub", "")


async def test_targets_are_spelled_as_the_service_does(tmp_path: Path) -> None:
    """A client may write a hub's name in other letters, and a search would miss the change."""
    broker = await open_broker(tmp_path, clock=SetClock())
    hub = await broker.create_event_hub("orders", partition_count=1)
    await broker.create_policy("ORDERS", "spare", [Claim.SEND])
    await broker.regenerate_key("oRders", "spare")
    await broker.delete_policy("Orders", "spare")
    await hub.revoke_publisher("Meter-7")
    await hub.restore_publisher("METER-7")
    targets = [each.target for each in broker.audit.newest_first() if each.target != "orders"]
    assert targets[:2] == ["orders/publishers/Meter-7"] * 2
    assert targets[2:5] == ["orders/policies/spare"] * 3
    await broker.close()


def test_ever_new_policies_of_a_hub_end_no_count_of_the_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers beside a hub's manager would fill the records of refused sign-ins."""
    monkeypatch.setattr(audit, "POLICIES_MAX", 4)
    clock = SetClock()
    trail = AuditTrail(clock, partial(LineFile, OsFiles(), tmp_path))
    for number in range(2 * audit.SIGN_INS_MAX):
        trail.record_refused_sign_in("guess", "192.0.2.1", "wrong")
        clock.advance(seconds=1)
        with acting_as(Actor(policy=f"made-{number}", scope="hub")):
            trail.record(Action.SIGN_IN)
    refused = [record for record in trail.newest_first() if record.action == Action.REFUSED_SIGN_IN.value]
    assert len(refused) == audit.SIGN_INS_MAX
    trail.close()


def test_no_number_of_sign_ins_pushes_out_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from memory and not from the files, by however many policies; the table of these is bounded."""
    monkeypatch.setattr(line_file, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(audit, "RECORDS_MAX", 8)
    monkeypatch.setattr(audit, "POLICIES_MAX", 20)
    trail = _trail(tmp_path)
    trail.record(Action.CREATE_POLICY, "before")
    for number in range(100):
        with acting_as(Actor(policy=str(number))):
            trail.record(Action.SIGN_IN)
    assert len(trail._hours) == 20
    trail.record(Action.DELETE_POLICY, "after")
    expected = ["after", *("" for _ in range(8)), "before"]
    assert [record.target for record in trail.newest_first()] == expected
    trail.close()
    again = _trail(tmp_path)
    assert sorted(record.target for record in again.newest_first()) == sorted(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        CHANGES_FILE,
        "sign-ins.1.jsonl",
        SIGN_INS_FILE,
    ]


def test_long_texts_are_cut(tmp_path: Path) -> None:
    """A record stays small, whatever somebody writes into a setting."""
    trail = _trail(tmp_path)
    trail.record(Action.UPDATE_EVENT_HUB, "hub", old={"note": "x" * 301, "units": 3}, new={"note": "y" * 300})
    (record,) = trail.newest_first()
    trail.close()
    assert (record.old, record.new) == ({"note": "x" * 300 + "…", "units": 3}, {"note": "y" * 300})
