"""What the versions of PySpark from 4.0 on have in common, and stand-ins for what the older ones lack.

from 4.1    a batch reader is given filters
from 4.2    a stream is asked for its next end with the last one and a limit
from 4.3    an Arrow schema is asked for with a time zone, not with ``timestamp_utc``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

PYSPARK: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
"""The version's first two numbers."""

HAS_LIMITS: Final = PYSPARK >= (4, 2)
"""Whether Spark asks a stream for its next end with the last one and a limit."""

if TYPE_CHECKING or HAS_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllAvailable
    from pyspark.sql.streaming.datasource import ReadLimit as ReadLimit
    from pyspark.sql.streaming.datasource import ReadMaxRows as ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
else:

    class ReadLimit:
        """Never given."""

    class ReadAllAvailable(ReadLimit):
        """Never given."""

    class ReadMaxRows(ReadLimit):
        """Never given."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:
        """Spark fixes the end of such a query itself."""


class ArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[misc]
    """A writer of batch queries and streams that gets Arrow.

    4.0 has no Arrow writer for streams, but every version gives Arrow to a stream's writer that is also a
    batch query's.
    """


def filter_kinds(*names: str) -> tuple[type[Any], ...]:
    """Those of Spark's filters that this version has."""
    return tuple(getattr(datasource, name) for name in names if hasattr(datasource, name))


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The schema in Arrow, with times in UTC."""
    given = {"timezone": "UTC"} if PYSPARK >= (4, 3) else {}
    return to_arrow_schema(schema, **given)  # type: ignore[arg-type,unused-ignore]
