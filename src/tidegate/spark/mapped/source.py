"""The source behind ``pipelines.mapped_events``: it applies a function to events in the worker that reads
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.pickled import plan_and_options
from tidegate.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from tidegate.spark.source.reader import EventHubsStreamReader

_INSTEAD: Final = 'Use tidegate.spark.mapped_events, or .format("eventhubs").'


class MappedDataSource(DataSource):
    """``readStream.format("eventhubs-mapped")``: for ``mapped_events`` only."""

    @classmethod
    def name(cls) -> str:
        return "eventhubs-mapped"

    def schema(self) -> StructType:
        """Raises InvalidArgumentError: only called if ``mapped_events`` did not create the stream."""
        raise InvalidArgumentError(f"The format {self.name()} cannot be used directly.", next_step=_INSTEAD)

    def streamReader(self, schema: StructType) -> EventHubsStreamReader:  # noqa: N802 - Spark's name
        """The reader that runs the function. schema: as ``mapped_events`` gave it."""
        from tidegate.spark.mapped.reader import MappedStreamReader

        plan, options = plan_and_options(self.options, self.name(), next_step=_INSTEAD)
        return MappedStreamReader(plan, SourceOptions.parse(options))
