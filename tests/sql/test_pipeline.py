"""Finding a user's pipeline by its address, and saying plainly when it is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.sql.support import PIPELINE

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor import EventProcessorHost, MemoryStore
from tidegate.processor.handlers import TransactionalProcessor
from tidegate.sql import Pipeline, SqlStore, load_pipeline

SOURCE = """
from sqlalchemy import Column, Integer, MetaData, Table
from tidegate.sql import Pipeline

table = Table("t", MetaData(), Column("n", Integer))
pipeline = Pipeline(name="mine", event_hub="hub", table=table, handler=lambda event: None)

def make():
    return pipeline

def needs_one(argument):
    return pipeline
"""


def test_by_module() -> None:
    """``package.module:attribute``."""
    assert load_pipeline("tests.sql.support:PIPELINE") is PIPELINE


@pytest.mark.parametrize("attribute", ["pipeline", "make"])
def test_by_file(tmp_path: Path, attribute: str) -> None:
    """``path/to/file.py:attribute``, a pipeline or a function that makes one."""
    path = tmp_path / "my_pipeline.py"
    path.write_text(SOURCE)
    assert load_pipeline(f"{path}:{attribute}").name == "mine"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("no_colon", "does not name a pipeline"),
        ("module:", "does not name a pipeline"),
        (":x", "does not name a pipeline"),
        ("no.such.module:x", "Module 'no.such.module' not found"),
        ("no/such/file.py:x", "not found"),
        ("tests.sql.support:nothing", "Its pipelines are: PIPELINE"),
        ("tests.sql.support:CONSUMER", "is a ConsumerKey, not"),
        ("tests.sql.support:record_delay", "raised TypeError"),
    ],
)
def test_addresses_that_lead_nowhere(address: str, words: str) -> None:
    """Each mistake has its own sentence."""
    with pytest.raises(InvalidArgumentError, match=words):
        load_pipeline(address)


def test_a_module_that_does_not_import(tmp_path: Path) -> None:
    """The user's own error is shown, not hidden behind "no such module"."""
    path = tmp_path / "broken.py"
    path.write_text("import no_such_package_at_all")
    with pytest.raises(InvalidArgumentError, match="no_such_package_at_all") as caught:
        load_pipeline(f"{path}:pipeline")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_pipeline_is_checked_when_it_is_made() -> None:
    """A name, a hub and something callable."""
    with pytest.raises(InvalidArgumentError, match="name"):
        Pipeline(name="", event_hub="h", table=PIPELINE.table, handler=PIPELINE.handler)
    with pytest.raises(InvalidArgumentError, match="event hub"):
        Pipeline(name="p", event_hub="", table=PIPELINE.table, handler=PIPELINE.handler)
    with pytest.raises(InvalidArgumentError, match="not callable"):
        Pipeline(name="p", event_hub="h", table=PIPELINE.table, handler=3)  # type: ignore[arg-type]


class Writer(TransactionalProcessor):
    """Has a context, as no ``Pipeline`` has."""


@pytest.mark.parametrize("handler", [lambda context, events: None, Writer()], ids=["function", "processor"])
def test_a_transactional_handler_is_no_pipelines(handler: Any) -> None:
    """It would fail for each event, so everything would become dead letters, and nothing be published."""
    with pytest.raises(InvalidArgumentError, match=r"takes \(context, events\).*HubSink"):
        Pipeline(name="p", event_hub="h", table=PIPELINE.table, handler=handler)
    fine: Any = lambda event, scale=2: None  # noqa: E731
    Pipeline(name="p", event_hub="h", table=PIPELINE.table, handler=fine)
    Pipeline(name="p", event_hub="h", table=PIPELINE.table, handler=cast(Any, str))  # it has no signature


def test_an_async_handler_is_refused_where_it_is_declared() -> None:
    """Each of its events would become a dead letter: it returns a coroutine and no row."""

    async def handler(event: ReceivedEvent) -> None: ...

    with pytest.raises(InvalidArgumentError, match=r"async, and it runs in a thread\. Write def instead"):
        Pipeline("p", "h", PIPELINE.table, handler)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", [MemoryStore, "sqlite:///x.db"])
def test_a_host_wants_a_store(store: object) -> None:
    """Not its class, a URL or a database: such a host would fail forever, and report only that."""
    with pytest.raises(
        InvalidArgumentError, match=r"keeps no leases and checkpoints\. Pass an object such as"
    ):
        EventProcessorHost.from_connection_string(
            "Endpoint=sb://h;EntityPath=e;SharedAccessKeyName=n;SharedAccessKey=k",
            store=store,  # type: ignore[arg-type]
        )
    with pytest.raises(
        InvalidArgumentError, match=r"needs a Database, not str\. Write SqlStore\(Database\.open"
    ):
        SqlStore("sqlite:///x.db")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="The first argument is the host's name") as caught:
        EventProcessorHost("Endpoint=sb://h;SharedAccessKey=secret", "hub", store=MemoryStore())
    assert "secret" not in str(caught.value)
