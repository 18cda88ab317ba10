"""What was registered with a host, checked once, and turned into one processor per partition.

kind                              transactional   made
class with async process_events   no              an instance per partition
class with plain process_events   yes             an instance per partition
async function                    no              the function, shared
plain function, a store's own     yes             the object, shared; the store runs it
factory                           either          what it returns, each time
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import (
    CloseReason,
    PartitionContext,
    TransactionalProcessor,
    check_overridden,
)
from tidegate.processor.store import TransactionalStore


class HandlerRefusedError(InvalidArgumentError):
    """What a factory made, or what was registered, cannot be run by this host: every partition has it."""


class Processor:
    """One partition's processor, whichever kind the user wrote. A method that it lacks does nothing."""

    __slots__ = ("_close", "_open", "_process_error", "handler", "process_events")

    def __init__(self, handler: object) -> None:
        self.handler = handler
        """As the user or the factory made it."""
        self._open: Callable[[PartitionContext], Awaitable[None]] | None = getattr(handler, "open", None)
        self._process_error: Callable[[PartitionContext, Exception], Awaitable[None]] | None = getattr(
            handler, "process_error", None
        )
        self._close: Callable[[PartitionContext, CloseReason], Awaitable[None]] | None = getattr(
            handler, "close", None
        )
        self.process_events = cast(
            Callable[[PartitionContext, Sequence[ReceivedEvent]], Awaitable[None]],
            getattr(handler, "process_events", handler),
        )
        """For at-least-once processing; in transactional processing the store runs ``handler``."""

    async def open(self, context: PartitionContext) -> None:
        """The handler's ``open``. Raises what it raises."""
        if self._open is not None:
            await self._open(context)

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        """The handler's ``process_error``. Raises what it raises."""
        if self._process_error is not None:
            await self._process_error(context, error)

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """The handler's ``close``. Raises what it raises."""
        if self._close is not None:
            await self._close(context, reason)


@dataclass(frozen=True, slots=True)
class Registration:
    """A checked handler or factory. Make one with ``check_registration``."""

    is_transactional: bool
    make_handler: Callable[[PartitionContext], object]
    is_checked_when_made: bool
    """True for a factory: what it returns is known only then."""

    def make(self, context: PartitionContext) -> Processor:
        """The processor of one partition.

        Raises what the user's constructor or factory raises, and HandlerRefusedError where the factory made
        something of the wrong kind.
        """
        handler = self.make_handler(context)
        if self.is_checked_when_made:
            try:
                _check_kind(handler, is_transactional=self.is_transactional)
            except InvalidArgumentError as error:
                raise HandlerRefusedError(error.message, next_step=error.next_step) from error
        has_hooks = hasattr(handler, "process_events")
        # Methods of these names may mean other things in a store's own kind of handler.
        return Processor(handler) if has_hooks else _without_hooks(handler)


def check_registration(
    handler: object,
    factory: object,
    *,
    is_transactional: bool,
    store: object,
) -> Registration:
    """Check what a user registers. Raises InvalidArgumentError, which says what to register instead."""
    if (handler is None) == (factory is None):
        raise InvalidArgumentError("Register either a handler or factory=…, one of the two.")
    if inspect.isclass(handler) and issubclass(handler, TransactionalProcessor):
        is_transactional = True  # the face itself says so
    if is_transactional and not isinstance(store, TransactionalStore):
        raise InvalidArgumentError(
            f"A {type(store).__name__} cannot commit its checkpoint with the handler's own writes.",
            next_step="Give transactional processing a store that can: tidegate.sql.SqlStore.",
        )
    if factory is not None:
        if not callable(factory) or inspect.iscoroutinefunction(factory):
            raise InvalidArgumentError(
                f"The factory {factory!r} is no plain function of a context.",
                next_step="Write: def make(context): return MyProcessor(…)",
            )
        make = cast(Callable[[PartitionContext], object], factory)
        return Registration(is_transactional, make, is_checked_when_made=True)
    if inspect.isclass(handler):
        _check_class(handler)
        _check_kind(handler, is_transactional=is_transactional)
        return Registration(is_transactional, lambda context: handler(), is_checked_when_made=False)
    if hasattr(handler, "process_events"):
        raise InvalidArgumentError(
            f"{type(handler).__name__} is registered as an instance, and each partition gets its own.",
            next_step="Register the class, or share the instance: factory=lambda context: instance.",
        )
    _check_kind(handler, is_transactional=is_transactional)
    return Registration(is_transactional, lambda context: handler, is_checked_when_made=False)


def _check_class(handler: type) -> None:
    if not callable(getattr(handler, "process_events", None)):
        raise InvalidArgumentError(
            f"The class {handler.__name__} has no process_events.",
            next_step="Derive it from EventProcessor or TransactionalProcessor.",
        )
    try:
        inspect.signature(handler).bind()
    except TypeError as error:
        raise InvalidArgumentError(
            f"The class {handler.__name__} cannot be made without arguments: {error}.",
            next_step="Register factory=lambda context: MyProcessor(…) instead.",
        ) from error
    except ValueError:
        pass  # a class whose signature cannot be read; making it will tell


def _check_kind(handler: object, *, is_transactional: bool) -> None:
    """An async ``process_events`` for the loop, a plain one for a transaction's thread."""
    check_overridden(handler)
    process_events = getattr(handler, "process_events", None)
    if process_events is None:
        if is_transactional:
            if handler is None or _is_async(handler):
                raise InvalidArgumentError(
                    f"{_name(handler)} is no plain function, and a transaction runs in a thread.",
                    next_step="Write: def handle(context, events), without async.",
                )
            return  # a function, or something that the store knows
        process_events = handler
    if is_transactional and _is_async(process_events):
        raise InvalidArgumentError(
            f"process_events of {_name(handler)} is async, and a transaction runs in a thread.",
            next_step="Derive from TransactionalProcessor and write a plain def process_events.",
        )
    if not is_transactional and not _is_async(process_events):
        raise InvalidArgumentError(
            f"{_name(handler)} is no async handler: a plain one would block every partition.",
            next_step="Write: async def process_events(…), or use transactional=True, which runs in threads.",
        )


def _is_async(function: object) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - looked at, not tested for
    )


def _name(handler: object) -> str:
    name = getattr(handler, "__name__", None)
    return name if isinstance(name, str) else type(handler).__name__


def _without_hooks(handler: object) -> Processor:
    processor = Processor(None)
    processor.handler = handler
    processor.process_events = cast(
        Callable[[PartitionContext, Sequence[ReceivedEvent]], Awaitable[None]], handler
    )
    return processor
