"""Checks what was registered with a host, and makes one processor per partition.

kind                              transactional   processor
class with async process_events   no              an instance per partition
class with plain process_events   yes             an instance per partition
async function                    no              the function, shared
plain function, a store's own     yes             the object, shared; the store runs it
factory                           either          what it returns for each partition
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import CloseReason, PartitionContext, TransactionalProcessor, function_of
from tidegate.processor.lease import GroupKey
from tidegate.processor.store import TransactionalStore


class HandlerRefusedError(InvalidArgumentError):
    """This host cannot run what was registered or what a factory returned; this affects every partition."""


class Processor:
    """One partition's processor, of any kind of handler. A missing method does nothing."""

    __slots__ = ("close", "form", "open", "process_error", "process_events")

    def __init__(self, handler: object, form: object) -> None:
        """handler: as the user or the factory made it. form: the callable, see ``Registration``."""
        self.form = form
        """A function of (context, events), or what the transactional store made of the handler."""
        # In a store's own kind of handler, methods with these names may mean something else.
        hooks = handler if hasattr(handler, "process_events") else None
        self.open: Callable[[PartitionContext], Awaitable[None]] = getattr(hooks, "open", _do_nothing)
        self.process_error: Callable[[PartitionContext, Exception], Awaitable[None]] = getattr(
            hooks, "process_error", _do_nothing
        )
        self.close: Callable[[PartitionContext, CloseReason], Awaitable[None]] = getattr(
            hooks, "close", _do_nothing
        )
        self.process_events = cast(
            Callable[[PartitionContext, Sequence[ReceivedEvent]], Awaitable[None]], form
        )
        """The form, for at-least-once processing."""


async def _do_nothing(*arguments: object) -> None:
    """The method that a handler does not have."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A checked handler or factory. Create it with ``check_registration``."""

    is_transactional: bool
    make: Callable[[PartitionContext], Processor]
    """Makes the processor of one partition. Raises what the user's constructor or factory raises, and
    HandlerRefusedError if the factory returned something of the wrong kind."""


def check_registration(
    handler: object, factory: object, *, is_transactional: bool, store: object, group: GroupKey
) -> Registration:
    """Determine the kind of a user's handler; what a factory returns is checked later.

    Raises InvalidArgumentError, which says what to register instead.
    """
    if (handler is None) == (factory is None):
        raise InvalidArgumentError("Register either a handler or factory=…, one of the two.")
    if inspect.isclass(handler) and issubclass(handler, TransactionalProcessor):
        is_transactional = True  # the class itself says so
    form_of: Callable[[object], object] = partial(function_of, is_transactional=False)
    if is_transactional:
        if not isinstance(store, TransactionalStore):
            raise InvalidArgumentError(
                f"A {type(store).__name__} cannot commit its checkpoint with the handler's own writes.",
                next_step="Give transactional processing a store that can: tidegate.sql.SqlStore.",
            )
        form_of = partial(store.form_of, group)
    if factory is not None:
        if not callable(factory) or inspect.iscoroutinefunction(factory):
            raise InvalidArgumentError(
                f"The factory {factory!r} is not a plain function of a context.",
                next_step="Write: def make(context): return MyProcessor(…)",
            )
        return Registration(is_transactional, partial(_make_by_factory, factory, form_of))
    if inspect.isclass(handler):
        _check_constructor(handler)
        function_of(handler, is_transactional=is_transactional)
        return Registration(is_transactional, lambda context: _processor(handler(), form_of))
    if hasattr(handler, "process_events"):
        raise InvalidArgumentError(
            f"{type(handler).__name__} is registered as an instance, and each partition gets its own.",
            next_step="Register the class, or share the instance: factory=lambda context: instance.",
        )
    shared = _processor(handler, form_of)
    return Registration(is_transactional, lambda context: shared)


def _processor(handler: object, form_of: Callable[[object], object]) -> Processor:
    return Processor(handler, form_of(handler))


def _make_by_factory(
    factory: Callable[[PartitionContext], object],
    form_of: Callable[[object], object],
    context: PartitionContext,
) -> Processor:
    handler = factory(context)
    try:
        return _processor(handler, form_of)
    except InvalidArgumentError as error:
        raise HandlerRefusedError(error.message, next_step=error.next_step) from error


def _check_constructor(handler: type) -> None:
    try:
        inspect.signature(handler).bind()
    except TypeError as error:
        raise InvalidArgumentError(
            f"The class {handler.__name__} cannot be made without arguments: {error}.",
            next_step="Register factory=lambda context: MyProcessor(…) instead.",
        ) from error
    except ValueError:
        pass  # a class whose signature cannot be read: its constructor will raise
