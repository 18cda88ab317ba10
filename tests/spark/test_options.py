"""Options are typed, checked, and refused by name."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.model.errors import ConnectionStringError, InvalidArgumentError
from tidegate.model.position import EventPosition
from tidegate.spark.runtime.options import option_names
from tidegate.spark.source.options import REFUSED, WITHOUT_EFFECT, SourceOptions

_KEY = "c2VjcmV0"
_NAMESPACE = (
    f"Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey={_KEY};UseDevelopmentEmulator=true"
)
_BASE = {"eventhubs.connectionstring": f"{_NAMESPACE};EntityPath=flights"}


def test_defaults() -> None:
    """What a query without further options does: all events, all at once, stop on data loss."""
    options = SourceOptions.parse(_BASE)
    assert options.event_hub == "flights"
    assert options.consumer_group == "$Default"
    assert options.starting.default == EventPosition.earliest()
    assert options.max_events_per_trigger is None
    assert options.fail_on_data_loss
    assert not options.encoded_events


def test_names_are_matched_without_case_and_prefix() -> None:
    """Spark lower-cases names; the JVM connector's `maxEventsPerTrigger` has no prefix, `eventhubs.…` has."""
    for name in ("maxEventsPerTrigger", "maxeventspertrigger", "eventhubs.maxEventsPerTrigger"):
        assert SourceOptions.parse({**_BASE, name: "500"}).max_events_per_trigger == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxEventsPerTriger": "5"}, "no option 'maxEventsPerTriger'"),
        ({"maxEventsPerTrigger": "0"}, "maxEventsPerTrigger must be an integer"),
        ({"maxEventsPerTrigger": "many"}, "maxEventsPerTrigger must be an integer"),
        ({"maxEventsPerTrigger": "5", "eventhubs.maxEventsPerTrigger": "6"}, "given twice"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false"),
        ({"eventhubs.maxRatePerPartition": "10"}, "maxRatePerPartition is not supported: use maxEvents"),
        ({"maxEventsPerTrigger": "-5"}, "maxEventsPerTrigger must be an integer"),
        ({"eventhubs.tasksMax": "1.5"}, "tasksMax must be an integer"),
        ({"eventhubs.tasksMin": "0"}, "tasksMin must be an integer"),
        ({"tasksMin": "3", "tasksMax": "2"}, "tasksMin \\(3\\) exceeds eventhubs.tasksMax \\(2\\)"),
        ({"eventhubs.eventHubName": "other"}, "EntityPath is 'flights'"),
        ({"eventhubs.startingPosition": "sometime"}, "startingPosition is not JSON, but 'sometime'"),
        ({"eventhubs.startingPosition": '{"offset": "5", "seqNo": 5}'}, "startingPosition"),
        ({"eventhubs.startingPosition": "checkpoint:"}, "without a database"),
        ({"eventhubs.startingPosition": '{"enqueuedTime": "2026-01-01T00:00:00"}'}, "has no time zone"),
        ({"eventhubs.startingPositions": '{"x": "earliest"}'}, "is not a partition"),
        ({"eventhubs.startingPositions": '{"-1": "earliest"}'}, "is not a partition"),
        ({"eventhubs.startingPositions": "[]"}, "not a JSON object"),
        ({"eventhubs.startingPositions": '{"0": "latest", " 0": "earliest"}'}, "names the partition 0 twice"),
        (
            {"eventhubs.startingPositions": '{"{\\"ehName\\":\\"other\\",\\"partitionId\\":2}": "latest"}'},
            "for the event hub 'other', but 'flights' is read",
        ),
        ({"eventhubs.startingPosition": '{"seqNo": -7}'}, "has the seqNo -7"),
        ({"eventhubs.startingPosition": '{"seqNo": true}'}, "startingPosition is"),
        ({"eventhubs.startingPosition": '{"seqNo": 7, "isInclusive": "yes"}'}, "startingPosition is"),
        ({"eventhubs.endingPosition": "checkpoint:sqlite:///x.db"}, "endingPosition cannot be a checkpoint"),
        ({"eventhubs.credential": "azure.identity.aio:DefaultAzureCredential"}, "holds a key or a signature"),
        ({"eventhubs.credential": "azure.identity"}, "credential is 'azure.identity'"),
        ({"eventhubs.splitPartitions": "2"}, "splitPartitions must be true or false"),
        ({"eventhubs.caFile": "/nowhere/ca.pem"}, "no such file"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, str], message: str) -> None:
    """One sentence that names the option; the key of the connection string is never in it."""
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        SourceOptions.parse({**_BASE, **options})
    assert _KEY not in str(caught.value)


def test_a_hub_must_be_named_somewhere() -> None:
    """A namespace string alone does not say what to read; the option or EntityPath does."""
    with pytest.raises(InvalidArgumentError, match="No event hub is named"):
        SourceOptions.parse({"eventhubs.connectionString": _NAMESPACE})
    named = SourceOptions.parse(
        {"eventhubs.connectionString": _NAMESPACE, "eventhubs.eventHubName": "flights"}
    )
    assert named.connection_string.entity_path == "flights"
    with pytest.raises(InvalidArgumentError, match="connectionString is missing"):
        SourceOptions.parse({"eventhubs.eventHubName": "flights"})
    with pytest.raises(ConnectionStringError):
        SourceOptions.parse({"eventhubs.connectionString": "nonsense"})


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EventPosition.earliest()),
        ("Latest", EventPosition.latest()),
        (
            '{"offset":"-1","seqNo":-1,"enqueuedTime":null,"isInclusive":true}',
            EventPosition.earliest(),
        ),
        ('{"offset":"@latest","seqNo":-1,"enqueuedTime":null,"isInclusive":true}', EventPosition.latest()),
        (
            '{"offset":null,"seqNo":42,"enqueuedTime":null,"isInclusive":true}',
            EventPosition.from_sequence_number(42, is_inclusive=True),
        ),
        (
            '{"offset":"8448","seqNo":-1,"enqueuedTime":null,"isInclusive":false}',
            EventPosition.from_offset("8448", is_inclusive=False),
        ),
        (
            '{"offset":null,"seqNo":-1,"enqueuedTime":"2026-01-01T00:00:00.000Z","isInclusive":true}',
            EventPosition.from_enqueued_time(datetime(2026, 1, 1, tzinfo=UTC)),
        ),
    ],
)
def test_positions_in_words_and_in_the_jvm_connectors_json(text: str, position: EventPosition) -> None:
    """A configuration written for the JVM connector goes on working."""
    assert SourceOptions.parse({**_BASE, "eventhubs.startingPosition": text}).starting.default == position


def test_positions_by_partition() -> None:
    """Some partitions start elsewhere, keyed plainly or as the JVM connector keys them."""
    text = '{"1": "latest", "{\\"ehName\\":\\"flights\\",\\"partitionId\\":2}": {"seqNo": 7}}'
    starting = SourceOptions.parse({**_BASE, "eventhubs.startingPositions": text}).starting
    assert starting.for_partition("0") == EventPosition.earliest()
    assert starting.for_partition("1") == EventPosition.latest()
    assert starting.for_partition("2") == EventPosition.from_sequence_number(7)


def test_a_sql_checkpoint_as_start() -> None:
    """`checkpoint:<database URL>` keeps the URL as it is."""
    url = "postgresql+psycopg://me:pw@db/flights?sslmode=require"
    starting = SourceOptions.parse({**_BASE, "eventhubs.startingPosition": f"checkpoint:{url}"}).starting
    assert starting.checkpoint_database_url == url


@pytest.mark.parametrize("option", ["eventhubs.startingPosition", "eventhubs.startingPositions"])
def test_a_misspelt_checkpoint_shows_no_password(option: str) -> None:
    """What looks like a URL is not repeated in the error: it goes to logs, and URLs hold passwords."""
    text = "chekpoint:postgresql://user:s3cret@host/db"
    value = text if option.endswith("Position") else json.dumps({"0": text})
    with pytest.raises(InvalidArgumentError, match="not shown") as caught:
        SourceOptions.parse({**_BASE, option: value})
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(caught.value.__cause__)


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_tuning_of_the_jvm_connector_is_taken(name: str) -> None:
    """A job that sets it moves without a change, and reads what it read."""
    options = SourceOptions.parse({**_BASE, f"eventhubs.{name}".lower(): "PT60S"})
    assert options == SourceOptions.parse(_BASE)
    assert options.without_effect == (name,)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_done_here_is_refused_with_what_to_do(name: str) -> None:
    """Passing it over would change what is read, or be missed."""
    words = f"The option eventhubs.{name} is not supported: {REFUSED[name]}"
    with pytest.raises(InvalidArgumentError, match=re.escape(words)):
        SourceOptions.parse({**_BASE, f"eventhubs.{name}".lower(): "x"})


def test_a_credential_needs_no_key() -> None:
    """An endpoint and a hub are all that a connection string has to say then."""
    given = {
        "eventhubs.connectionString": "Endpoint=sb://ns.servicebus.windows.net;EntityPath=flights",
        "eventhubs.credential": "azure.identity.aio:DefaultAzureCredential",
    }
    assert SourceOptions.parse(given).credential == "azure.identity.aio:DefaultAzureCredential"


def test_every_option_is_in_the_reference() -> None:
    """Our own names, and what becomes of each of the JVM connector's."""
    page = (Path(__file__).parents[2] / "docs/reference/spark-source.md").read_text(encoding="utf-8")
    for name in option_names(SourceOptions):
        short = name.removeprefix("eventhubs.")
        assert f"eventhubs.{short}`" in page or f"`{short}`" in page or f"…{short}`" in page, name
    for name in [*WITHOUT_EFFECT, *REFUSED]:
        assert f"`{name}`" in page, name
