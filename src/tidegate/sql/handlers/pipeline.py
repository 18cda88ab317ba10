"""A pipeline as users declare it: a source of events, a plain function, and a target for its rows.

The function of a ``Pipeline`` turns an event into rows; that of a ``TransactionalPipeline`` writes with the
transaction's connection.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from typing import Final, cast

from sqlalchemy import Table

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.processor.declared import load_declared
from tidegate.processor.handlers import TransactionalHandler, TransactionalProcessor, function_of
from tidegate.processor.policies import FailurePolicy
from tidegate.sql.core.values import ConsumerKey, Row
from tidegate.sql.handlers.batches import BatchHandler
from tidegate.sql.handlers.dataclass_tables import DataclassRow

_WRITES_ITSELF_NEXT: Final = (
    "Let a host with transactional=True run it, with a TransactionalPipeline or the function itself. On "
    "Spark, return rows, and publish with HubSink or the eventhubs sink."
)
_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Handler = Callable[[ReceivedEvent], Row | DataclassRow | Iterable[Row | DataclassRow] | None]
"""Turns an event into one row, several, or none. If it raises, ``Pipeline.policy`` decides.

A row is a mapping from column names to values, or an instance of a dataclass (``table_of``).
Its rows are written once, but it may run several times for an event, so it should have no other effects.
"""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Events of one hub, through one handler, into one table, exactly once."""

    name: str
    """Its name in dead letters and on the command line; keep it when the handler changes."""
    event_hub: str
    table: Table
    """The table for the handler's rows, which may have any of its columns. ``table_of`` makes it from a
    dataclass."""
    handler: Handler | BatchHandler
    """A function per event, or an ``ArrowHandler`` or ``PandasHandler`` around a function per batch."""
    consumer_group: str = DEFAULT_CONSUMER_GROUP
    is_payload_copied: bool = False
    """True: a dead letter keeps a copy of its event, which outlives the log's retention."""
    policy: FailurePolicy | None = None
    """What happens to an event for which it fails; None: the host's policy, and on Spark the default one."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidArgumentError("A pipeline needs a name.")
        if not isinstance(self.table, Table):
            shown = getattr(self.table, "__name__", type(self.table).__name__)
            raise InvalidArgumentError(
                f"The table of the pipeline {self.name} is not a sqlalchemy.Table, but {shown}.",
                next_step=f'Write table_of({shown}, "NAME").' if is_dataclass(self.table) else "",
            )
        if _is_transactional(self.handler):
            # Called with an event alone, it would fail for each, and all would become dead letters.
            raise InvalidArgumentError(
                f"The handler of the pipeline {self.name} is transactional: it takes (context, events), and "
                "a Pipeline's takes an event and returns rows.",
                next_step=_WRITES_ITSELF_NEXT,
            )
        if not callable(self.handler) and not isinstance(self.handler, BatchHandler):
            raise InvalidArgumentError(
                f"The handler of the pipeline {self.name} is not callable.",
                next_step="Give a function that takes a ReceivedEvent and returns a row, rows or None, or an "
                "ArrowHandler or PandasHandler.",
            )
        if inspect.iscoroutinefunction(self.function):
            raise InvalidArgumentError(
                f"The handler of the pipeline {self.name} is async, and it runs in a thread.",
                next_step="Write def instead of async def, and no await.",
            )
        ConsumerKey(self.event_hub, self.consumer_group)

    @property
    def consumer(self) -> ConsumerKey:
        """Whose checkpoints it moves."""
        return ConsumerKey(self.event_hub, self.consumer_group)

    @property
    def batch_handler(self) -> BatchHandler | None:
        """The handler if it is called with batches; None: it is called with events."""
        return self.handler if isinstance(self.handler, BatchHandler) else None

    @property
    def function(self) -> Callable[..., object]:
        """The user's function, unwrapped."""
        return self.handler.function if isinstance(self.handler, BatchHandler) else self.handler


@dataclass(frozen=True, slots=True)
class TransactionalPipeline:
    """Events of one hub, through a handler that does its own writing, exactly once.

    Register it with a host, or redrive its dead letters with ``tidegate dlq redrive``.
    """

    name: str
    """Its name in dead letters and on the command line; keep it when the handler changes."""
    event_hub: str
    handler: TransactionalProcessor | TransactionalHandler
    """A plain function ``(context, events)``, or a processor, which writes with ``context.connection``.

    A redrive's context has no lease (epoch 0), and a redrive does not call ``open`` or ``close``.
    """
    consumer_group: str = DEFAULT_CONSUMER_GROUP
    policy: FailurePolicy | None = None
    """What happens to an event for which it fails; None: the host's policy."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidArgumentError("A pipeline needs a name.")
        if isinstance(self.handler, type):
            raise InvalidArgumentError(
                f"The handler of the pipeline {self.name} is a class.",
                next_step="Give a function (context, events) or an instance of a TransactionalProcessor.",
            )
        function_of(self.handler, is_transactional=True)
        ConsumerKey(self.event_hub, self.consumer_group)

    @property
    def consumer(self) -> ConsumerKey:
        """Whose checkpoints it moves."""
        return ConsumerKey(self.event_hub, self.consumer_group)


AnyPipeline = Pipeline | TransactionalPipeline
"""A pipeline that returns rows, or one that does its own writing."""


class Redrivable(ABC):
    """A declaration elsewhere that has a pipeline for redriving its dead letters."""

    __slots__ = ()

    @abstractmethod
    def redrivable(self) -> Pipeline:
        """The pipeline. Raises InvalidArgumentError if there is none."""


def returning_rows(pipeline: AnyPipeline) -> Pipeline:
    """The pipeline. Raises InvalidArgumentError for a ``TransactionalPipeline``, which Spark cannot run."""
    if isinstance(pipeline, TransactionalPipeline):
        raise InvalidArgumentError(
            f"The pipeline {pipeline.name} is transactional, and Spark runs no such handler: it has no "
            "context, so it could neither write nor publish.",
            next_step=_WRITES_ITSELF_NEXT,
        )
    return pipeline


def _is_transactional(handler: object) -> bool:
    if isinstance(handler, BatchHandler):
        return False
    if isinstance(handler, TransactionalProcessor):
        return True
    try:
        parameters = inspect.signature(cast(Callable[..., object], handler)).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    needed = [each for each in parameters if each.default is each.empty and each.kind in _BY_PLACE]
    return len(needed) > 1


def load_pipeline(address: str) -> AnyPipeline:
    """The pipeline at ``package.module:attribute`` or ``path/to/file.py:attribute``.

    The attribute is a ``Pipeline`` or ``TransactionalPipeline``, a ``StreamPipeline`` that has a handler, or
    a callable without arguments that returns one.
    Raises InvalidArgumentError if there is none; its cause is what the module raised on import.
    """
    found = load_declared(address, (Pipeline, TransactionalPipeline, Redrivable), noun="pipeline")
    if isinstance(found, Redrivable):
        return found.redrivable()
    assert isinstance(found, AnyPipeline)
    return found
