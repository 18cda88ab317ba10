"""``$cbs`` and ``$management``: requests on one link of a client, responses on another.

A response goes to the link that the request's reply-to names (of several, to one of the same session), else
to the session's link on the same node. Without credit it waits; without such a link it is dropped, because
the client could not receive it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tidegate.amqp.decode import PROTOCOL_LIMITS
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.events import Delivery
from tidegate.amqp.limits import compacted
from tidegate.amqp.link import LinkSession, ReceiverLink, SenderLink
from tidegate.amqp.message import MessageId, Properties, decode_message
from tidegate.amqp.performatives import Accepted, DeliveryState, Rejected, Target
from tidegate.gateway.amqp.management import ManagementService, PendingAnswer
from tidegate.gateway.amqp.owner import LinkNode, NodeOwner
from tidegate.model.errors import InvalidKeyError, ServerBusyError
from tidegate.wire.addresses import NodeKind
from tidegate.wire.cbs import ACCEPTED, PutToken
from tidegate.wire.conditions import response_status_for, to_amqp_error
from tidegate.wire.request_response import Request, encode_response, request_id

_TOKENS_CREDIT = 100
"""Concurrent requests on a link to ``$cbs`` (as in Event Hubs: vcabbage/amqp#43); the service does not wait
for anything to answer them."""

_IN_PROGRESS_MAX = 16
"""Requests of one connection that may wait for the disk, or for others; also the concurrent requests on a
link to ``$management`` (our choice: a list of 1,024 partitions takes a megabyte)."""

_WAITING_MAX = 100
_WAITING_BYTES_MAX = 256 * 1024
"""Maximum responses that wait for a client's credit, over all links of its connection (our choice): as many
as concurrent requests on a link to ``$cbs``, and one of any size."""

_log = logging.getLogger(__name__)

K = TypeVar("K")


class RequestNodes:
    """The request nodes of one connection."""

    def __init__(self, owner: NodeOwner, management: ManagementService) -> None:
        self._owner = owner
        self._management = management
        self.response_links = _ResponseLinks()
        self.waiting = _WaitingResponses(owner.add_held)
        self._in_progress = 0
        self._reads: set[asyncio.Task[None]] = set()
        self._late: dict[object, tuple[_Route, InvalidKeyError, int]] = {}
        """Wrong keys whose answers are delayed, with the bytes of their requests."""

    def close(self) -> None:
        """The connection has ended: give up reading for it. Changes that have begun are completed."""
        for read in tuple(self._reads):
            read.cancel()
        self._late.clear()

    def handle(
        self, link: ReceiverLink, kind: NodeKind, payload: bytes, on_answered: Callable[[], None]
    ) -> bool:
        """Answer one request; returns False if that takes time, and then calls ``on_answered`` afterwards.

        Raises DecodeError if it is not a message.
        """
        message = decode_message(payload, PROTOCOL_LIMITS)
        properties = message.properties or Properties()
        route = _Route(link, kind, request_id(properties), properties.reply_to)
        try:
            request = Request.from_message(message)
            if kind is NodeKind.CBS:
                answer: bytes | PendingAnswer = self._put_token(request)
            else:
                self._owner.note_use()
                self._check_in_progress()
                answer = self._management.handle(request, self._owner.claims)
        except Exception as error:  # As in ``_finish``: a failing disk must not end the connection.
            if isinstance(error, InvalidKeyError) and error.answer_after_s:
                self._refuse_later(route, error, len(payload))
            else:
                self._refuse(route, error)
            return True
        if isinstance(answer, bytes):
            self._respond(route, answer)
            return True
        self._count(len(payload), 1)
        finishing = self._finish(route, answer, len(payload), on_answered)
        task = self._owner.start_task(finishing, f"{kind.value} request")
        if answer.is_read:
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)
        return False

    def _count(self, payload_bytes: int, change: int) -> None:
        """A request is in progress (change: 1), or no longer (-1)."""
        self._in_progress += change
        self._owner.add_held(change * payload_bytes)

    def _check_in_progress(self) -> None:
        if self._in_progress >= _IN_PROGRESS_MAX:
            raise ServerBusyError(
                f"{_IN_PROGRESS_MAX} requests of the connection are in progress, the maximum.",
                next_step="Wait for their answers, and repeat this one.",
                retry_after_s=1.0,
            )

    def _put_token(self, request: Request) -> bytes:
        put_token = PutToken.from_request(request)
        self._owner.claims.put_token(
            put_token.token, token_type=put_token.token_type, audience=put_token.audience
        )
        return encode_response(request.message_id, ACCEPTED)

    async def _finish(
        self, route: _Route, answer: PendingAnswer, payload_bytes: int, on_answered: Callable[[], None]
    ) -> None:
        try:
            response = await answer.response()
        except Exception as error:  # Any failure is reported to the client, and logged by ``_refuse``.
            self._refuse(route, error)
        else:
            self._respond(route, response)
        finally:
            self._count(payload_bytes, -1)
        on_answered()
        self._owner.schedule_flush()

    def _refuse_later(self, route: _Route, error: InvalidKeyError, held_bytes: int) -> None:
        key = object()
        # Its traceback would keep the request, which may take eighty times its bytes when decoded.
        self._late[key] = route, error.with_traceback(None), held_bytes
        self._owner.add_held(held_bytes)
        self._owner.answer_late(error.answer_after_s, partial(self._refuse_late, key))

    def _refuse_late(self, key: object) -> None:
        if key not in self._late:
            return  # the connection has ended
        route, error, held_bytes = self._late.pop(key)
        self._owner.add_held(-held_bytes)
        if self.response_links:  # otherwise the client has not waited
            self._refuse(route, error)
            self._owner.schedule_flush()

    def _refuse(self, route: _Route, error: Exception) -> None:
        refusal = self._owner.amqp_error(error)
        _log.info("%s request refused: %s", route.kind.value, refusal.description)
        # The official Python client drops status and text of a $cbs answer that has a condition, and shows
        # its user only "Status code: None"; the other clients deduce the condition from the status.
        response = encode_response(
            route.message_id,
            response_status_for(error),
            status_description=refusal.description or "",
            error_condition=None if route.kind is NodeKind.CBS else refusal.condition,
        )
        self._respond(route, response)

    def _respond(self, route: _Route, response: bytes) -> None:
        chosen = self.response_links.find(route.kind, route.link.session, route.reply_to)
        if chosen is None:
            _log.warning(
                "a response of %s was dropped: no link receives for %.80r", route.kind.value, route.reply_to
            )
            return
        chosen.send(response)


class _ResponseLinks:
    """The response links of one connection, which may have thousands: only those of a session, of which it
    has some hundreds, are searched for each response."""

    def __init__(self) -> None:
        self._by_session: dict[LinkSession, dict[ResponseLink, None]] = {}
        self._by_name: dict[str, dict[ResponseLink, None]] = {}

    def __len__(self) -> int:
        """How many sessions have any."""
        return len(self._by_session)

    def add(self, link: ResponseLink) -> None:
        self._by_session.setdefault(link.link.session, {})[link] = None
        for name in link.names:
            self._by_name.setdefault(name, {})[link] = None

    def remove(self, link: ResponseLink) -> None:
        _remove(self._by_session, link.link.session, link)
        for name in link.names:
            _remove(self._by_name, name, link)
        self._by_session, self._by_name = compacted(self._by_session), compacted(self._by_name)

    def find(self, kind: NodeKind, session: LinkSession, reply_to: str | None) -> ResponseLink | None:
        """Where the response to a request on ``session`` goes; None: nowhere."""
        here = self._by_session.get(session, {})
        if reply_to:
            kinds, named = (kind, None), self._by_name.get(reply_to, {})
            # The last one: the others may have been given up.
            found = next((each for each in reversed(here) if each in named and each.kind in kinds), None)
            found = found or next((each for each in named if each.kind in kinds), None)
            if found is not None:
                return found
        return next((each for each in here if each.kind is kind), None)


def _remove(links: dict[K, dict[ResponseLink, None]], key: K, link: ResponseLink) -> None:
    del links[key][link]
    if links[key]:
        links[key] = compacted(links[key])
    else:
        del links[key]


class _WaitingResponses:
    """Responses of one connection that wait for credit, oldest first; usually none."""

    def __init__(self, add_held: Callable[[int], None]) -> None:
        """add_held: counts bytes that only the client can free."""
        self._add_held = add_held
        self._responses: list[tuple[ResponseLink, bytes]] = []
        self._counts: Counter[ResponseLink] = Counter()  # of thousands of links, few have any
        self._size = 0

    def put(self, link: ResponseLink, response: bytes) -> None:
        """Add one; if too many wait, the oldest of any link are dropped."""
        self._responses.append((link, response))
        self._counts[link] += 1
        self._count(len(response))
        while len(self._responses) > 1 and (
            len(self._responses) > _WAITING_MAX or self._size > _WAITING_BYTES_MAX
        ):
            self._remove(0)

    def take(self, link: ResponseLink) -> bytes | None:
        """Remove and return the oldest of a link; None if it has none."""
        if link not in self._counts:
            return None
        return self._remove(next(place for place, (each, _) in enumerate(self._responses) if each is link))

    def has(self, link: ResponseLink) -> bool:
        """Whether a response of the link waits."""
        return link in self._counts

    def _remove(self, place: int) -> bytes:
        link, response = self._responses.pop(place)
        self._counts[link] -= 1
        if not self._counts[link]:
            del self._counts[link]
        self._count(-len(response))
        return response

    def _count(self, change: int) -> None:
        self._size += change
        self._add_held(change)


@dataclass(frozen=True, slots=True)
class _Route:
    """The origin of a request, and the target of its response."""

    link: ReceiverLink
    kind: NodeKind
    message_id: MessageId | None
    reply_to: str | None


class RequestLink(LinkNode):
    """A link on which a client sends requests, each of which is authorized separately."""

    def __init__(self, nodes: RequestNodes, link: ReceiverLink, kind: NodeKind) -> None:
        self._nodes = nodes
        self._link = link
        self._kind = kind
        self._credit_max = _TOKENS_CREDIT if kind is NodeKind.CBS else _IN_PROGRESS_MAX
        self._credit = 0  # not that of the link: requests that were read together are handled one by one
        self._in_progress = 0
        self._is_closed = False

    def start(self) -> None:
        """Allow the client to send."""
        self._link.is_one_by_one = True  # an answer may describe a thousand partitions
        self._replace_credit()

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Requests came in."""
        self._credit = max(0, self._credit - len(deliveries))
        for delivery in deliveries:
            state: DeliveryState = Accepted()
            try:
                if not self._nodes.handle(self._link, self._kind, delivery.payload, self._on_answered):
                    self._in_progress += 1
            except DecodeError as error:
                state = Rejected(error=to_amqp_error(error))
            if not delivery.is_settled:
                self._link.settle(delivery.delivery_id, delivery.delivery_id, state)
        self._replace_credit()

    def close(self) -> None:
        """The link is gone."""
        self._is_closed = True

    def _on_answered(self) -> None:
        self._in_progress -= 1
        if not self._is_closed:
            self._replace_credit()

    def _replace_credit(self) -> None:
        """Let the client send a request for each that is answered."""
        missing = self._credit_max - self._in_progress - self._credit
        if missing >= self._credit_max // 2:
            self._credit += missing
            self._link.grant_credit(missing)


class ResponseLink(LinkNode):
    """A link on which a client receives responses."""

    def __init__(self, nodes: RequestNodes, link: SenderLink, kind: NodeKind | None) -> None:
        """kind: None: responses of any node to requests whose reply-to is its ``dynamic_address``."""
        self.link = link
        self.kind = kind
        self._nodes = nodes
        self._waiting = nodes.waiting
        nodes.response_links.add(self)

    @property
    def dynamic_address(self) -> str:
        """The address for a client that asked for one; link names are unique in a session."""
        return f"$dynamic/{self.link.name}"

    @property
    def names(self) -> set[str]:
        """What a reply-to may call it: its name and its target's address, or its ``dynamic_address``."""
        if self.kind is None:
            return {self.dynamic_address}
        target = self.link.remote_attach.target
        address = target.address if isinstance(target, Target) else None
        return {name for name in (self.link.name, address) if name}

    def send(self, response: bytes) -> None:
        """Send a response as soon as the client has credit."""
        if self.link.sendable > 0 and not self._waiting.has(self):
            self.link.send(response, settled=True)
        else:
            self._waiting.put(self, response)

    def on_credit(self) -> None:
        """Send waiting responses, as far as credit allows."""
        while self.link.sendable > 0 and (response := self._waiting.take(self)) is not None:
            self.link.send(response, settled=True)
        if self.link.is_drain:
            self.link.drained()

    def close(self) -> None:
        """The link is gone; drop its waiting responses."""
        self._nodes.response_links.remove(self)
        while self._waiting.take(self) is not None:
            pass
