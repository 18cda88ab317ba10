"""The order in which changes of a namespace are made, whoever asks for many of them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.broker.actors import actor_for
from tests.gateway.support import HOST, Pair
from tests.storage.engines import MemoryEngine, SlowEngine
from tests.support.clocks import SetClock

from tidegate.amqp.message import decode_message, encode_message
from tidegate.broker import ROOT_POLICY_NAME, UNKNOWN_PEER, Actor, Broker, Claim, Grant, acting_as
from tidegate.broker.catalog import HUB_KEYS
from tidegate.broker.change_queue import WAITING_MAX, ChangeQueue
from tidegate.model.audience import NAMESPACE, Audience
from tidegate.model.errors import LogFailedError, ServerBusyError
from tidegate.transport.tasks import TaskOwner
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.request_response import Response


def _actor(policy: str, *scopes: str) -> Actor:
    """An actor with a policy of that name in each scope; an empty one is the namespace."""
    claims = frozenset({Claim.MANAGE})
    audience = Audience("", NAMESPACE)
    grants = [Grant(policy, audience, claims, 4_000_000_000, scope=scope) for scope in scopes]
    return Actor.of(grants, UNKNOWN_PEER)


SERVICE = Actor()
ROOT = _actor("root", "")
OTHER_ROOT = _actor("other", "")
ANN = _actor("ann", "hub-a")
BOB = _actor("bob", "hub-b")


class _Changes:
    """Changes that end when the test says so."""

    def __init__(self) -> None:
        self.queue = ChangeQueue()
        self.made: list[str] = []
        self._may_end = asyncio.Semaphore(0)

    async def make(self, name: str, actor: Actor) -> None:
        async with self.queue.turn(actor):
            self.made.append(name)
            await self._may_end.acquire()

    async def ask(self, name: str, actor: Actor) -> asyncio.Task[None]:
        """Begin a change, which may have to wait."""
        asked = asyncio.get_running_loop().create_task(self.make(name, actor))
        await asyncio.sleep(0)
        return asked

    async def end_all(self, *asked: asyncio.Task[None]) -> list[BaseException | None]:
        for _ in asked:
            self._may_end.release()
        async with asyncio.timeout(30):
            return await asyncio.gather(*asked, return_exceptions=True)


async def test_the_namespace_is_first_and_hubs_take_turns() -> None:
    """Protects the namespace's administrator, and the managers of other hubs, from one who asks for much."""
    changes = _Changes()
    asked = [await changes.ask(f"ann{number}", ANN) for number in range(4)]
    asked += [await changes.ask(f"bob{number}", BOB) for number in range(2)]
    asked += [await changes.ask(f"root{number}", ROOT) for number in range(3)]
    asked += [await changes.ask("other0", OTHER_ROOT), await changes.ask("service0", SERVICE)]
    await changes.end_all(*asked)
    assert changes.made == [
        *("ann0", "root0", "other0", "service0", "root1", "root2"),
        *("ann1", "bob0", "ann2", "bob1", "ann3"),
    ]


@pytest.mark.parametrize(
    ("actor", "same", "another"),
    [
        (ANN, _actor("cid", "hub-a"), BOB),
        (ROOT, _actor("root", "", "hub-a"), OTHER_ROOT),
        (actor_for("hub-a", "root"), _actor("ann", "hub-a"), ROOT),
        (actor_for("hub-a", "root"), actor_for("hub-a", "other"), actor_for("hub-b", "root")),
    ],
    ids=["hub", "namespace", "token for a hub", "tokens for hubs"],
)
async def test_few_changes_of_a_party_wait(actor: Actor, same: Actor, another: Actor) -> None:
    """Protects memory. Policies of one hub count together, or the manager of a hub would make more of them;
    the service's own changes, of its settings, are never refused."""
    changes = _Changes()
    asked = [await changes.ask("made", SERVICE)]
    asked += [await changes.ask("made", actor) for _ in range(WAITING_MAX)]
    for refused in (actor, same):
        with pytest.raises(ServerBusyError, match="16 changes of"):
            async with asyncio.timeout(30):  # instead of waiting
                await changes.make("refused", refused)
    asked.append(await changes.ask("made", another))
    asked += [await changes.ask("made", SERVICE) for _ in range(2 * WAITING_MAX)]
    assert set(await changes.end_all(*asked)) == {None}
    assert changes.made == ["made"] * len(asked)
    assert await changes.end_all(await changes.ask("later", actor)) == [None]


@pytest.mark.parametrize("is_next", [True, False], ids=["given the turn", "still waiting"])
async def test_a_change_that_is_given_up_holds_up_no_other(is_next: bool) -> None:
    """A client that goes while its change waits, also in the moment when it would be made."""
    changes = _Changes()
    first = await changes.ask("first", SERVICE)
    gone = [await changes.ask("gone", ANN), await changes.ask("gone", BOB)]
    last = await changes.ask("last", ANN)
    if is_next:
        changes._may_end.release()
        await asyncio.sleep(0)  # ``first`` ends, and gives its turn to the first of ``gone``
    for each in gone:
        each.cancel()
    await changes.end_all(first, last)
    await asyncio.gather(*gone, return_exceptions=True)
    assert all(each.cancelled() for each in gone)
    assert changes.made == ["first", "last"]
    assert await changes.end_all(await changes.ask("later", BOB)) == [None]


async def test_a_manager_cannot_keep_its_policy_by_many_changes(clock: SetClock) -> None:
    """Protects the namespace's administrator: over several connections a hub's manager asks for 48 changes;
    its policy is deleted after the one that is being made, and the others have lost their right by that."""
    broker = await Broker.open(SlowEngine(), clock=clock)
    await broker.create_event_hub("hub", partition_count=1)
    policy = await broker.create_policy("hub", "ann", [Claim.MANAGE])
    pairs, receivers = [Pair(broker, clock) for _ in range(3)], []
    for number, pair in enumerate(pairs):
        pair.put_token(broker, f"sb://{HOST}/hub", key=policy.key, policy_name="ann")
        sender, receiver = pair.request_links("$management")
        receivers.append(receiver)
        for change in range(16):
            values = {"user_metadata": f"{number} {change}"}
            message = AdministrationRequest("updateEventHub", {"hub": "hub"}, values).to_message()
            sender.send(encode_message(message))
        pair.exchange()
    root = broker.policy(None, ROOT_POLICY_NAME)
    with acting_as(Actor.of(broker.authorize_key(root.name, root.key), UNKNOWN_PEER)):
        await broker.delete_policy("hub", "ann")
    for pair, receiver in zip(pairs, receivers, strict=True):
        await pair.wait_for(lambda pair=pair, receiver=receiver: len(pair.deliveries(receiver)) == 16)  # type: ignore[misc]
    answers = [
        Response.from_message(decode_message(delivery.payload))
        for pair, receiver in zip(pairs, receivers, strict=True)
        for delivery in pair.deliveries(receiver)
    ]
    actions = [record.action for record in broker.audit.newest_first()]
    assert actions[:3] == ["deletePolicy", "updateEventHub", "createPolicy"]
    assert Counter(answer.status_code for answer in answers) == {200: 1, 401: 16, 429: 31}
    await broker.close()


async def test_a_cancellation_ends_no_other_change(clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is cut off, made all the same, and fails at its next step: the change after it is not ended
    in its place."""
    engine = MemoryEngine()
    broker = await Broker.open(engine, clock=clock)
    change, is_written = engine.control.change, asyncio.Event()

    async def write(key: str, value: bytes | None, *, expected_version: int) -> int:
        version = await change(key, value, expected_version=expected_version)
        if key.startswith(HUB_KEYS) and not is_written.is_set():
            is_written.set()
            await asyncio.Event().wait()
        return version

    def refuse(*_: object, **__: object) -> None:
        raise LogFailedError("The audit trail is gone.")

    monkeypatch.setattr(engine.control, "change", write)
    async with TaskOwner("test") as tasks, asyncio.timeout(30):
        cut_off = tasks.start(broker.create_event_hub("first", partition_count=1), name="creation")
        await is_written.wait()
        with monkeypatch.context() as failing:
            failing.setattr(broker.audit, "record", refuse)
            cut_off.cancel()
            await asyncio.wait([cut_off])
        assert cut_off.cancelled()
        await broker.create_event_hub("second", partition_count=1)
    await broker.close()


async def test_a_change_that_is_cut_off_is_made_whole(
    clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the namespace's administrator: a hub's manager has its change cut off (over HTTP, by sending
    its end just before the time limit) while it is written. The hub could then be neither changed nor
    deleted, nor could the manager's policy."""
    engine = MemoryEngine()
    broker = await Broker.open(engine, clock=clock)
    await broker.create_event_hub("hub", partition_count=1)
    await broker.create_policy("hub", "ann", [Claim.MANAGE])
    change, is_written, may_end = engine.control.change, asyncio.Event(), asyncio.Event()

    async def write(key: str, value: bytes | None, *, expected_version: int) -> int:
        version = await change(key, value, expected_version=expected_version)
        is_written.set()
        await may_end.wait()
        return version

    monkeypatch.setattr(engine.control, "change", write)
    async with TaskOwner("test") as tasks, asyncio.timeout(30):
        update = broker.update_event_hub("hub", user_metadata="noted", partition_count=2)
        cut_off = tasks.start(update, name="update")
        await is_written.wait()
        cut_off.cancel()
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait([cut_off])
    assert cut_off.cancelled()
    hub = broker.event_hub("hub")
    assert (hub.description.user_metadata, len(hub.partitions)) == ("noted", 2)
    assert broker.audit.newest_first()[0].action == "updateEventHub"
    await broker.delete_policy("hub", "ann")
    await broker.delete_event_hub("hub")
    await broker.close()
