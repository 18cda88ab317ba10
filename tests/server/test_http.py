"""The HTTP face: health, and publishing as Event Hubs' REST interface has it."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Mapping
from urllib.error import HTTPError

import pytest

from tidegate.model.connection_string import ConnectionString
from tidegate.model.events import EventContents
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.batch import iter_events
from tidegate.wire.event_codec import decode_event

BATCH = "application/vnd.microsoft.servicebus.json"


def _request(
    service: HubService, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Status, content type and text of the answer."""
    request = urllib.request.Request(
        f"http://{service.ready.http}{path}", data=body, headers=dict(headers or {})
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.headers.get("content-type", ""), response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers.get("content-type", ""), error.read().decode()


def _authorization(service: HubService, event_hub: str, *, key: str | None = None) -> dict[str, str]:
    connection = ConnectionString.parse(service.connection_string)
    assert connection.shared_access_key_name is not None
    assert connection.shared_access_key is not None
    token = make_sas_token(
        audience=f"http://127.0.0.1/{event_hub}",
        key_name=connection.shared_access_key_name,
        key=key or connection.shared_access_key,
        expiry=4_000_000_000,
    )
    return {"Authorization": token}


def _stored(service: HubService, event_hub: str, partition_id: str) -> list[EventContents]:
    async def read(server: TidegateServer) -> list[EventContents]:
        partition = server.broker.event_hub(event_hub).partition(partition_id)
        return [
            decode_event(event)
            for batch in partition.read_nowait(0, bytes_max=1 << 20)
            for event in iter_events(batch.payload, batch.lengths)
        ]

    return service.call(read)


def test_health(hub_service: HubService) -> None:
    """What the emulator's health check expects, over HTTP and HTTPS."""
    status, _, text = _request(hub_service, "/health")
    assert (status, json.loads(text)["status"]) == (200, "healthy")
    context = ssl.create_default_context(cafile=hub_service.ready.ca_file)
    assert hub_service.ready.https is not None
    port = hub_service.ready.https.rpartition(":")[2]
    with urllib.request.urlopen(f"https://localhost:{port}/health", context=context, timeout=10) as response:
        assert response.status == 200


def test_publish_one_event(hub_service: HubService, event_hub: str) -> None:
    """Body, own headers and the partition key of a single event are stored."""
    headers = {
        **_authorization(hub_service, event_hub),
        "Content-Type": "application/atom+xml;type=entry;charset=utf-8",
        "BrokerProperties": '{"PartitionKey": "a"}',
        "Alert": '"Strong Wind"',
    }
    path = f"/{event_hub}/messages?timeout=60&api-version=2014-01"
    status, content_type, text = _request(hub_service, path, body=b"one", headers=headers)
    assert (status, content_type, text) == (201, "application/xml; charset=utf-8", "")
    (event,) = _stored(hub_service, event_hub, "0")  # "a" belongs to partition 0 of 2
    assert (event.body, event.partition_key) == (b"one", "a")
    assert event.properties == {"alert": "Strong Wind"}


def test_publish_a_batch_to_a_partition(hub_service: HubService, event_hub: str) -> None:
    """A JSON batch becomes one batch of events with their properties, in order."""
    batch = [{"Body": "m1", "UserProperties": {"n": 1}}, {"Body": "m2"}]
    headers = {**_authorization(hub_service, event_hub), "Content-Type": BATCH}
    path = f"/{event_hub}/partitions/1/messages"
    assert _request(hub_service, path, body=json.dumps(batch).encode(), headers=headers)[0] == 201
    events = _stored(hub_service, event_hub, "1")
    assert [(event.body, dict(event.properties)) for event in events] == [(b"m1", {"n": 1}), (b"m2", {})]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "detail"),
    [
        (b"x" * 1_100_000, "text/plain", 413, "1048576"),
        (b"{", BATCH, 400, "not JSON"),
        (b"[]", BATCH, 400, "at least one"),
        (b'[{"Body": 1}]', BATCH, 400, "Event 0"),
        (b'[{"Body": "\\ud800"}]', BATCH, 400, "event 0"),
        (b'[{"Body": "a", "BrokerProperties": {"PartitionKey": "\\ud800"}}]', BATCH, 400, "PartitionKey"),
        (b'[{"Body": "a", "UserProperties": {"x": [1]}}]', BATCH, 400, "event 0"),
        (
            b'[{"Body": "a", "BrokerProperties": {"PartitionKey": "a"}}, {"Body": "b"}]',
            BATCH,
            400,
            "different partition keys",
        ),
    ],
)
def test_bad_bodies_are_refused(
    hub_service: HubService, event_hub: str, body: bytes, content_type: str, status: int, detail: str
) -> None:
    """Each mistake has its status and a sentence, in the documented shape; nothing is stored."""
    headers = {**_authorization(hub_service, event_hub), "Content-Type": content_type}
    answer = _request(hub_service, f"/{event_hub}/messages", body=body, headers=headers)
    assert answer[0] == status
    assert answer[1] == "application/xml; charset=utf-8"
    assert answer[2].startswith(f"<Error><Code>{status}</Code><Detail>")
    assert detail in answer[2]
    assert not _stored(hub_service, event_hub, "0") + _stored(hub_service, event_hub, "1")


def test_who_may_not_publish(hub_service: HubService, event_hub: str) -> None:
    """No token, a wrong key, and another hub's token are 401; an unknown hub is 404."""
    path = f"/{event_hub}/messages"
    assert _request(hub_service, path, body=b"x")[0] == 401
    wrong = _authorization(hub_service, event_hub, key="wrong")
    assert _request(hub_service, path, body=b"x", headers=wrong)[0] == 401
    other = _authorization(hub_service, "another")
    assert _request(hub_service, path, body=b"x", headers=other)[0] == 401
    assert _request(hub_service, "/another/messages", body=b"x", headers=other)[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/hub/publishers/p/messages", 404), ("GET", "/hub/messages", 405)],
)
def test_other_addresses_have_the_same_error_shape(
    hub_service: HubService, method: str, path: str, status: int
) -> None:
    """Whatever is asked for, an error looks the same and names what was asked."""
    answer = _request(hub_service, path, body=b"x" if method == "POST" else None)
    assert answer[:2] == (status, "application/xml; charset=utf-8")
    assert f"{method} {path}" in answer[2]
