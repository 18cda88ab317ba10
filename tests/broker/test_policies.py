"""Policies: made, listed, deleted and given new keys at run time; what is told in force is, nothing else."""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.storage.simulated_files import SimulatedFiles
from tests.support.clocks import SetClock

from tidegate.broker import (
    EMULATOR_KEY,
    ROOT_POLICY_NAME,
    UNKNOWN_PEER,
    Actor,
    Authorizer,
    Broker,
    Claim,
    SharedAccessPolicy,
    acting_as,
)
from tidegate.broker.policies import add_policy, find_policy, remove_policy, replace_key
from tidegate.model.audience import Audience, entity_path
from tidegate.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    LogFullError,
    NotFoundError,
    QuotaExceededError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.model.limits import POLICIES_MAX
from tidegate.model.sas import make_sas_token
from tidegate.server.opening import open_broker

_EXPIRY = 4_000_000_000


def _token(policy: SharedAccessPolicy, audience: str, *, is_secondary: bool = False) -> str:
    key = policy.secondary_key if is_secondary else policy.key
    return make_sas_token(audience=audience, key_name=policy.name, key=key, expiry=_EXPIRY)


async def test_claims_of_a_new_policy(broker: Broker) -> None:
    """As given; Manage brings Send and Listen, as Azure asks for; none at all is refused."""
    assert (await broker.create_policy(None, "send", [Claim.SEND])).claims == {Claim.SEND}
    assert (await broker.create_policy(None, "both", [Claim.SEND, Claim.LISTEN])).claims == {
        Claim.SEND,
        Claim.LISTEN,
    }
    assert (await broker.create_policy(None, "manage", [Claim.MANAGE])).claims == set(Claim)
    with pytest.raises(InvalidArgumentError, match="no claims"):
        await broker.create_policy(None, "none", [])


@pytest.mark.parametrize("is_by_token", [False, True], ids=["policy of the hub", "token for the hub"])
async def test_a_hubs_manager_chooses_no_key(broker: Broker, is_by_token: bool) -> None:
    """With a name of the namespace's and a key of their own choice they would see whether that key is its."""
    await broker.create_event_hub("hub", partition_count=1)
    await broker.create_policy(None, "ops", [Claim.MANAGE], key="shortkey7")
    manager = await broker.create_policy("hub", "manager", [Claim.MANAGE])
    grants = broker.authorize_key("manager", manager.key)
    if is_by_token:
        (of_root,) = broker.authorize_key(ROOT_POLICY_NAME, broker.policy(None, ROOT_POLICY_NAME).key)
        grants = (replace(of_root, resource=Audience("", entity_path("hub"))),)
    with acting_as(Actor.of(grants, UNKNOWN_PEER)):
        for keys in ({"key": "shortkey7"}, {"secondary_key": "k" * 44}):
            with pytest.raises(InvalidArgumentError, match="choose keys"):
                await broker.create_policy("hub", "ops", [Claim.LISTEN], **keys)
        made = await broker.create_policy("hub", "ops", [Claim.LISTEN])
        with pytest.raises(InvalidArgumentError, match="choose keys"):
            await broker.regenerate_key("hub", "ops", key="shortkey7")
        assert (await broker.regenerate_key("hub", "ops")).key != made.key
    with acting_as(Actor.of(broker.authorize_key("ops", "shortkey7"), UNKNOWN_PEER)):
        assert (await broker.regenerate_key("hub", "ops", key="chosen by the namespace")).key[:6] == "chosen"


async def test_rights_of_the_namespace_count_while_they_are_in_force(broker: Broker) -> None:
    """A change may wait while one of its actor's policies is deleted: what is left then decides."""
    await broker.create_event_hub("hub", partition_count=1)
    second = await broker.create_policy(None, "second", [Claim.MANAGE])
    manager = await broker.create_policy("hub", "manager", [Claim.MANAGE])
    grants = [*broker.authorize_key("second", second.key), *broker.authorize_key("manager", manager.key)]
    await broker.delete_policy(None, "second")
    with acting_as(Actor.of(grants, UNKNOWN_PEER)):
        with pytest.raises(InvalidArgumentError, match="choose keys"):
            await broker.create_policy("hub", "probe", [Claim.LISTEN], key="shortkey7")
        with pytest.raises(UnauthorizedError, match="Creating the event hub"):
            await broker.create_event_hub("other", partition_count=1)
        await broker.create_policy("hub", "probe", [Claim.LISTEN])


async def test_keys_are_random_or_chosen_and_never_shown(broker: Broker) -> None:
    """32 random bytes each, two different ones; a chosen one is kept; neither is in a repr."""
    policy = await broker.create_policy(None, "random", [Claim.SEND])
    assert [len(base64.b64decode(key)) for key in policy.keys] == [32, 32]
    assert policy.key != policy.secondary_key
    chosen = await broker.create_policy(None, "chosen", [Claim.SEND], key="SAS_KEY_VALUE")
    assert chosen.key == "SAS_KEY_VALUE"
    grant = broker.authorize(_token(chosen, "sb://h/hub"), "sb://h/hub")
    for text in (repr(chosen), repr(grant), repr(broker.authorizer)):
        assert chosen.key not in text
        assert chosen.secondary_key not in text


@pytest.mark.parametrize("key", ["", "short", "x" * 257, "with;semicolon", " blanks-around ", "line\nbreak"])
async def test_a_key_that_no_connection_string_could_hold_is_refused(broker: Broker, key: str) -> None:
    """As primary and as secondary key, at creation and afterwards, and the error does not tell it."""
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: broker.create_policy(None, "new", [Claim.SEND], key=key),
        lambda: broker.create_policy(None, "new", [Claim.SEND], secondary_key=key),
        lambda: broker.regenerate_key(None, ROOT_POLICY_NAME, key=key),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError) as caught:
            await call()
        assert not key or key not in str(caught.value)


async def test_names_of_policies(broker: Broker) -> None:
    """Event Hubs' rule; unique whatever the letter case within a scope; free in another one."""
    for name in ("", "-a", "a b", "x" * 51):
        with pytest.raises(InvalidArgumentError):
            await broker.create_policy(None, name, [Claim.SEND])
    await broker.create_event_hub("hub", partition_count=1)
    await broker.create_policy("HUB", "one", [Claim.SEND])
    with pytest.raises(AlreadyExistsError):
        await broker.create_policy("hub", "ONE", [Claim.SEND])
    await broker.create_policy(None, "one", [Claim.LISTEN])
    assert [policy.claims for policy in broker.policies("hub")] == [{Claim.SEND}]
    with pytest.raises(NotFoundError):
        await broker.create_policy("other", "one", [Claim.SEND])
    with pytest.raises(NotFoundError):
        broker.policy(None, "two")


async def test_at_most_twelve_per_scope(broker: Broker) -> None:
    """Azure's quota, for the namespace and for each hub by itself; a deleted one makes room."""
    await broker.create_event_hub("hub", partition_count=1)
    for scope, free in ((None, POLICIES_MAX - 1), ("hub", POLICIES_MAX)):
        for number in range(free):
            await broker.create_policy(scope, f"p{number}", [Claim.SEND])
        with pytest.raises(QuotaExceededError):
            await broker.create_policy(scope, "more", [Claim.SEND])
        await broker.delete_policy(scope, "p0")
        await broker.create_policy(scope, "more", [Claim.SEND])


async def test_a_hubs_policy_is_good_for_its_hub_only(broker: Broker) -> None:
    """Not for another hub, and not for the namespace, although the signature is genuine."""
    for name in ("hub", "other"):
        await broker.create_event_hub(name, partition_count=1)
    policy = await broker.create_policy("hub", "p", [Claim.LISTEN])
    grant = broker.authorize(_token(policy, "sb://h/HUB"), "sb://h/hub/consumergroups/g/partitions/0")
    assert grant.claims == {Claim.LISTEN}
    for audience in ("sb://h/other", "sb://h", "sb://h/hub2"):
        with pytest.raises(UnauthorizedError, match="InvalidSignature"):
            broker.authorize(_token(policy, audience), audience)
    (by_key,) = broker.authorizer.authorize_key("p", policy.key)
    assert (by_key.resource.path, set(by_key.claims)) == ("hub", {Claim.LISTEN})


async def test_the_same_name_in_two_scopes(broker: Broker) -> None:
    """Each key proves its own policy's claims: nobody gets the rights of the other one."""
    await broker.create_event_hub("hub", partition_count=1)
    wide = await broker.create_policy(None, "p", [Claim.LISTEN])
    narrow = await broker.create_policy("hub", "p", [Claim.SEND])
    assert broker.authorize(_token(wide, "sb://h/hub"), "sb://h/hub").claims == {Claim.LISTEN}
    assert broker.authorize(_token(narrow, "sb://h/hub"), "sb://h/hub").claims == {Claim.SEND}


async def test_either_key_lets_in_and_each_is_regenerated_by_itself(broker: Broker) -> None:
    """Rotation: clients move to the other key, then the first is made anew; nobody else is touched."""
    old = await broker.create_policy(None, "p", [Claim.SEND])
    grants = [
        broker.authorize(_token(old, "sb://h/hub", is_secondary=is_secondary), "sb://h/hub")
        for is_secondary in (False, True)
    ]
    new = await broker.regenerate_key(None, "p")
    assert (new.key != old.key, new.secondary_key == old.secondary_key) == (True, True)
    assert [broker.authorizer.is_in_force(grant) for grant in grants] == [False, True]
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        broker.authorize(_token(old, "sb://h/hub"), "sb://h/hub")
    broker.authorize(_token(new, "sb://h/hub"), "sb://h/hub")
    newer = await broker.regenerate_key(None, "p", is_secondary=True, key="chosen-by-me")
    assert newer.keys == (new.key, "chosen-by-me")
    assert not broker.authorizer.is_in_force(grants[1])


async def test_a_deleted_policy_lets_nobody_in(broker: Broker) -> None:
    """Its grants are over; made again under the name it has other keys."""
    await broker.create_event_hub("hub", partition_count=1)
    policy = await broker.create_policy("hub", "p", [Claim.SEND])
    grant = broker.authorize(_token(policy, "sb://h/hub"), "sb://h/hub")
    await broker.delete_policy("hub", "p")
    again = await broker.create_policy("hub", "p", [Claim.SEND])
    assert again.keys != policy.keys
    assert not broker.authorizer.is_in_force(grant)
    for call in (
        lambda: broker.authorize(_token(policy, "sb://h/hub"), "sb://h/hub"),
        lambda: broker.authorizer.authorize_key("p", policy.key),
    ):
        with pytest.raises(UnauthorizedError, match="InvalidSignature"):
            call()
    with pytest.raises(NotFoundError):
        await broker.delete_policy("hub", "nobody")


async def test_a_change_of_claims_counts_for_old_grants(broker: Broker) -> None:
    """A policy made anew with the same key and fewer claims does not leave the old rights standing."""
    policy = await broker.create_policy(None, "p", [Claim.SEND, Claim.LISTEN])
    grant = broker.authorize(_token(policy, "sb://h/hub"), "sb://h/hub")
    await broker.delete_policy(None, "p")
    await broker.create_policy(None, "p", [Claim.LISTEN], key=policy.key)
    assert not broker.authorizer.is_in_force(grant)


async def test_a_deleted_hub_takes_its_policies_along(broker: Broker) -> None:
    """A hub made anew under the name does not let in who could enter the old one."""
    await broker.create_event_hub("hub", partition_count=1)
    policy = await broker.create_policy("hub", "p", [Claim.SEND])
    await broker.delete_event_hub("hub")
    await broker.create_event_hub("hub", partition_count=1)
    assert broker.policies("hub") == ()
    with pytest.raises(UnauthorizedError):
        broker.authorize(_token(policy, "sb://h/hub"), "sb://h/hub")


async def test_the_last_policy_with_manage_stays(broker: Broker) -> None:
    """Nobody locks himself out; with a second one the root policy may go."""
    await broker.create_policy(None, "send", [Claim.SEND])
    with pytest.raises(InvalidArgumentError, match="last policy with Manage"):
        await broker.delete_policy(None, ROOT_POLICY_NAME)
    await broker.create_policy(None, "admin", [Claim.MANAGE])
    await broker.delete_policy(None, ROOT_POLICY_NAME)
    assert [policy.name for policy in broker.policies()] == ["send", "admin"]


async def test_policies_survive_a_restart(tmp_path: Path, clock: SetClock) -> None:
    """Both scopes, both keys, claims and order; tokens made before are good afterwards."""
    broker = await open_broker(tmp_path, clock=clock)
    await broker.create_event_hub("Hub", partition_count=1)
    await broker.create_policy(None, "z", [Claim.SEND])
    await broker.create_policy("hub", "a", [Claim.LISTEN])
    policy = await broker.regenerate_key("hub", "a", is_secondary=True)
    before = broker.policies(), broker.policies("hub")
    await broker.close()
    broker = await open_broker(tmp_path, clock=clock)
    assert (broker.policies(), broker.policies("hub")) == before
    broker.authorize(_token(policy, "sb://h/hub", is_secondary=True), "sb://h/hub")
    await broker.close()


async def test_a_full_disk_leaves_the_old_key_in_force(clock: SetClock) -> None:
    """What could not be written has not happened: neither in the list nor at the door."""
    files = SimulatedFiles()
    broker = await open_broker(Path("/data"), clock=clock, files=files)
    await broker.create_event_hub("hub", partition_count=1)
    old = await broker.create_policy("hub", "p", [Claim.SEND])
    files.space_left = 10
    for call in (
        lambda: broker.regenerate_key("hub", "p"),
        lambda: broker.delete_policy("hub", "p"),
        lambda: broker.create_policy(None, "q", [Claim.SEND]),
        lambda: broker.event_hub("hub").revoke_publisher("device"),
        lambda: broker.set_throughput_units(3),
    ):
        with pytest.raises(LogFullError):
            await call()
    files.space_left = None
    assert broker.policies("hub") == (old,)
    assert len(broker.policies()) == 1
    assert broker.throughput.units is None
    broker.event_hub("hub").check_publisher("device")
    broker.authorize(_token(old, "sb://h/hub"), "sb://h/hub")
    await broker.close()


async def test_listeners_hear_of_changes_once_they_are_in_force(broker: Broker) -> None:
    """Each change is told after it; a removed listener hears nothing."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    heard: list[int] = []
    remove = broker.authorizer.add_change_listener(lambda: heard.append(len(broker.policies("hub"))))
    await broker.create_policy("hub", "p", [Claim.SEND])
    await broker.delete_policy("hub", "p")
    await hub.revoke_publisher("device")
    assert heard == [1, 0, 0]
    remove()
    remove()
    await broker.create_policy("hub", "p", [Claim.SEND])
    assert len(heard) == 3


async def test_a_listener_that_fails_keeps_no_other_from_hearing(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """One connection's trouble must not leave another with an old key; the change stands."""
    heard: list[str] = []

    def fail() -> None:
        raise RuntimeError("a mistake")

    broker.authorizer.add_change_listener(fail)
    broker.authorizer.add_change_listener(lambda: heard.append("change"))
    await broker.create_policy(None, "p", [Claim.SEND])
    assert heard == ["change"]
    assert "a mistake" in caplog.text
    assert broker.policy(None, "p").claims == {Claim.SEND}


class PolicyMachine(RuleBasedStateMachine):
    """Random changes of one scope's policies against a plain dictionary of what every key should open."""

    def __init__(self) -> None:
        super().__init__()
        root = SharedAccessPolicy.generate("root", Claim)
        self.policies: tuple[SharedAccessPolicy, ...] = (root,)
        self.authorizer = Authorizer(self.policies)
        self.model: dict[str, list[str]] = {"root": list(root.keys)}
        self.dead: list[tuple[str, str]] = []

    names = st.sampled_from(["a", "b", "C"])

    @rule(name=names, claims=st.sets(st.sampled_from(list(Claim)), min_size=1))
    def add(self, name: str, claims: set[Claim]) -> None:
        """A new policy, refused exactly where there is one."""
        try:
            policies = add_policy(self.policies, name, claims, key=None, secondary_key=None)
        except AlreadyExistsError:
            assert name in self.model
            return
        assert name not in self.model
        self._use(policies)
        self.model[name] = list(policies[-1].keys)

    @rule(name=names)
    def remove(self, name: str) -> None:
        """Its keys die."""
        try:
            policies = remove_policy(self.policies, name)
        except NotFoundError:
            assert name not in self.model
            return
        self._use(policies)
        self.dead += [(name, key) for key in self.model.pop(name)]

    @precondition(lambda self: len(self.model) > 1)
    @rule(name=names, is_secondary=st.booleans())
    def regenerate(self, name: str, is_secondary: bool) -> None:
        """One key dies, the other lives."""
        try:
            policies = replace_key(self.policies, name, is_secondary=is_secondary, key=None)
        except NotFoundError:
            assert name not in self.model
            return
        self._use(policies)
        keys = self.model[name]
        self.dead.append((name, keys[is_secondary]))
        keys[is_secondary] = find_policy(policies, name).keys[is_secondary]

    @invariant()
    def exactly_the_living_keys_open(self) -> None:
        """Every living key is let in with its claims, every dead one is not."""
        for name, keys in self.model.items():
            for key in keys:
                (grant,) = self.authorizer.authorize_key(name, key)
                assert grant.claims == find_policy(self.policies, name).claims
                assert self.authorizer.is_in_force(grant)
        for name, key in self.dead:
            with pytest.raises(TidegateError):
                self.authorizer.authorize_key(name, key)

    def _use(self, policies: tuple[SharedAccessPolicy, ...]) -> None:
        self.policies = policies
        self.authorizer.set_policies(policies)


TestPolicyMachine = PolicyMachine.TestCase
TestPolicyMachine.settings = settings(max_examples=30, stateful_step_count=20)


async def test_short_keys_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When one is set and at each start, without the key; never of the service's own or the emulator's."""
    caplog.set_level(logging.WARNING)
    broker = await open_broker(tmp_path, clock=SetClock())
    await broker.create_event_hub("hub", partition_count=1)
    await broker.create_policy("hub", "own", [Claim.SEND])
    await broker.create_policy(None, "known", [Claim.SEND], key=EMULATOR_KEY)
    await broker.create_policy(None, "long", [Claim.SEND], key="x" * 32)
    assert caplog.messages == []
    await broker.create_policy("hub", "short", [Claim.SEND], key="x" * 31)
    await broker.regenerate_key(None, "long", is_secondary=True, key="ä" * 10)
    await broker.close()
    await (await open_broker(tmp_path, clock=SetClock())).close()
    short = "the primary key of the policy short of hub has 31 bytes"
    long = "the secondary key of the policy long of the namespace has 20 bytes"
    assert [message.partition(" and could")[0] for message in caplog.messages] == [short, long, long, short]
    assert "xxx" not in caplog.text
    assert "ää" not in caplog.text
