"""Requests and responses over a pair of links, for ``$cbs`` and ``$management``.

The receiver's target is an address that each request names as its reply-to, as in the official JavaScript
client; the official Python client names none, and the service accepts both.
Source: azure-eventhub 5.15.1 and @azure/event-hubs 6.0.4 on the wire.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidegate.amqp.events import Delivery
from tidegate.amqp.link import ReceiverLink, SenderLink
from tidegate.amqp.message import Message, Properties, decode_message, encode_message
from tidegate.amqp.performatives import Attach, DeliveryState, Rejected, Source
from tidegate.client.connection import LinkHandler, LiveConnection
from tidegate.model.errors import BrokenError, ProtocolError, TidegateError
from tidegate.wire.conditions import error_from_amqp

_CREDIT: Final = 100
"""Maximum responses in flight."""


class RequestChannel(LinkHandler):
    """Sends requests to a node on one connection, concurrently; a message-id matches each response.

    Create it with ``open``; it ends with the connection.
    """

    def __init__(self, connection: LiveConnection, node: str) -> None:
        self._connection = connection
        self._node = node
        self._reply_to = f"{node.strip('$')}-{uuid.uuid4()}"
        self._numbers = itertools.count(1)
        self._pending: dict[str, asyncio.Future[Message]] = {}
        self._request_ids: dict[int, str] = {}
        self._failure: TidegateError | None = None
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held to send: of many requests, a change wakes one."""
        self._attached = 0
        self._sender: SenderLink | None = None
        self._receiver: ReceiverLink | None = None

    @classmethod
    async def open(cls, connection: LiveConnection, node: str) -> RequestChannel:
        """Attach both links. Raises the service's refusal. Cancellation: both are detached."""
        channel = cls(connection, node)
        channel._receiver = connection.attach_receiver(Source(address=node), channel, name=channel._reply_to)
        try:
            channel._sender = connection.attach_sender(node, channel)
            await channel._wait(lambda: channel._attached == 2)
            channel._receiver.grant_credit(_CREDIT)
            connection.flush()
            await channel._wait(lambda: channel._sendable() > 0)
        except BaseException:
            channel.close()
            raise
        return channel

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent now."""
        return self._failure is None

    async def request(self, message: Message) -> Message:
        """Send a request (its message-id and reply-to are set here) and return the response, whatever its
        status.

        Raises BrokenError, and any other error that ends the links. Cancellation: a late response is dropped.
        """
        message_id = f"{self._reply_to}:{next(self._numbers)}"
        properties = replace(
            message.properties or Properties(), message_id=message_id, reply_to=self._reply_to
        )
        response: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        async with self._turn:
            await self._wait(lambda: self._sendable() > 0)
            assert self._sender is not None
            self._pending[message_id] = response
            delivery_id = self._sender.send(encode_message(replace(message, properties=properties)))
        self._request_ids[delivery_id] = message_id
        self._connection.flush()
        try:
            return await response
        finally:
            self._pending.pop(message_id, None)
            self._request_ids.pop(delivery_id, None)

    def close(self) -> None:
        """Detach both links; pending requests fail with BrokenError."""
        self.on_detached(BrokenError(f"The link to {self._node} was closed."))
        for link in (self._sender, self._receiver):
            if link is not None:
                self._connection.detach(link)

    def on_detached(self, error: TidegateError) -> None:
        """Fail all requests with ``error``, as one of the two links was lost; the first reason counts."""
        if self._failure is None:
            self._failure = error
            self._changed.set()
            for response in self._pending.values():
                if not response.done():
                    response.set_exception(error)

    def on_attached(self, attach: Attach) -> None:
        """One of the two links is attached."""
        self._attached += 1
        self._changed.set()

    def on_credit(self) -> None:
        """More requests may be sent."""
        self._changed.set()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Pass each response to its request."""
        assert self._receiver is not None
        for delivery in deliveries:
            try:
                message = decode_message(delivery.payload)
            except ProtocolError as error:
                self.on_detached(error)
                return
            if not delivery.is_settled:
                self._receiver.settle(delivery.delivery_id, delivery.delivery_id)
            correlation_id = message.properties.correlation_id if message.properties else None
            response = self._pending.get(str(correlation_id))
            if response is not None and not response.done():
                response.set_result(message)
        if self._receiver.outstanding_credit < _CREDIT // 2:
            self._receiver.grant_credit(_CREDIT - self._receiver.outstanding_credit)

    def on_settled(self, first_delivery_id: int, last_delivery_id: int, state: DeliveryState | None) -> None:
        """Fail a request that the service rejects, because it gets no response."""
        if not isinstance(state, Rejected):
            return
        for delivery_id in range(first_delivery_id, last_delivery_id + 1):
            response = self._pending.get(self._request_ids.get(delivery_id, ""))
            if response is not None and not response.done():
                response.set_exception(error_from_amqp(state.error))

    def _sendable(self) -> int:
        return self._sender.sendable if self._sender is not None else 0

    async def _wait(self, is_reached: Callable[[], bool]) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            if is_reached():
                return
            self._changed.clear()
            await self._changed.wait()
