"""A function over Arrow batches that runs in the Tidegate task that has them: in the source that reads them
(``mapped_events``) or the sink that writes them (``LedgerSink``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.versions import arrow_schema_of

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class ArrowStep:
    """Turns events into rows in the source, or rows into table rows in a ledger sink.

    Like ``rows.mapInArrow(function, schema)``, but without sending every row from Python to Java and back,
    which takes most of the time if the function turns many rows into few or few into many.
    """

    def __init__(self, function: ArrowFunction, schema: str | StructType) -> None:
        """function: from a task's batches to batches of rows; may be called again for the same rows, as any
        task may. schema: of its rows, as in Spark.
        """
        self.function = function
        self._declared = schema

    @cached_property
    def schema(self) -> StructType:
        """The schema of its rows. Spark parses a string, so a session must be running.

        Raises InvalidArgumentError for a type without columns, and Spark's ParseException.
        """
        if isinstance(self._declared, StructType):
            return self._declared
        schema = DataType.fromDDL(self._declared)
        if not isinstance(schema, StructType):
            raise InvalidArgumentError(
                f"The schema of the step is {self._declared!r}, which has no columns.",
                next_step="Write it as in Spark: 'home string, readings int'.",
            )
        return schema

    @property
    def arrow_schema(self) -> pa.Schema:
        """``schema`` as Spark's Arrow schema."""
        return arrow_schema_of(self.schema)

    def in_tasks(self) -> ArrowFunction:
        """The function for tasks, which also checks its rows against the schema.

        It raises InvalidArgumentError if a column is missing or cannot be cast to its declared type.
        """
        function, schema = self.function, self.arrow_schema

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in function(batches):
                if not isinstance(rows, pa.RecordBatch):
                    raise InvalidArgumentError(
                        f"The step must yield a pyarrow.RecordBatch, got a {type(rows).__name__}.",
                        next_step="For a pyarrow.Table, yield from table.to_batches().",
                    )
                yield rows if rows.schema.equals(schema) else _as_declared(rows, schema)

        return run


def _as_declared(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    missing = [name for name in schema.names if name not in rows.schema.names]
    if missing:
        raise InvalidArgumentError(
            f"The step yielded rows without the column {missing[0]!r} of its schema.",
            next_step=f"They have {', '.join(rows.schema.names)}; add it, or leave it out of the schema.",
        )
    try:
        return rows.select(schema.names).cast(schema)
    except (ValueError, KeyError, NotImplementedError) as error:  # Arrow's own are among them
        raise InvalidArgumentError(
            f"The step yielded rows that do not match its schema: {error}",
            next_step="Declare the types that it yields, or cast them in the step.",
        ) from error
