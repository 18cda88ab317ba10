"""The data source ``eventhubs-capture``: captured events as a table with the columns of ``eventhubs``.

Readers are imported where they are created: see ``spark.formats``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tidegate.spark.capture.reader import CaptureReader


class CaptureDataSource(DataSource):
    """``spark.read.format("eventhubs-capture")``."""

    @classmethod
    def name(cls) -> str:
        return "eventhubs-capture"

    def schema(self) -> StructType:
        """The columns; also checks the options, because Spark calls this first."""
        from tidegate.spark.capture.options import CaptureOptions
        from tidegate.spark.source.schema import EVENT_SCHEMA

        CaptureOptions.parse(self.options)
        return EVENT_SCHEMA

    def reader(self, schema: StructType) -> CaptureReader:
        """The reader of a batch query, with the columns that ``.schema(…)`` names."""
        from tidegate.spark.capture.options import CaptureOptions
        from tidegate.spark.capture.reader import CaptureReader
        from tidegate.spark.source.schema import EVENT_SCHEMA, check_chosen_columns

        check_chosen_columns(schema, EVENT_SCHEMA)
        return CaptureReader(CaptureOptions.parse(self.options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802 - Spark's name
        """Raises InvalidArgumentError: files appear late, so they are only a table."""
        raise InvalidArgumentError(
            "The format eventhubs-capture is a table, not a stream.",
            next_step='Read live events with .format("eventhubs"), or run a pipeline over captured and then '
            "live events with `tidegate pipeline replay`.",
        )
