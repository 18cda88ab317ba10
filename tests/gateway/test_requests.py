"""$cbs and $management: who gets in, for how long, and what is answered where."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.broker.actors import actor_for
from tests.gateway.support import HOST, WAIT_S, Pair
from tests.storage.engines import SlowEngine
from tests.support.clocks import SetClock
from tests.support.partition_turns import partition_turns

from tidegate.amqp.events import ConnectionClosed, DeliveriesReceived
from tidegate.amqp.link import ReceiverLink
from tidegate.amqp.message import Message, MessageId, Properties, decode_message, encode_message
from tidegate.amqp.performatives import Error, Source, Target
from tidegate.amqp.types import Described, Encoded, Short, Symbol
from tidegate.broker import ROOT_POLICY_NAME, Broker, Claim, Partition, acting_as, current_actor
from tidegate.gateway.administration.partition_lists import ROW_BYTES, in_slices
from tidegate.gateway.amqp.request_node import ResponseLink, _WaitingResponses
from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.sas import make_sas_token
from tidegate.transport.clock import SystemClock
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.addresses import NodeKind
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request
from tidegate.wire.management import ManagementRequest, Operation, event_hub_from_map, partition_from_map
from tidegate.wire.request_response import Response

RECEIVER = "hub/ConsumerGroups/$Default/Partitions/0"


@pytest.fixture
async def stranger(broker: Broker, clock: SetClock) -> Pair:
    """A connected client that has presented no token."""
    pair = Pair(broker, clock)
    pair.exchange()
    return pair


@pytest.mark.parametrize("target", ["hub", "hub/Partitions/0"])
async def test_links_need_a_token(stranger: Pair, target: str) -> None:
    """Without a token nothing can be attached but $cbs and $management."""
    sender = stranger.session.attach_sender("s", target=target)
    receiver = stranger.session.attach_receiver("r", source=RECEIVER, target="client")
    stranger.exchange()
    for link in (sender, receiver):
        error = stranger.error_of(link)
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"


async def test_wrong_key_unknown_hub_and_wrong_type(stranger: Pair, broker: Broker) -> None:
    """Each refusal has its status and a sentence; a stranger does not learn which hubs exist."""
    wrong = stranger.put_token(broker, f"sb://{HOST}/hub", key="wrong")
    assert (wrong.status_code, "InvalidSignature" in wrong.status_description) == (401, True)
    blind = stranger.put_token(broker, f"sb://{HOST}/nothing", key="wrong")
    assert blind.status_code == 401
    unknown = stranger.put_token(broker, f"sb://{HOST}/nothing")
    assert unknown.status_code == 404
    assert "'nothing' could not be found" in unknown.status_description
    assert "TrackingId:" in unknown.status_description
    sender, receiver = stranger.request_links("$cbs", stranger.client.begin_session())
    jwt = stranger.request(sender, receiver, put_token_request(PutToken("jwt", f"sb://{HOST}/hub", "x.y.z")))
    assert jwt.status_code == 401
    assert "shared access key" in jwt.status_description


@pytest.mark.parametrize(("key", "status"), [("", 202), ("wrong", 401)])
async def test_a_signature_may_come_as_a_jwt(stranger: Pair, broker: Broker, key: str, status: int) -> None:
    """An application may give its SDK signatures as a TokenCredential; they are verified like any other."""
    audience = f"sb://{HOST}/hub"
    key = key or broker.policy(None, ROOT_POLICY_NAME).key
    token = make_sas_token(audience=audience, key_name=ROOT_POLICY_NAME, key=key, expiry=4_000_000_000)
    links = stranger.request_links("$cbs", stranger.client.begin_session())
    answer = stranger.request(*links, put_token_request(PutToken("jwt", audience, token)))
    assert answer.status_code == status


async def test_token_covers_its_entity_only(stranger: Pair, broker: Broker) -> None:
    """A token for one hub opens its partitions and groups, and no other hub."""
    await broker.create_event_hub("other", partition_count=1)
    assert stranger.put_token(broker, f"amqps://{HOST}:5671/HUB/").status_code == 202
    inside = stranger.session.attach_receiver("inside", source=RECEIVER, target="client")
    outside = stranger.session.attach_sender("outside", target="other")
    stranger.exchange()
    assert inside.is_open
    error = stranger.error_of(outside)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"


async def test_expired_token_ends_open_links(stranger: Pair, broker: Broker, clock: SetClock) -> None:
    """When a token runs out its links are detached; a renewed token keeps them."""
    expiry = int(clock.now.timestamp()) + 100
    stranger.put_token(broker, f"sb://{HOST}/hub", expiry=expiry)
    link = stranger.session.attach_receiver("r", source=RECEIVER, target="client")
    stranger.exchange()
    clock.advance(90)
    stranger.put_token(broker, f"sb://{HOST}/hub", expiry=expiry + 100)
    clock.advance(50)
    stranger.handler.on_rights_changed()
    stranger.exchange()
    assert link.is_open
    clock.advance(100)
    stranger.handler.on_rights_changed()
    stranger.exchange()
    error = stranger.error_of(link)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert "expired" in (error.description or "")


async def test_expiry_is_noticed_without_traffic(broker: Broker, clock: SetClock) -> None:
    """A timer, not the next frame, ends links whose token ran out."""
    pair = Pair(broker, clock)
    pair.put_token(broker, f"sb://{HOST}/hub", expiry=int(clock.now.timestamp()) + 1)
    link = pair.session.attach_receiver("r", source=RECEIVER, target="client")
    pair.exchange()
    clock.advance(5)
    async with asyncio.timeout(WAIT_S):
        while link.is_open:
            pair._changed.clear()
            await pair._changed.wait()


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "expired just now"])
@pytest.mark.slow
async def test_another_token_does_not_put_off_an_expiry(
    broker: Broker, clock: SetClock, is_replaced: bool
) -> None:
    """A receiver ends when the token that let it in expires, whatever its client has presented since: a token
    of another right under the same name, or one under another name at that very moment."""
    await broker.create_policy(None, "listen", [Claim.LISTEN])
    await broker.create_policy(None, "send", [Claim.SEND])
    audience, expiry = f"sb://{HOST}/hub", int(clock.now.timestamp()) + 1
    pair = Pair(broker, clock)
    pair.put_token(broker, audience, expiry=expiry, policy_name="listen")
    link = pair.session.attach_receiver("r", source=RECEIVER, target="client")
    pair.exchange()
    assert link.is_open
    if is_replaced:
        pair.put_token(broker, audience, policy_name="send")
    clock.advance(5)
    if not is_replaced:
        pair.put_token(broker, f"{audience}/publishers/p", policy_name="send")
    assert link.is_open
    async with asyncio.timeout(WAIT_S):
        while link.is_open:
            pair._changed.clear()
            await pair._changed.wait()


async def test_plain_takes_a_policy(broker: Broker, clock: SetClock) -> None:
    """SASL PLAIN with a policy's name and key lets in; with another key the connection ends."""
    policy = broker.authorizer.policy(ROOT_POLICY_NAME)
    assert policy is not None
    response = b"\0" + policy.name.encode() + b"\0" + policy.key.encode()
    pair = Pair(broker, clock, sasl_mechanism="PLAIN", sasl_initial_response=response)
    link = pair.session.attach_sender("s", target="hub")
    pair.exchange()
    assert link.is_open
    refused = Pair(broker, clock, sasl_mechanism="PLAIN", sasl_initial_response=response + b"x")
    refused.exchange()
    assert refused.owner.ended == [refused.handler]


async def test_reply_goes_where_reply_to_says(stranger: Pair, broker: Broker) -> None:
    """Responses find the link by reply-to on another session, else the one of the same session."""
    policy = broker.authorizer.policy(ROOT_POLICY_NAME)
    assert policy is not None
    here, there = stranger.session, stranger.client.begin_session()
    sender = here.attach_sender("requests", target="$cbs")
    same_session = here.attach_receiver("cbs-same", source="$cbs", target=Target())
    by_name = there.attach_receiver("cbs-123", source="$cbs", target=Target())
    by_target = there.attach_receiver("responses", source="$cbs", target="my-address")
    for link in (same_session, by_name, by_target):
        link.grant_credit(5)
    stranger.exchange()
    token = put_token_request(PutToken(SAS_TOKEN_TYPE, f"sb://{HOST}/hub", "SharedAccessSignature bad"))
    for reply_to, expected in ((None, same_session), ("cbs-123", by_name), ("my-address", by_target)):
        properties = Properties(message_id=7, reply_to=reply_to)
        sender.send(
            encode_message(
                Message(
                    properties=properties,
                    application_properties=token.application_properties,
                    value=token.value,
                )
            )
        )
        stranger.exchange()
        (delivery,) = stranger.deliveries(expected)
        message = decode_message(delivery.payload)
        assert message.properties is not None
        assert message.properties.correlation_id == 7
        assert Response.from_message(message).status_code == 401


@pytest.mark.parametrize("reply_to", ["client", "of none", None])
@pytest.mark.slow
async def test_the_link_of_a_response_is_found_without_a_search(
    pair: Pair, reply_to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: for each response to a connection of 5,000 response links, all were looked at:
    9 ms in one step of the event loop, instead of 0.05."""
    looks = 0

    def look(link: ResponseLink) -> NodeKind | None:
        nonlocal looks
        looks += 1
        return cast("NodeKind | None", link.__dict__["kind"])

    def note(link: ResponseLink, kind: NodeKind | None) -> None:
        link.__dict__["kind"] = kind

    monkeypatch.setattr(ResponseLink, "kind", property(look, note), raising=False)
    for count in (40, 40, 1):
        session = pair.client.begin_session()
        links = [session.attach_receiver(f"r{each}", source="$cbs", target="client") for each in range(count)]
    sender = session.attach_sender("requests", target="$cbs")
    links[0].grant_credit(1)
    pair.exchange()
    looks = 0
    sender.send(encode_message(Message(properties=Properties(message_id=1, reply_to=reply_to), value="x")))
    pair.exchange()
    assert len(pair.deliveries(links[0])) == 1
    assert looks < 5


async def test_an_address_that_the_service_makes_up(pair: Pair) -> None:
    """A dynamic source gets an address, and responses of each node that are asked for there."""
    receivers = [
        session.attach_receiver("same name", source=Source(dynamic=True), target="client")
        for session in (pair.client.begin_session(), pair.session)
    ]
    sender = pair.session.attach_sender("requests", target="$management")
    for receiver in receivers:
        receiver.grant_credit(5)
    pair.exchange()
    source = receivers[1].remote_attach.source
    assert source is not None
    assert (source.dynamic, source.address) == (True, "$dynamic/same name")
    message = ManagementRequest(Operation.READ_EVENT_HUB, "hub").to_message()
    for reply_to in (source.address, None):  # Nobody is meant by None: the link is of no node.
        # Qpid Proton has no message-id in its requests.
        properties = Properties(correlation_id="7", reply_to=reply_to)
        sender.send(encode_message(replace(message, properties=properties)))
    pair.exchange()
    assert pair.deliveries(receivers[0]) == []
    (delivery,) = pair.deliveries(receivers[1])
    told = decode_message(delivery.payload).properties
    assert told is not None
    assert told.correlation_id == "7"


async def test_description_of_hub_and_partition(pair: Pair) -> None:
    """READ tells what is there, 404 for an unknown hub, and 400 for an unknown partition."""
    links = pair.request_links("$management")

    def ask(operation: Operation, event_hub: str = "", **kwargs: object) -> Response:
        request = ManagementRequest(operation, event_hub, **kwargs)  # type: ignore[arg-type]
        return pair.request(*links, request.to_message())

    hub = event_hub_from_map(ask(Operation.READ_EVENT_HUB, "HUB").value)
    assert (hub.name, hub.partition_ids) == ("hub", ("0", "1"))
    partition = ask(Operation.READ_PARTITION, "hub", partition_id="1").value
    assert partition_from_map(partition).is_empty
    assert ask(Operation.READ_EVENT_HUB, "nothing").status_code == 404
    unknown = ask(Operation.READ_PARTITION, "hub", partition_id="2")
    assert (unknown.status_code, unknown.error_condition) == (400, "com.microsoft:argument-out-of-range")
    assert ask(Operation.QUERY_PARTITIONS, "nothing").status_code == 404


async def test_administration_over_amqp(pair: Pair, broker: Broker) -> None:
    """Hubs are made, listed and deleted with a Manage claim."""
    links = pair.request_links("$management")
    settings = {"partition_count": 3, "retention_hours": 2}
    create = AdministrationRequest("createEventHub", values={"name": "made", **settings})
    sender, receiver = links
    sender.send(encode_message(create.to_message()))
    await pair.wait_for(lambda: len(pair.deliveries(receiver)) == 1)
    created = Response.from_message(decode_message(pair.deliveries(receiver)[0].payload))
    assert created.status_code == 201
    assert pair.request(*links, create.to_message()).status_code == 409
    response = pair.request(*links, AdministrationRequest("listEventHubs").to_message())
    assert isinstance(response.value, list)
    last = response.value[-1]
    assert isinstance(last, dict)
    assert (last["name"], len(last["partition_ids"]), last["retention_hours"]) == ("made", 3, 2)
    seen = len(pair.deliveries(receiver))
    sender.send(encode_message(AdministrationRequest("deleteEventHub", {"hub": "made"}).to_message()))
    await pair.wait_for(lambda: len(pair.deliveries(receiver)) > seen)
    assert [hub.name for hub in broker.list_event_hubs()] == ["hub"]


async def test_management_needs_a_claim(stranger: Pair) -> None:
    """Without a token $management tells nothing and changes nothing."""
    links = stranger.request_links("$management")
    for request in (
        ManagementRequest(Operation.READ_EVENT_HUB, "hub"),
        ManagementRequest(Operation.QUERY_PARTITIONS, "hub"),
        AdministrationRequest("listEventHubs"),
        AdministrationRequest("createEventHub", values={"name": "made"}),
        AdministrationRequest("listConsumerGroups", {"hub": "hub"}),
    ):
        assert stranger.request(*links, request.to_message()).status_code == 401


async def test_a_token_in_the_request_is_good_for_it_alone(
    stranger: Pair, broker: Broker, clock: SetClock
) -> None:
    """A request may bring its own token, as Java's does; it opens no other hub, and nothing later."""
    links = stranger.request_links("$management")

    def ask(operation: Operation | str, audience: str, key: str, policy_name: str = ROOT_POLICY_NAME) -> int:
        expiry = int(clock.now_utc().timestamp()) + 60
        token = make_sas_token(audience=audience, key_name=policy_name, key=key, expiry=expiry)
        request = (
            AdministrationRequest(operation, {"hub": "hub"}, security_token=token)
            if isinstance(operation, str)
            else ManagementRequest(operation, "hub", security_token=token)
        )
        return stranger.request(*links, request.to_message()).status_code

    key = broker.policy(None, ROOT_POLICY_NAME).key
    assert ask(Operation.READ_EVENT_HUB, f"amqp://{HOST}/hub", key) == 200
    assert ask(Operation.READ_EVENT_HUB, f"amqp://{HOST}/hub/$management", key) == 200
    assert ask(Operation.READ_EVENT_HUB, f"amqp://{HOST}/other", key) == 401
    assert ask(Operation.READ_EVENT_HUB, f"amqp://{HOST}/hub", "wrong") == 401
    await broker.create_policy(None, "reader", [Claim.LISTEN])
    reader = broker.policy(None, "reader").key
    assert ask(Operation.READ_EVENT_HUB, f"amqp://{HOST}/hub", reader, "reader") == 200
    assert ask("deleteEventHub", f"amqp://{HOST}/hub", reader, "reader") == 401
    without = ManagementRequest(Operation.READ_EVENT_HUB, "hub")
    assert stranger.request(*links, without.to_message()).status_code == 401
    sender = stranger.session.attach_sender("s", target="hub")
    stranger.exchange()
    assert stranger.error_of(sender) is not None


async def test_garbled_requests_are_refused(stranger: Pair) -> None:
    """A request without operation is answered with 400, and one that is no message is rejected."""
    links = stranger.request_links("$management")
    assert stranger.request(*links, Message(data=(b"",))).status_code == 400
    links[0].send(b"\x00\x53\x99")
    stranger.exchange()
    assert stranger.settled(links[0])[-1].state is not None
    assert links[0].is_open


@pytest.mark.parametrize("is_session", [True, False])
async def test_a_stranger_has_few_sessions_and_links(stranger: Pair, is_session: bool) -> None:
    """Before a token nobody makes the service keep much: one link or session too many ends the connection."""
    for number in range(40):
        if is_session:
            stranger.client.begin_session()
        else:
            stranger.session.attach_sender(f"link-{number}", target="$cbs" if number % 2 else "hub")
        stranger.exchange()
        if stranger.owner.ended:
            break
    assert stranger.owner.ended
    (closed,) = stranger.of_kind(ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:resource-limit-exceeded"
    assert "token" in (closed.error.description or "")


async def test_an_authorised_client_has_many_links(pair: Pair) -> None:
    """What strangers may not have, a client with a token has."""
    links = [pair.client.begin_session().attach_sender("s", target="hub") for _ in range(100)]
    pair.exchange()
    assert all(link.is_open for link in links)


@pytest.mark.parametrize("node", ["$cbs", "$management"])
async def test_a_strangers_request_is_small(stranger: Pair, node: str) -> None:
    """A message that no token needs is refused before it is whole."""
    sender, _ = stranger.request_links(node)
    sender.send(bytes(17_000))
    stranger.exchange()
    error = stranger.error_of(sender)
    assert error is not None
    assert error.condition == "amqp:link:message-size-exceeded"


async def test_a_request_with_a_token_may_be_larger(pair: Pair) -> None:
    """Administration is for clients with a token, and may describe much; a token is small at any time."""
    for node, bytes_max in (("$management", 65_536), ("$cbs", 16_384)):
        sender, _ = pair.request_links(node)
        assert sender.remote_attach.max_message_size == bytes_max


async def test_answers_that_nobody_takes_are_bounded(stranger: Pair) -> None:
    """A client that asks and gives no credit does not fill the memory with answers that quote it."""
    sender = stranger.session.attach_sender("s", target="$cbs")
    receiver = stranger.session.attach_receiver("r", source="$cbs", target="client")
    stranger.exchange()
    request = Message(
        properties=Properties(message_id="i" * 15_000), application_properties={"operation": "o" * 1_000}
    )
    for _ in range(50):
        sender.send(encode_message(request))
        stranger.exchange()
    receiver.grant_credit(100)
    stranger.exchange()
    taken = stranger.deliveries(receiver)
    assert 0 < sum(len(delivery.payload) for delivery in taken) < 300_000


async def test_answers_that_nobody_takes_are_bounded_over_all_links(stranger: Pair) -> None:
    """Protects memory: answers may be sent to any link, and a client has thousands of them. What waits is
    counted, and given back with the links."""
    sender = stranger.session.attach_sender("s", target="$cbs")
    receivers = [
        stranger.session.attach_receiver(f"r{number}", source="$cbs", target="client") for number in range(10)
    ]
    stranger.exchange()
    for number in range(30):
        properties = Properties(message_id="i" * 15_000, reply_to=f"r{number % 10}")
        sender.send(encode_message(Message(properties=properties, application_properties={"operation": "o"})))
        stranger.exchange()
    assert 60_000 < stranger.held_bytes < 300_000
    for receiver in receivers[:-1]:
        receiver.grant_credit(100)
    stranger.exchange()
    taken = [delivery for receiver in receivers for delivery in stranger.deliveries(receiver)]
    assert len(taken) == 15  # of the 17 that were kept
    assert 30_000 < stranger.held_bytes < 40_000
    receivers[-1].detach()
    stranger.exchange()
    assert stranger.held_bytes == 0


async def test_long_words_of_a_client_are_not_repeated_in_errors(stranger: Pair) -> None:
    """Protects memory and log: a name of 15 KB, each letter of it percent-encoded, is not told at length."""
    links = stranger.request_links("$management")
    long = "\u20ac" * 5_000
    requests = [
        ManagementRequest(Operation.READ_EVENT_HUB, long).to_message(),
        AdministrationRequest("deleteEventHub", {"hub": long}).to_message(),
        Message(application_properties={"operation": "o", "type": long}),
        Message(application_properties={"operation": "READ" + long}),
        Message(application_properties={"operation": long, "type": "tidegate:administration"}, value=["x"]),
    ]
    for request in requests:
        answer = stranger.request(*links, request)
        assert answer.status_code in (400, 401)
        assert len(answer.status_description) < 1500


async def test_what_a_stranger_writes_starts_no_line_in_the_log(
    stranger: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Text of a peer that is quoted in an error cannot look like a line of ours."""
    caplog.set_level("INFO")
    links = stranger.request_links("$management")
    request = ManagementRequest(Operation.READ_EVENT_HUB, "x\nWARNING all is lost")
    assert stranger.request(*links, request.to_message()).status_code == 401
    stranger.client.close(Error(Symbol("a\nb"), "c\nd"))
    stranger.exchange()
    assert stranger.owner.ended
    assert "warning%20all%20is%20lost" in caplog.text
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_a_disk_that_fails_a_request_is_answered(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks while the disk fails gets an error and keeps the connection."""

    async def fail(name: str) -> None:
        raise OSError(5, "injected")

    monkeypatch.setattr(broker, "delete_event_hub", fail)
    monkeypatch.setattr(broker, "create_event_hub", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(5)))
    sender, receiver = pair.request_links("$management")
    for request in (
        AdministrationRequest("deleteEventHub", {"hub": "hub"}),
        AdministrationRequest("createEventHub", values={"name": "hub"}),
    ):
        seen = len(pair.deliveries(receiver))
        sender.send(encode_message(request.to_message()))
        await pair.wait_for(lambda seen=seen: len(pair.deliveries(receiver)) > seen)  # type: ignore[misc]
        response = Response.from_message(decode_message(pair.deliveries(receiver)[-1].payload))
        assert response.status_code == 500
        assert "injected" not in response.status_description
    assert not pair.owner.ended


@pytest.mark.parametrize("node", ["$cbs", "$management"])
async def test_requests_are_worked_off_one_by_one(stranger: Pair, node: str) -> None:
    """Protects neighbours: sixteen requests in one read are sixteen pieces of work, between which others
    have their turn."""
    sender, receiver = stranger.request_links(node)
    sender.send_batch([encode_message(Message(value=number)) for number in range(16)])
    stranger.server.receive_data(b"".join(stranger.client.data_to_send()), now=0.0)
    events = 0
    while (event := stranger.server.next_event()) is not None:
        assert isinstance(event, DeliveriesReceived)
        assert len(event.deliveries) == 1
        stranger.handler.on_event(event)
        events += 1
    assert events == 16
    stranger.exchange()
    assert len(stranger.deliveries(receiver)) == 16


@pytest.mark.parametrize("node", ["$cbs", "$management"])
@pytest.mark.parametrize(
    "message_id",
    [-1, -(1 << 63), Short(-5), True, 1.5, [1], {"a": 1}, Described(Symbol("d"), b"x")],
    ids=repr,
)
@pytest.mark.slow
async def test_any_message_id_can_be_answered(stranger: Pair, node: str, message_id: object) -> None:
    """Protects the connection, and the log, from a request whose message-id is of a type that none has."""
    sender, receiver = stranger.request_links(node)
    properties = Properties(message_id=cast(MessageId, message_id))
    sender.send(encode_message(Message(properties=properties, value="x")))
    stranger.exchange()
    (delivery,) = stranger.deliveries(receiver)
    answered = decode_message(delivery.payload).properties
    assert answered is not None
    assert answered.correlation_id == message_id


async def test_a_long_list_of_partitions_leaves_turns(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours from a request about 1,024 partitions."""
    await broker.create_event_hub("wide", partition_count=40)
    turns = partition_turns(monkeypatch)
    sender, receiver = pair.request_links("$management")
    sender.send(encode_message(ManagementRequest(Operation.QUERY_PARTITIONS, "wide").to_message()))
    pair.exchange()
    await pair.wait_for(lambda: bool(pair.deliveries(receiver)))
    assert len(set(turns)) == len(turns) == 40


async def test_rows_of_long_lists_are_encoded_in_slices(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: 1,024 partitions with 100 histories each took 0.1 to 0.3 s to encode in one step,
    10,000 revoked publishers 25 ms."""
    await broker.event_hub("hub").revoke_publisher("x")
    made: list[object] = []
    collect = SlicedWork.collect

    async def noted(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        made.extend(rows := await collect(self, items, address=address))
        return rows

    monkeypatch.setattr(SlicedWork, "collect", noted)
    links = pair.request_links("$management")
    revoked = AdministrationRequest("listRevokedPublishers", {"hub": "hub"}).to_message()
    lists: list[Any] = [pair.request(*links, message).value for message in (*LISTS, revoked)]
    assert [type(row) for row in made] == [Encoded] * 5
    assert [[row.get("partition") for row in lists[0]], lists[2]] == [["0", "1"], [{"name": "x"}]]
    assert [row["partition_id"] for row in lists[1]] == ["0", "1"]


def test_waiting_responses_are_found_without_a_search() -> None:
    """Protects neighbours: whenever the socket of a connection of 5,000 response links was writable again,
    each of them looked through a hundred responses that waited for another: 20 to 60 ms."""

    class Unsearched(list[tuple[ResponseLink, bytes]]):
        def __iter__(self) -> Iterator[tuple[ResponseLink, bytes]]:
            raise AssertionError

    full, empty = cast(ResponseLink, object()), cast(ResponseLink, object())
    waiting = _WaitingResponses(lambda change: None)
    waiting.put(full, b"1")
    searched, waiting._responses = waiting._responses, Unsearched(waiting._responses)
    assert waiting.take(empty) is None
    assert (waiting.has(empty), waiting.has(full)) == (False, True)
    waiting._responses = searched
    assert [waiting.take(full), waiting.take(full), waiting.has(full)] == [b"1", None, False]


async def test_a_hubs_manager_reaches_no_operation_of_the_namespace(broker: Broker) -> None:
    """A hub named beside an operation whose path has none decides nothing: the request is refused."""
    await broker.create_policy("hub", "ann", [Claim.MANAGE])
    token = make_sas_token(
        audience="sb://localhost/hub",
        key_name="ann",
        key=broker.policy("hub", "ann").key,
        expiry=4_000_000_000,
    )
    pair = Pair(broker, SystemClock())
    links = pair.request_links("$management")
    found = []
    for operation, parameters in (
        ("updateNamespace", {"hub": "hub"}),
        ("updateNamespace", {}),
        ("setCapture", {"hub": "hub"}),
        ("updateEventHub", {"hub": "hub"}),
        ("createConsumerGroup", {"hub": "hub"}),
    ):
        values = {"updateNamespace": {"throughput_units": 3}, "updateEventHub": {"partition_count": 9}}.get(
            operation, {"name": "g"}
        )
        asked = AdministrationRequest(operation, parameters, values, security_token=token)
        found.append(pair.request(*links, asked.to_message()).status_code)
    pair.handler.claims.close()
    assert found == [400, 401, 401, 401, 201]
    assert broker.throughput.units is None


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Partitions are looked at once it is set."""
    ends, may_look = Partition.ends, asyncio.Event()

    async def wait(partition: Partition) -> PartitionEnds:
        await may_look.wait()
        return await ends(partition)

    monkeypatch.setattr(Partition, "ends", wait)
    return may_look


def _answers(pair: Pair, *receivers: ReceiverLink) -> list[Response]:
    deliveries = [delivery for receiver in receivers for delivery in pair.deliveries(receiver)]
    return [Response.from_message(decode_message(delivery.payload)) for delivery in deliveries]


LISTS = [
    ManagementRequest(Operation.QUERY_PARTITIONS, "hub").to_message(),
    AdministrationRequest("listPartitions", {"hub": "hub"}).to_message(),
]


@pytest.mark.parametrize("message", LISTS, ids=["read", "administration"])
async def test_a_client_may_ask_again_when_it_is_answered(
    pair: Pair, look: asyncio.Event, message: Message
) -> None:
    """Protects memory and neighbours: what arrives while sixteen requests are in progress is not begun, be it
    on another link or without credit; what is held for them is counted until they are answered."""
    sender, receiver = pair.request_links("$management")
    more, elsewhere = pair.request_links("$management", pair.client.begin_session())
    held_bytes = pair.held_bytes - pair.handler.claims._answers_bytes
    sender.send_batch([encode_message(message)] * 16)
    pair.exchange()
    assert sender.credit == 0
    assert len(pair.owner.tasks) == 16
    assert 0 < pair.held_bytes - held_bytes < 16 * 1024
    assert pair.owner.budget.statistics().used_bytes == 16 * 2 * ROW_BYTES
    more.send_batch([encode_message(message)] * 16)
    pair.exchange()
    assert len(pair.owner.tasks) == 16
    refused = _answers(pair, elsewhere)
    assert [answer.error_condition for answer in refused] == ["com.microsoft:server-busy"] * 16
    assert more.credit == 16
    look.set()
    await pair.wait_for(lambda: sender.credit == 16)
    assert [answer.status_code for answer in _answers(pair, receiver)] == [200] * 16
    assert pair.held_bytes - pair.handler.claims._answers_bytes == held_bytes
    assert pair.owner.budget.statistics().used_bytes == 0


@pytest.mark.parametrize("message", LISTS, ids=["read", "administration"])
async def test_a_policy_has_one_list_at_a_time(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch, message: Message
) -> None:
    """Protects clients beside it, the metrics and a stop: 40 connections with 16 lists of 1,024 partitions
    each had most turns of their address for a minute. With other policies beside it, it is the same one."""
    for name in ("a", "b"):
        await broker.create_policy("hub", name, [Claim.MANAGE])
    in_progress = most = 0
    collect = SlicedWork.collect

    async def slow(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        nonlocal in_progress, most
        in_progress += 1
        most = max(most, in_progress)
        await asyncio.sleep(0)
        in_progress -= 1
        return await collect(self, items, address=address)

    monkeypatch.setattr(SlicedWork, "collect", slow)
    links = [
        pair.request_links("$management"),
        pair.request_links("$management", pair.client.begin_session()),
    ]
    for name, (sender, _) in zip(("a", "b"), links, strict=True):
        sender.send_batch([encode_message(message)] * 4)
        pair.exchange()
        key = broker.policy("hub", name).key
        assert pair.put_token(broker, f"sb://{name}/hub", policy_name=name, key=key).status_code == 202
    await pair.wait_for(lambda: len(_answers(pair, *(receiver for _, receiver in links))) == 8)
    assert most == 1


async def test_tokens_for_hubs_hold_up_no_list_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share one list at a time, for whatever hubs they are: names of hubs are free."""
    in_progress: list[str] = []
    may_end = asyncio.Event()

    async def held(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        in_progress.append(current_actor().hub)
        await may_end.wait()
        return list(items)

    async def ask(hub: str) -> list[int]:
        with acting_as(actor_for(hub, "root")):
            return await in_slices(iter([1]), work)

    monkeypatch.setattr(SlicedWork, "collect", held)
    work = SlicedWork()
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(hub)) for hub in ("a", "a", "b", "")]
        while "" not in in_progress:  # noqa: ASYNC110 - the others have been asked before
            await asyncio.sleep(0)
        assert in_progress == ["a", ""]
        may_end.set()
    assert [each.result() for each in asked] == [[1]] * 4


@pytest.mark.parametrize("message", LISTS, ids=["read", "administration"])
async def test_a_list_takes_the_time_of_its_client(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, message: Message
) -> None:
    """Protects clients elsewhere: lists for one address do not share its turns."""
    addresses: list[object] = []
    collect = SlicedWork.collect

    async def noted(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        addresses.append(address)
        return await collect(self, items, address=address)

    monkeypatch.setattr(SlicedWork, "collect", noted)
    monkeypatch.setattr(Pair, "peer_name", "192.0.2.7:4711")
    pair.request(*pair.request_links("$management"), message)
    assert addresses == [site_at("192.0.2.7")]


async def test_what_is_read_for_a_client_ends_with_it(clock: SetClock, look: asyncio.Event) -> None:
    """Protects the service from lists that nobody waits for; a change is made in full, or nobody would know
    what is left of it."""
    broker = await Broker.open(SlowEngine(), clock=clock)
    await broker.create_event_hub("hub", partition_count=2)
    pair = Pair(broker, clock)
    pair.put_token(broker, f"sb://{HOST}/")
    sender, _ = pair.request_links("$management")
    change = AdministrationRequest("createConsumerGroup", {"hub": "hub"}, {"name": "group"})
    for message in (*LISTS, change.to_message()):
        sender.send(encode_message(message))
    pair.exchange()
    *reads, made = pair.owner.tasks
    pair.client.close()
    pair.exchange()
    assert pair.owner.ended
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*reads, made, return_exceptions=True)
    assert [read.cancelled() for read in reads] == [True, True]
    assert not made.cancelled()
    assert broker.event_hub("hub").description.consumer_groups == ("$Default", "group")
    await broker.close()


@pytest.mark.parametrize("message", LISTS, ids=["read", "administration"])
async def test_a_list_that_waits_is_not_given_without_its_right(
    pair: Pair, broker: Broker, look: asyncio.Event, message: Message
) -> None:
    """Lists of one policy wait for each other, and all take the turns of their address."""
    sender, receiver = pair.request_links("$management")
    sender.send(encode_message(message))
    pair.exchange()
    await broker.regenerate_key(None, ROOT_POLICY_NAME)
    look.set()
    await pair.wait_for(lambda: bool(pair.deliveries(receiver)))
    assert [answer.status_code for answer in _answers(pair, receiver)] == [401]
