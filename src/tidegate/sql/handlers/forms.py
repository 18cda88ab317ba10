"""Everything that can be registered as a transactional handler, brought into one form.

A ``Pipeline`` (rows in bulk), a ``TransactionalPipeline``, a ``TransactionalProcessor``, a plain function.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import (
    EventProcessor,
    TransactionalHandler,
    TransactionalProcessor,
    check_overridden,
)
from tidegate.processor.policies import FailurePolicy
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import ConsumerKey
from tidegate.sql.handlers.context import TransactionCall, TransactionMisusedError
from tidegate.sql.handlers.event_runs import RunEvents
from tidegate.sql.handlers.handling import handle_events
from tidegate.sql.handlers.pipeline import Pipeline, TransactionalPipeline


@dataclass(frozen=True, slots=True)
class HandlerForm:
    """A handler as transactions and redrives run it."""

    name: str
    """Names it in dead letters: the pipeline's name, else that of the function or class."""
    run: RunEvents
    pipeline: Pipeline | None = None
    """Where the handler only gives rows, they can be computed before anything is locked."""
    policy: FailurePolicy | None = None
    """Its own policy; None: the host's."""
    consumer: ConsumerKey | None = None
    """Whose checkpoints it moves; None: of whoever runs it."""


def form_of(handler: object) -> HandlerForm:
    """The one form of ``handler``. Raises InvalidArgumentError for what cannot run in a transaction."""
    if isinstance(handler, Pipeline):
        return HandlerForm(handler.name, _rows_of(handler), pipeline=handler, consumer=handler.consumer)
    if isinstance(handler, TransactionalPipeline):
        run = _calls_of(handler.handler)
        return HandlerForm(handler.name, run, policy=handler.policy, consumer=handler.consumer)
    run = _calls_of(handler)
    name = getattr(handler, "__name__", None)
    return HandlerForm(name if isinstance(name, str) else type(handler).__name__, run)


def _calls_of(handler: object) -> RunEvents:
    function: TransactionalHandler
    if isinstance(handler, TransactionalProcessor):
        check_overridden(handler)
        function = handler.process_events
    elif isinstance(handler, EventProcessor | type) or not callable(handler):
        name = handler.__name__ if isinstance(handler, type) else type(handler).__name__
        raise InvalidArgumentError(
            f"{name} cannot process events inside a SQL transaction.",
            next_step="Register an instance of a TransactionalProcessor, a plain function (context, events), "
            "or a Pipeline.",
        )
    else:
        function = handler
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(inspect.unwrap(called)) or inspect.iscoroutinefunction(function):
        raise _is_coroutine(function)

    def run(unit: UnitOfWork, call: TransactionCall, events: Sequence[ReceivedEvent]) -> None:
        result: object = function(call, events)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TransactionMisusedError(str(_is_coroutine(function)))

    return run


def _is_coroutine(function: object) -> InvalidArgumentError:
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return InvalidArgumentError(
        f"{name} is a coroutine function; a transactional handler is a plain one, for it runs in a thread "
        "inside a SQL transaction.",
        next_step="Write def instead of async def, and no await.",
    )


def _rows_of(pipeline: Pipeline) -> RunEvents:
    """A pipeline's handler inside the transaction: its rows go in together, its failures stand apart."""

    def run(unit: UnitOfWork, call: TransactionCall, events: Sequence[ReceivedEvent]) -> None:
        handled = handle_events(pipeline.handler, pipeline.table, events, on_failure=call.fail)
        call.rows += sum(unit.insert_values(pipeline.table, group) for group in handled.groups)

    return run
