"""The tables that the pipeline writes: a row per home and minute, a row per alarm."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table

from examples.home_security.homes import EVENT_HUB
from examples.home_security.readings import HOME_CHARACTERS_MAX, NAME_CHARACTERS_MAX
from tidegate.sql import ConsumerKey

NAME: Final = "home-security"
"""The query's name in the ledger."""
CONSUMER: Final = ConsumerKey(EVENT_HUB, "$Default")
"""The consumer whose dead letters they are."""

metadata = MetaData()

# Homes whose names differ only in case or trailing blanks are different homes, as on PostgreSQL.
_ON_MARIADB: Final[dict[str, Any]] = {
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}

home_minute = Table(
    "home_minute",
    metadata,
    Column("home", String(HOME_CHARACTERS_MAX), primary_key=True),
    Column("minute_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("readings", Integer, nullable=False),
    Column("motions", Integer, nullable=False),
    Column("openings", Integer, nullable=False),
    Column("co_max_ppm", Float),
    Column("duplicates", Integer, nullable=False),
    # A minute is written again by each micro-batch that has a reading of it. With space in its page for the
    # next version, PostgreSQL takes half the time.
    postgresql_with={"fillfactor": 50},
    **_ON_MARIADB,
)
"""The events of a home in a minute, given by its first millisecond since 1970-01-01 UTC. Repeated readings
count once, and again in ``duplicates``. Null: no carbon monoxide measurement."""

home_alarm = Table(
    "home_alarm",
    metadata,
    # The reading that caused it is the key: the database would refuse a second row for an alarm.
    Column("home", String(HOME_CHARACTERS_MAX), primary_key=True),
    Column("sensor", String(NAME_CHARACTERS_MAX), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("raised_ms", BigInteger, nullable=False),
    Column("value", Float, nullable=False),
    **_ON_MARIADB,
)
"""Alarms; rows are only ever added."""
