"""A function over Arrow batches that runs in a task of Tidegate's own, where the batches are: in the source
that reads them (``mapped_events``) or in the sink that writes them (``LedgerSink``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from tidegate.model.errors import InvalidArgumentError

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class ArrowStep:
    """What makes rows of events behind the source, or rows of a ledger sink's tables in front of it.

    As ``rows.mapInArrow(function, schema)`` there, which sends every row from Python to Java and back: with
    a function that makes few rows of many, or many of few, that is most of the time.
    """

    def __init__(self, function: ArrowFunction, schema: str | StructType) -> None:
        """function: from a task's batches to batches of rows. It may be called again for the same rows, as
        anything in a task. schema: of what it yields, as Spark writes schemas."""
        self.function = function
        self._declared = schema

    @cached_property
    def schema(self) -> StructType:
        """Of what it yields. Where it was given as text, Spark parses it, so a session must run.

        Raises InvalidArgumentError for a type that has no columns, Spark's ParseException for what is none.
        """
        if isinstance(self._declared, StructType):
            return self._declared
        schema = DataType.fromDDL(self._declared)
        if not isinstance(schema, StructType):
            raise InvalidArgumentError(
                f"The schema of the step is {self._declared!r}, which names no columns.",
                next_step="Write it as Spark does: 'home string, readings int'.",
            )
        return schema

    @property
    def arrow_schema(self) -> pa.Schema:
        """``schema``, as Spark has it in Arrow."""
        return to_arrow_schema(self.schema, timezone="UTC")

    def in_tasks(self) -> ArrowFunction:
        """The function, with its rows checked against the schema; to be sent to tasks.

        It raises InvalidArgumentError where a column is missing or cannot be what the schema says.
        """
        function, schema = self.function, self.arrow_schema

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in function(batches):
                if not isinstance(rows, pa.RecordBatch):
                    raise InvalidArgumentError(
                        f"The step yielded a {type(rows).__name__} instead of a pyarrow.RecordBatch.",
                        next_step="Of a pyarrow.Table, yield from table.to_batches().",
                    )
                yield rows if rows.schema.equals(schema) else _as_declared(rows, schema)

        return run


def _as_declared(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    missing = [name for name in schema.names if name not in rows.schema.names]
    if missing:
        raise InvalidArgumentError(
            f"The step was declared to yield a column {missing[0]!r}, and it yielded rows without it.",
            next_step=f"They have {', '.join(rows.schema.names)}; yield it, or leave it out of the schema.",
        )
    try:
        return rows.select(schema.names).cast(schema)
    except (ValueError, KeyError, NotImplementedError) as error:  # Arrow's own are among them
        raise InvalidArgumentError(
            f"The step yielded rows that are not what its schema says: {error}",
            next_step="Declare the types that it yields, or cast them in the step.",
        ) from error
