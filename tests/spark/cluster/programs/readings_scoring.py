"""A user's module: what the program's pipeline does, imported by its name on driver and executors."""

from __future__ import annotations

import json

from sqlalchemy import Column, Integer, MetaData, String, Table

from tidegate.model.events import ReceivedEvent

readings = Table(
    "readings",
    MetaData(),
    Column("partition", String(16), nullable=False),
    Column("number", Integer, nullable=False),
    Column("value", Integer, nullable=False),
)


def score(event: ReceivedEvent) -> dict[str, object]:
    """Every seventh event cannot be scored, as in the tests' own pipeline."""
    value = json.loads(event.body)["value"]
    if value % 7 == 3:
        raise ValueError(f"value {value % 10} cannot be scored")
    return {"partition": event.partition_id, "number": event.sequence_number, "value": value}
