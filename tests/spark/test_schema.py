"""The columns of the format ``eventhubs`` as Spark knows them."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tidegate.columns.schema import ENCODED_EVENT_ARROW_SCHEMA, EVENT_ARROW_SCHEMA
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.source.schema import ENCODED_EVENT_SCHEMA, EVENT_SCHEMA, check_chosen_columns


def test_the_arrow_schema_is_what_spark_derives() -> None:
    """Spark compares the first batch only, and reads garbage from one that differs."""
    for schema, arrow in (
        (EVENT_SCHEMA, EVENT_ARROW_SCHEMA),
        (ENCODED_EVENT_SCHEMA, ENCODED_EVENT_ARROW_SCHEMA),
    ):
        assert to_arrow_schema(schema, timezone="UTC").equals(arrow)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("sequenceNumber LONG, sequencenumber LONG", "no column 'sequencenumber'"),
        ("body STRING", "body is of type binary, not string"),
        ("partition STRING, publisher STRING NOT NULL", "publisher may be null"),
        ("encodedEvent BINARY", "no column 'encodedEvent'"),
        ("properties. STRING", "no column 'properties.'"),
        ("properties.n LONG", "properties.n is of type string, not bigint"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_by_name(chosen: str, message: str) -> None:
    """A misspelt column would be null in every row otherwise."""
    with pytest.raises(InvalidArgumentError, match=message):
        check_chosen_columns(_struct(chosen), EVENT_SCHEMA)


def test_any_columns_in_any_order_are_fine() -> None:
    """Those that are never null may be declared so."""
    check_chosen_columns(_struct("sequenceNumber LONG NOT NULL, body BINARY, partition STRING"), EVENT_SCHEMA)
    check_chosen_columns(_struct("body BINARY, properties.n STRING"), EVENT_SCHEMA)
    with pytest.raises(InvalidArgumentError, match=r"no column 'properties\.n'"):
        check_chosen_columns(_struct("encodedEvent BINARY, properties.n STRING"), ENCODED_EVENT_SCHEMA)
    with pytest.raises(InvalidArgumentError, match="No column is given"):
        check_chosen_columns(StructType([]), EVENT_SCHEMA)
    with pytest.raises(InvalidArgumentError, match="body is given twice"):
        check_chosen_columns(_struct("body BINARY, body BINARY"), EVENT_SCHEMA)


def _struct(text: str) -> StructType:
    """What Spark makes of such a text; without Spark, which only its JVM could ask."""
    types = {"STRING": StringType(), "LONG": LongType(), "BINARY": BinaryType()}
    fields = [item.split(maxsplit=2) for item in text.split(", ")]
    return StructType([StructField(each[0], types[each[1]], len(each) == 2) for each in fields])
