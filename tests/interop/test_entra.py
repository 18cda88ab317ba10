"""Code for Entra ID, unchanged: azure-identity gets its token from `tidegate token entra --serve`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import AuthenticationError, EventHubError
from azure.identity import DefaultAzureCredential
from azure.identity.aio import DefaultAzureCredential as AsyncCredential
from tests.cli.support import COMMAND, environment_without_service, run_tidegate
from tests.interop.support import SdkTarget, target_of

from tidegate.client import EventHubConsumer, EventHubProducer, Namespace
from tidegate.model.events import EventData as OwnEventData
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """A service with TLS, which trusts the issuer for development."""
    config = tmp_path_factory.mktemp("entra") / "settings.json"
    config.write_text(json.dumps({"is_development_issuer_trusted": True}))
    with HubService(is_tls_used=True, is_http_used=True, config=config) as service:
        yield service


@pytest.fixture(scope="module")
def hub(service: HubService) -> str:
    """An event hub."""
    return service.create_hub(partition_count=1)


def _identity(service: HubService, hub: str, role: str) -> Iterator[dict[str, str]]:
    """The variables for azure-identity, from a process that gives tokens of that role."""
    words = ["token", "entra", hub, "--role", role, "--serve", "0", "--data-dir", str(service.data_dir)]
    environment = environment_without_service(service.data_dir)
    with subprocess.Popen([*COMMAND, *words, "--json"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.terminate()


@pytest.fixture
def owner(service: HubService, hub: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is one with a managed identity that owns the hub's data."""
    for variables in _identity(service, hub, "owner"):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture
def receiver(service: HubService, hub: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that may only receive."""
    for variables in _identity(service, hub, "receiver"):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield


def _producer(target: SdkTarget, hub: str) -> EventHubProducerClient:
    return EventHubProducerClient(
        "localhost", hub, DefaultAzureCredential(), retry_total=0, **target.arguments
    )


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize("transport", ["tls", "websocket"])
def test_the_official_sdk(service: HubService, hub: str, transport: str) -> None:
    """Sends and receives with DefaultAzureCredential, by AMQP and WebSocket."""
    target = target_of(service, transport)
    with _producer(target, hub) as producer:
        producer.send_batch([EventData(transport)])
    found: list[str] = []
    consumer = EventHubConsumerClient(
        "localhost", hub, "$Default", DefaultAzureCredential(), **target.arguments
    )

    def on_event(_: object, event: EventData | None) -> None:
        assert event is not None
        found.append(event.body_as_str())
        if found[-1] == transport:
            consumer.close()

    with consumer:
        consumer.receive(on_event, starting_position="-1")
    assert transport in found


@pytest.mark.usefixtures("owner")
async def test_our_own_client(service: HubService, hub: str) -> None:
    """The same credential, in ours."""
    assert service.ready.amqps is not None
    port = int(service.ready.amqps.rpartition(":")[2])
    async with (
        AsyncCredential() as credential,
        EventHubProducer(
            Namespace.from_credential("localhost", credential, port=port, ca_file=service.ready.ca_file), hub
        ) as producer,
    ):
        await producer.send([OwnEventData(b"own")])
    async with (
        AsyncCredential() as credential,
        EventHubConsumer(
            Namespace.from_credential("localhost", credential, port=port, ca_file=service.ready.ca_file), hub
        ) as consumer,
        await consumer.open_receiver("0", EventPosition.earliest()) as receiver,
    ):
        assert await receiver.receive(1, 60.0)


@pytest.mark.usefixtures("receiver")
def test_a_receiver_may_not_send(service: HubService, hub: str) -> None:
    """The role is the limit, and the SDK reports it as an error of authentication."""
    with (
        _producer(target_of(service, "tls"), hub) as producer,
        pytest.raises((AuthenticationError, EventHubError), match=r"Send|Unauthorized"),
    ):
        producer.send_batch([EventData("x")])


@pytest.mark.usefixtures("owner")
def test_another_hub_is_refused(service: HubService) -> None:
    """Even to its owner."""
    other = service.create_hub(partition_count=1)
    with (
        _producer(target_of(service, "tls"), other) as producer,
        pytest.raises((AuthenticationError, EventHubError), match="no role on"),
    ):
        producer.send_batch([EventData("x")])


def test_who_does_not_know_the_secret_gets_no_token(service: HubService, hub: str) -> None:
    """Another user of this machine can reach the port."""
    script = (
        "import os, sys, urllib.request, urllib.error\n"
        "for header, query in (('x', 'resource=r'), (os.environ['IDENTITY_HEADER'], '')):\n"
        "    request = urllib.request.Request(os.environ['IDENTITY_ENDPOINT'] + '?' + query,\n"
        "                                     headers={'X-IDENTITY-HEADER': header})\n"
        "    try:\n"
        "        urllib.request.urlopen(request)\n"
        "    except urllib.error.HTTPError as error:\n"
        "        print(error.code)\n"
    )
    for variables in _identity(service, hub, "owner"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["401", "400"]


def test_the_command_alone(service: HubService, hub: str, lonely_environment: dict[str, str]) -> None:
    """One token on standard output, which HTTP accepts; without an issuer, a sentence."""
    words = ("token", "entra", hub, "--role", "sender", "--life", "5m", "--principal", "me")
    found = run_tidegate(*words, "--data-dir", str(service.data_dir), environment=lonely_environment)
    assert found.code == 0, found.err
    assert len(found.out.strip().split(".")) == 3
    missing = run_tidegate(*words, "--data-dir", "/nowhere", environment=lonely_environment)
    assert (missing.code, "--development-issuer" in missing.err) == (1, True)
    unknown = run_tidegate(*words, environment=lonely_environment)
    assert (unknown.code, "--data-dir" in unknown.err) == (2, True)


@pytest.fixture
def lonely_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """No profile."""
    return environment_without_service(tmp_path_factory.mktemp("lonely"))
