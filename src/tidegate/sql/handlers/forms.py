"""The common form of everything that can be registered as a transactional handler.

That is a ``Pipeline`` (rows in bulk), ``TransactionalPipeline``, ``TransactionalProcessor`` or plain
function. The kind is detected here, once, when a handler is registered; its runners get the form.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent, refuse_undecodable
from tidegate.processor.handlers import function_of
from tidegate.processor.policies import FailurePolicy
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import ConsumerKey
from tidegate.sql.handlers.context import TransactionCall, TransactionMisusedError
from tidegate.sql.handlers.event_runs import RunEvents
from tidegate.sql.handlers.handling import handle_events
from tidegate.sql.handlers.pipeline import Pipeline, TransactionalPipeline


@dataclass(frozen=True, slots=True)
class HandlerForm:
    """A handler in the form in which transactions and redrives run it."""

    name: str
    """Its name in dead letters: the pipeline's, or that of the function or class."""
    run: RunEvents
    pipeline: Pipeline | None = None
    """Set if the handler only returns rows, which can be computed before anything is locked."""
    policy: FailurePolicy | None = None
    """The handler's policy; None: the host's."""


def form_of(handler: object, consumer: ConsumerKey | None = None) -> HandlerForm:
    """The form of ``handler``.

    consumer: whose checkpoints it moves; None: the pipeline's own. Raises InvalidArgumentError for anything
    that cannot run in a transaction, and for a pipeline of another hub or consumer group.
    """
    if isinstance(handler, Pipeline | TransactionalPipeline):
        if consumer not in (None, handler.consumer):
            raise InvalidArgumentError(
                f"The pipeline {handler.name} reads {handler.consumer}, and this host {consumer}.",
                next_step="Register it with a host of that event hub and consumer group.",
            )
        if isinstance(handler, Pipeline):
            return HandlerForm(handler.name, _rows_of(handler), pipeline=handler, policy=handler.policy)
        return HandlerForm(handler.name, _calls_of(handler.handler), policy=handler.policy)
    name = getattr(handler, "__name__", None)
    return HandlerForm(name if isinstance(name, str) else type(handler).__name__, _calls_of(handler))


def _calls_of(handler: object) -> RunEvents:
    if isinstance(handler, type):
        raise InvalidArgumentError(
            f"{handler.__name__} is a class, and one instance of it processes a partition.",
            next_step="Give an instance.",
        )
    function = function_of(handler, is_transactional=True)

    def run(unit: UnitOfWork, call: TransactionCall, events: Sequence[ReceivedEvent]) -> None:
        refuse_undecodable(events)
        result = function(call, events)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TransactionMisusedError(
                f"{getattr(function, '__qualname__', function)} returned a coroutine, and a transaction runs "
                "in a thread.",
                next_step="Write def instead of async def, and no await.",
            )

    return run


def _rows_of(pipeline: Pipeline) -> RunEvents:
    """Runs a pipeline's handler inside the transaction: inserts its rows together, reports each failure."""

    def run(unit: UnitOfWork, call: TransactionCall, events: Sequence[ReceivedEvent]) -> None:
        groups = handle_events(pipeline, events, call.fail, on_failure=call.on_failure)
        call.rows += sum(unit.insert_values(pipeline.table, group) for group in groups)

    return run
