"""What is taken away at run time is gone from open connections, too, and from nobody else's."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import datetime, timedelta

import pytest
from tests.gateway.support import HOST, Pair
from tests.support.clocks import SetClock

from tidegate.amqp.events import ConnectionFailed, LinkDetached
from tidegate.amqp.link import Link, SenderLink
from tidegate.amqp.message import Message, decode_message, encode_message
from tidegate.amqp.performatives import Rejected
from tidegate.amqp.types import Short
from tidegate.broker import ROOT_POLICY_NAME, Broker, Claim, Grant, SharedAccessPolicy
from tidegate.broker.authorization import Authorizer
from tidegate.gateway.amqp import claims
from tidegate.gateway.amqp.claims import ConnectionClaims
from tidegate.gateway.amqp.ingress import IngressLink
from tidegate.model.audience import EntityPath, entity_path
from tidegate.model.errors import UnauthorizedError
from tidegate.model.sas import make_sas_token
from tidegate.transport.at_once import at_once
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, batch_envelope, wrap_event
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request
from tidegate.wire.names import IDEMPOTENT_PRODUCER_CAPABILITY, PRODUCER_EPOCH, PRODUCER_ID
from tidegate.wire.request_response import Response

LARGE_BATCH = batch_envelope() + wrap_event(encode_message(Message(data=(b"event",)))) * 300
RECEIVER = "hub/ConsumerGroups/$Default/Partitions/0"


def _connect(
    broker: Broker, clock: SetClock, policy: SharedAccessPolicy, *, is_secondary: bool = False
) -> Pair:
    """A client with a token for the hub, made with one of the policy's keys."""
    pair = Pair(broker, clock)
    audience = f"sb://{HOST}/hub"
    key = policy.secondary_key if is_secondary else policy.key
    token = make_sas_token(audience=audience, key_name=policy.name, key=key, expiry=4_000_000_000)
    sender, receiver = pair.request_links("$cbs", pair.client.begin_session())
    message = put_token_request(PutToken(SAS_TOKEN_TYPE, audience, token))
    assert pair.request(sender, receiver, message).status_code == 202
    return pair


def _attach(pair: Pair) -> tuple[Link, Link]:
    sender = pair.session.attach_sender("s", target="hub")
    receiver = pair.session.attach_receiver("r", source=RECEIVER, target="client")
    receiver.grant_credit(10)
    pair.exchange()
    assert sender.is_open
    assert receiver.is_open
    return sender, receiver


def _assert_ended(pair: Pair, links: tuple[Link, Link]) -> None:
    pair.exchange()
    for link in links:
        error = pair.error_of(link)
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
        assert error.description is not None
        assert "key that signed it regenerated" in error.description


@pytest.mark.parametrize("scope", [None, "hub"])
@pytest.mark.parametrize("is_secondary", [False, True])
@pytest.mark.slow
async def test_a_regenerated_key_ends_the_links_opened_with_it(
    broker: Broker, clock: SetClock, scope: str | None, is_secondary: bool
) -> None:
    """Those of the policy's other key, and of other policies, go on; a new token opens links again."""
    policy = await broker.create_policy(scope, "both", [Claim.SEND, Claim.LISTEN])
    touched = _connect(broker, clock, policy, is_secondary=is_secondary)
    other_key = _connect(broker, clock, policy, is_secondary=not is_secondary)
    root = broker.policy(None, ROOT_POLICY_NAME)
    other_policy = _connect(broker, clock, root)
    pairs = (touched, other_key, other_policy)
    links = [_attach(pair) for pair in pairs]
    renewed = await broker.regenerate_key(scope, "both", is_secondary=is_secondary)
    _assert_ended(touched, links[0])
    for pair, pair_links in zip(pairs[1:], links[1:], strict=True):
        pair.exchange()
        assert [link.is_open for link in pair_links] == [True, True]
    _attach(_connect(broker, clock, renewed, is_secondary=is_secondary))
    refused = touched.session.attach_sender("again", target="hub")
    touched.exchange()
    error = touched.error_of(refused)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize("scope", [None, "hub"])
async def test_a_deleted_policy_ends_its_links(broker: Broker, clock: SetClock, scope: str | None) -> None:
    """At once, without waiting for the token's expiry; the partition is free for others."""
    policy = await broker.create_policy(scope, "both", [Claim.SEND, Claim.LISTEN])
    pair = _connect(broker, clock, policy)
    links = _attach(pair)
    await broker.delete_policy(scope, "both")
    _assert_ended(pair, links)
    assert broker.event_hub("hub").partition("0").receivers() == []


async def test_a_second_token_keeps_the_links(broker: Broker, clock: SetClock) -> None:
    """A link that another token of the connection covers stays, as at expiry."""
    policy = await broker.create_policy("hub", "both", [Claim.SEND, Claim.LISTEN])
    pair = _connect(broker, clock, policy)
    assert pair.put_token(broker, f"sb://{HOST}/").status_code == 202
    links = _attach(pair)
    await broker.delete_policy("hub", "both")
    pair.exchange()
    assert [link.is_open for link in links] == [True, True]


async def test_sasl_plain_ends_with_its_key(broker: Broker, clock: SetClock) -> None:
    """A hub's policy lets in by PLAIN, to its hub only; a new key ends what was opened with the old one."""
    await broker.create_event_hub("other", partition_count=1)
    policy = await broker.create_policy("hub", "both", [Claim.SEND, Claim.LISTEN])
    pair = Pair(
        broker,
        clock,
        sasl_mechanism="PLAIN",
        sasl_initial_response=f"\0both\0{policy.secondary_key}".encode(),
    )
    pair.exchange()
    links = _attach(pair)
    outside = pair.session.attach_sender("outside", target="other")
    pair.exchange()
    assert pair.error_of(outside) is not None
    await broker.regenerate_key("hub", "both", is_secondary=True)
    _assert_ended(pair, links)


async def test_a_key_of_too_many_hubs_is_refused(
    broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wrong key is, and before any right is kept: the connection failed with a traceback in the log."""
    monkeypatch.setattr(claims, "GRANTS_MAX", 2)
    for name in ("hub", "second", "third"):
        if name != "hub":
            await broker.create_event_hub(name, partition_count=1)
        await broker.create_policy(name, "both", [Claim.SEND], key="the key of all of them, and long")

    def connect() -> Pair:
        response = b"\0both\0the key of all of them, and long"
        pair = Pair(broker, clock, sasl_mechanism="PLAIN", sasl_initial_response=response)
        pair.exchange()
        return pair

    refused = connect()
    assert refused.handler.claims.is_empty
    assert isinstance(refused.events[-1], ConnectionFailed)
    await broker.delete_policy("third", "both")
    assert not connect().handler.claims.is_empty


async def test_a_restored_token_works_after_a_lost_one(broker: Broker, clock: SetClock) -> None:
    """The connection itself stays: a token made with the new key opens links on it."""
    policy = await broker.create_policy("hub", "both", [Claim.SEND, Claim.LISTEN])
    pair = _connect(broker, clock, policy)
    _attach(pair)
    await broker.delete_policy("hub", "both")
    pair.exchange()
    assert pair.put_token(broker, f"sb://{HOST}/hub").status_code == 202
    sender = pair.session.attach_sender("s2", target="hub")
    pair.exchange()
    assert sender.is_open


async def test_a_right_is_lost_before_its_connection_is_visited(broker: Broker, clock: SetClock) -> None:
    """After a change thousands of connections are visited, in turns: none sends or receives until then."""
    policy = await broker.create_policy("hub", "both", [Claim.SEND, Claim.LISTEN])
    pair = _connect(broker, clock, policy)
    sender, receiver = _attach(pair)
    assert isinstance(sender, SenderLink)
    pair.stop_visits()
    await broker.delete_policy("hub", "both")
    sender.send(b"\x00Su\xa0\x01x")
    pair.exchange()
    assert isinstance(pair.settled(sender)[0].state, Rejected)
    await broker.event_hub("hub").partition("0").append(b"\x00Su\xa0\x01x", [6])
    await pair.wait_for(lambda: bool(pair.of_kind(LinkDetached)))
    assert not pair.deliveries(receiver)


@pytest.mark.slow
async def test_claims_are_not_kept_alive_by_the_namespace(broker: Broker, clock: SetClock) -> None:
    """A change counts at the next use, and the memory of a connection that is over is given back."""
    claims = ConnectionClaims(broker, clock, lambda: None)
    root = broker.policy(None, ROOT_POLICY_NAME)
    claims.put_policy(root.name, root.key)
    claims.require(entity_path("hub"), Claim.SEND)
    await broker.create_policy(None, "new", [Claim.SEND])
    claims.require(entity_path("hub"), Claim.SEND)
    await broker.regenerate_key(None, root.name)
    with pytest.raises(UnauthorizedError, match="no longer valid"):
        claims.require(entity_path("hub"), Claim.SEND)
    claims.close()
    with pytest.raises(UnauthorizedError):
        claims.require(entity_path("hub"), Claim.SEND)
    reference = weakref.ref(claims)
    del claims
    gc.collect()
    assert reference() is None


def _send_waiting(pair: Pair) -> SenderLink:
    """Send batches that are so large that their events are rewritten in slices, after others' batches."""
    link = pair.session.attach_sender("p", target="hub/Publishers/device-1")
    pair.exchange()
    assert link.is_open
    for _ in range(3):
        link.send(LARGE_BATCH, message_format=BATCH_MESSAGE_FORMAT)
    pair.exchange()
    return link


async def _finish_tasks(pair: Pair) -> None:
    """Have everything that waits stored or refused."""
    await asyncio.gather(*pair.owner.tasks)
    pair.exchange()


def _stored_count(broker: Broker) -> int:
    return sum(partition.next_sequence_number for partition in broker.event_hub("hub").partitions)


@pytest.mark.parametrize("change", ["policy", "key", "publisher"])
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.slow
async def test_a_batch_that_waits_is_not_stored_without_its_right(
    broker: Broker, clock: SetClock, change: str, is_closed: bool
) -> None:
    """What is taken away while a batch waits for its turn is gone from it, too, even behind a closed link."""
    policy = await broker.create_policy("hub", "both", [Claim.SEND])
    pair = _connect(broker, clock, policy)
    link = _send_waiting(pair)
    if is_closed:
        link.detach()
        pair.exchange()
    match change:
        case "policy":
            await broker.delete_policy("hub", "both")
        case "key":
            await broker.regenerate_key("hub", "both")
        case _:
            await broker.event_hub("hub").revoke_publisher("device-1")
    await _finish_tasks(pair)
    await pair.wait_for(lambda: not pair.owner.unacknowledged_bytes)
    assert _stored_count(broker) == 0


async def test_a_batch_that_waits_is_stored_with_its_right(broker: Broker, clock: SetClock) -> None:
    """Neither the link's end nor a change of another policy costs a sender what it has sent."""
    pair = _connect(broker, clock, await broker.create_policy("hub", "both", [Claim.SEND]))
    _send_waiting(pair)
    pair.client.close()
    pair.exchange()
    await broker.create_policy("hub", "other", [Claim.LISTEN])
    await _finish_tasks(pair)
    await broker.event_hub("hub").partition_for("device-1").wait_appended(899)
    assert _stored_count(broker) == 900


async def test_a_batch_that_waits_goes_to_no_later_hub(prompt_broker: Broker, clock: SetClock) -> None:
    """Protects a hub that was created again: what was sent to the deleted one, by its policy, stays out."""
    pair = _connect(prompt_broker, clock, await prompt_broker.create_policy("hub", "both", [Claim.SEND]))
    link = _send_waiting(pair)
    pair.owner.start_task(prompt_broker.delete_event_hub("hub"), "deletion")
    await asyncio.sleep(0)
    await prompt_broker.create_event_hub("hub", partition_count=1)
    link.send(LARGE_BATCH, message_format=BATCH_MESSAGE_FORMAT)
    pair.exchange()
    await _finish_tasks(pair)
    await pair.wait_for(lambda: not pair.owner.unacknowledged_bytes)
    assert _stored_count(prompt_broker) == 0


async def test_an_attach_that_waits_is_refused_without_its_right(broker: Broker, clock: SetClock) -> None:
    """An idempotent producer's attach waits for the disk; a policy deleted meanwhile opens no link."""
    pair = _connect(broker, clock, await broker.create_policy("hub", "both", [Claim.SEND]))
    capabilities = [IDEMPOTENT_PRODUCER_CAPABILITY]
    link = pair.session.attach_sender("s", target="hub/Partitions/0", desired_capabilities=capabilities)
    pair.exchange()
    assert not link.is_open
    await broker.delete_policy("hub", "both")
    await _finish_tasks(pair)
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert not link.remote_attach.properties


async def test_an_attach_without_its_right_detaches_no_other_producer(
    broker: Broker, clock: SetClock
) -> None:
    """A newer instance shuts the older out, but not if its policy ended before its attach was judged."""
    capabilities = [IDEMPOTENT_PRODUCER_CAPABILITY]

    def attach(pair: Pair, epoch: int) -> SenderLink:
        return pair.session.attach_sender(
            "s",
            target="hub/Partitions/0",
            desired_capabilities=capabilities,
            properties={PRODUCER_ID: 7, PRODUCER_EPOCH: Short(epoch)},
        )

    older = _connect(broker, clock, await broker.create_policy("hub", "older", [Claim.SEND]))
    newer = _connect(broker, clock, await broker.create_policy("hub", "newer", [Claim.SEND]))
    link = attach(older, 1)
    await older.wait_for(lambda: link.is_open)
    attach(newer, 2)
    newer.exchange()
    await broker.delete_policy("hub", "newer")
    await _finish_tasks(newer)
    older.exchange()
    assert link.is_open


async def test_a_hub_is_deleted_in_the_turn_in_which_the_right_was_checked(
    broker: Broker, clock: SetClock
) -> None:
    """A deletion over AMQP removes files in a task, and the hub at once: a policy that ends before the task
    begins, or another hub that is created under the name, makes no difference."""
    pair = _connect(broker, clock, await broker.create_policy("hub", "manager", [Claim.MANAGE]))
    sender, receiver = pair.request_links("$management")
    sender.send(encode_message(AdministrationRequest("deleteEventHub", {"hub": "hub"}).to_message()))
    pair.exchange()
    assert broker.list_event_hubs() == []
    await broker.create_event_hub("hub", partition_count=1)
    await _finish_tasks(pair)
    (delivery,) = pair.deliveries(receiver)
    assert Response.from_message(decode_message(delivery.payload)).status_code < 300
    assert [hub.name for hub in broker.list_event_hubs()] == ["hub"]


async def test_a_client_that_is_gone_is_recorded_with_its_address(broker: Broker, clock: SetClock) -> None:
    """A deletion whose request has a token is completed after its connection has ended. The audit trail names
    the client then, too, not the service itself."""
    manager = await broker.create_policy("hub", "manager", [Claim.MANAGE])
    token = make_sas_token(
        audience=f"sb://{HOST}/hub", key_name=manager.name, key=manager.key, expiry=4_000_000_000
    )
    pair = Pair(broker, clock)
    sender, _ = pair.request_links("$management")
    asked = AdministrationRequest("deleteEventHub", {"hub": "hub"}, security_token=token)
    sender.send(encode_message(asked.to_message()))
    pair.client.close()
    pair.exchange()
    await _finish_tasks(pair)
    assert broker.list_event_hubs() == []
    record = broker.audit.newest_first()[0]
    assert (record.policy, record.door, record.address) == ("manager", "amqp", "test")


async def test_many_links_end_in_turns(broker: Broker, clock: SetClock) -> None:
    """Protects neighbours: 100 links that lose their policy are not detached in one go, but nothing that is
    sent on one of them counts from the change on."""
    policy = await broker.create_policy("hub", "both", [Claim.SEND, Claim.LISTEN])
    pair = _connect(broker, clock, policy)
    links = [pair.session.attach_sender(f"s{number}", target="hub/Partitions/0") for number in range(100)]
    pair.exchange()
    assert all(link.is_open for link in links)
    before = pair.turns
    await broker.delete_policy("hub", "both")
    for link in links:
        link.send(encode_message(Message(data=(b"late",))), settled=True)
    pair.exchange()
    for link in links:
        error = pair.error_of(link)
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
    assert 5 <= pair.turns - before <= 100
    assert broker.event_hub("hub").statistics().incoming_requests == 0


async def test_a_change_costs_nothing_for_each_token_and_link(
    broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: all connections hear of a change of policies at once, and each may have thousands
    of tokens and links. They are judged in turns, and before anything else is sent or taken."""
    policy = await broker.create_policy("hub", "both", [Claim.SEND, Claim.LISTEN])
    await broker.create_policy("hub", "other", [Claim.SEND])
    pair = _connect(broker, clock, policy)
    for number in range(200):
        pair.session.attach_sender(f"s{number}", target="hub/Partitions/0")
    pair.exchange()
    judged: list[str] = []
    is_in_force = Authorizer.is_in_force

    def counted(authorizer: Authorizer, grant: Grant) -> bool:
        judged.append("token")
        return is_in_force(authorizer, grant)

    check_usable = IngressLink.check_usable

    def checked(link: IngressLink) -> None:
        judged.append("link")
        check_usable(link)

    monkeypatch.setattr(Authorizer, "is_in_force", counted)
    monkeypatch.setattr(IngressLink, "check_usable", checked)
    before = pair.turns
    await broker.regenerate_key("hub", "other")
    assert not judged
    pair.exchange()
    assert (judged.count("token"), judged.count("link")) == (1, 200)
    assert pair.turns - before >= 4


async def test_changes_without_end_do_not_keep_receivers_waiting(broker: Broker, clock: SetClock) -> None:
    """Protects neighbours: whoever manages one hub changes its policies faster than many links are judged."""
    await broker.create_policy("hub", "other", [Claim.SEND])
    pair = _connect(broker, clock, await broker.create_policy("hub", "both", [Claim.SEND, Claim.LISTEN]))
    for number in range(200):
        pair.session.attach_sender(f"s{number}", target="hub/Partitions/0")
    _, receiver = _attach(pair)
    on_turn, turns, sent_at = pair.handler.on_turn, 0, 0

    def change_and_turn() -> bool:
        nonlocal turns, sent_at
        turns += 1
        if turns < 50:
            at_once(broker.regenerate_key("hub", "other"))
        has_more = on_turn()
        sent_at = sent_at or (turns if broker.event_hub("hub").statistics().outgoing_events else 0)
        return has_more

    pair.handler.on_turn = change_and_turn  # type: ignore[method-assign]
    await broker.event_hub("hub").partition("0").append(b"\x00Su\xa0\x01x", [6])
    await pair.wait_for(lambda: bool(pair.deliveries(receiver)))
    assert 0 < sent_at <= 3


async def test_links_are_judged_without_a_search_among_tokens(
    broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: whoever has as many tokens as links does not pay for their product when one ends.

    Of several tokens of one policy for one entity, the one that lasts longest counts.
    """
    root = broker.policy(None, ROOT_POLICY_NAME)
    claims = ConnectionClaims(broker, clock, lambda: None)
    now = int(clock.now_utc().timestamp())

    def put(audience: str, expiry: int) -> None:
        token = make_sas_token(audience=audience, key_name=root.name, key=root.key, expiry=expiry)
        claims.put_token(token, token_type=SAS_TOKEN_TYPE, audience=audience)

    for number in range(50):
        put(f"sb://{HOST}/hub/publishers/p{number}", now + 1000)
    for number, seconds in enumerate((10, 500, 20)):
        put(f"sb://host-{number}/hub/publishers/shared", now + seconds)
    judged: list[str] = []
    permits = Grant.permits

    def counted(grant: Grant, path: EntityPath, claim: Claim, *, now_utc: datetime) -> bool:
        judged.append(path)
        return permits(grant, path, claim, now_utc=now_utc)

    monkeypatch.setattr(Grant, "permits", counted)
    with pytest.raises(UnauthorizedError):
        claims.require(entity_path("hub"), Claim.SEND)
    assert not judged
    for number in range(50):
        claims.require(entity_path("hub", "Publishers", f"P{number}"), Claim.SEND)
    assert len(judged) == 50
    clock.now += timedelta(seconds=400)
    claims.require(entity_path("hub", "Publishers", "shared"), Claim.SEND)
    clock.now += timedelta(seconds=100)
    with pytest.raises(UnauthorizedError, match="ExpiredToken"):
        claims.require(entity_path("hub", "Publishers", "shared"), Claim.SEND)
    claims.close()


async def test_the_secret_is_in_no_log_line(
    broker: Broker, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither while keys change nor when their users are thrown out or refused."""
    caplog.set_level(0)
    policy = await broker.create_policy("hub", "both", [Claim.SEND, Claim.LISTEN], key="a-well-known-secret")
    pair = _connect(broker, clock, policy)
    links = _attach(pair)
    renewed = await broker.regenerate_key("hub", "both", key="another-known-secret")
    _assert_ended(pair, links)
    stranger = Pair(
        broker, clock, sasl_mechanism="PLAIN", sasl_initial_response=b"\0both\0a-well-known-secret"
    )
    stranger.exchange()
    await broker.delete_policy("hub", "both")
    for key in (*policy.keys, *renewed.keys):
        assert key not in caplog.text


async def test_a_hub_made_again_knows_no_grants_of_the_one_before(broker: Broker, clock: SetClock) -> None:
    """The same name, policy and key: a connection that is left over has to show its token again."""
    await broker.create_event_hub("tenant", partition_count=1)
    policy = await broker.create_policy("tenant", "both", [Claim.SEND])
    pair = Pair(broker, clock)
    audience = f"sb://{HOST}/tenant"

    def show_token() -> None:
        assert pair.put_token(broker, audience, key=policy.key, policy_name="both").status_code == 202

    show_token()
    await broker.delete_event_hub("tenant")
    await broker.create_event_hub("tenant", partition_count=1)
    await broker.create_policy(
        "tenant", "both", [Claim.SEND], key=policy.key, secondary_key=policy.secondary_key
    )
    before = pair.session.attach_sender("before", target="tenant")
    pair.exchange()
    assert not before.is_open
    show_token()
    after = pair.session.attach_sender("after", target="tenant")
    pair.exchange()
    assert after.is_open


@pytest.mark.parametrize("audience", ["localhost", "localhost/hub", "localhost:5671/hub"])
async def test_links_end_when_a_hub_takes_the_name_that_was_the_services(
    broker: Broker, clock: SetClock, audience: str
) -> None:
    """A token for ``HOST`` or ``HOST/HUB`` is for the service only while no event hub is called HOST."""
    pair = Pair(broker, clock)
    assert pair.put_token(broker, audience).status_code == 202
    link = pair.session.attach_sender("s", target="hub")
    pair.exchange()
    assert link.is_open
    await broker.create_event_hub("another", partition_count=1)
    pair.exchange()
    assert link.is_open
    await broker.create_event_hub("localhost", partition_count=1)
    pair.exchange()
    assert not link.is_open


async def test_a_change_costs_nothing_per_link_before_its_connections_turn(
    pair: Pair, broker: Broker
) -> None:
    """Protects neighbours: 130,000 links, as many as memory allows, took 10 to 30 ms at each change of
    anybody's policy."""
    link = pair.session.attach_receiver("r", source=RECEIVER, target="client")
    pair.exchange()
    turns = pair.turns
    await broker.create_policy(None, "another", [Claim.LISTEN])
    assert (pair.turns, pair.handler._unjudged) == (turns, {})
    pair.exchange()
    assert pair.turns > turns
    assert link.is_open
