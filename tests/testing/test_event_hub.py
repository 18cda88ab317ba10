"""The fixture for other people's tests, used as they use it: by pytest, and as another language's child."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError
from tests.interop.support import Reader

from tidegate.testing.event_hub import TestedEventHub, TestedService

pytest_plugins = ["pytester"]
# azure-eventhub 5.15.1 forgets sockets that were cut under it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("forked_python"),
]

_WAIT_S = 90.0


@pytest.fixture(scope="module")
def service() -> Iterator[TestedService]:
    """As the plugin's, under another name: this run has a fixture ``event_hub`` of its own."""
    with TestedService() as service:
        yield service


@pytest.fixture(autouse=True)
def _collect_forgotten_sockets() -> Iterator[None]:
    yield
    gc.collect()  # here, where their warning is expected, and not in a test of others


@pytest.fixture
def hub(service: TestedService) -> Iterator[TestedEventHub]:
    """A fresh hub."""
    with service.event_hub(partition_count=2) as made:
        yield made


def _producer(hub: TestedEventHub) -> EventHubProducerClient:
    return EventHubProducerClient.from_connection_string(hub.connection_string, retry_backoff_factor=0.05)


def _consumer(hub: TestedEventHub) -> EventHubConsumerClient:
    return EventHubConsumerClient.from_connection_string(
        hub.connection_string, consumer_group="$Default", retry_backoff_factor=0.05
    )


def _send(producer: EventHubProducerClient, body: str) -> None:
    producer.send_event(EventData(body), partition_id="0")


def _bodies(hub: TestedEventHub) -> list[str]:
    return [bytes(event.body).decode() for event in hub.events()]


def _raises_soon(action: Callable[[], object], kind: type[Exception]) -> str:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        try:
            action()
        except kind as error:
            return str(error)
    raise AssertionError("nothing was raised")


@pytest.mark.sdk
def test_an_sdk_sends_and_receives(hub: TestedEventHub) -> None:
    """The whole of it for most tests: what the SDK sends is seen, what the test sends is received."""
    with _producer(hub) as producer:
        _send(producer, "by the SDK")
    assert _bodies(hub) == ["by the SDK"]
    hub.send("by the test", partition_id="0")
    with Reader(_consumer(hub)) as reader:
        assert [event.body_as_str() for event in reader.wait_events(2)] == ["by the SDK", "by the test"]


@pytest.mark.slow
def test_hubs_are_fresh(service: TestedService) -> None:
    """What one test leaves is not there for the next, under the same name or another."""
    for _ in range(2):
        with service.event_hub("same", partition_count=1) as hub:
            assert hub.events() == []
            hub.send("left behind")


@pytest.mark.sdk
def test_a_cut_line_is_mended_by_the_sdk(hub: TestedEventHub) -> None:
    """Cutting ends present connections only: the SDK's retry gets through."""
    with _producer(hub) as producer:
        _send(producer, "before")
        assert hub.faults.cut() == 1
        _send(producer, "after")
    assert sorted(set(_bodies(hub))) == ["after", "before"]  # a repeat of a lost answer is the SDK's right


@pytest.mark.sdk
def test_refused_connections(hub: TestedEventHub) -> None:
    """The service is down for new connections until it is mended."""
    hub.faults.refuse()
    with EventHubProducerClient.from_connection_string(hub.connection_string, retry_total=0) as producer:
        with pytest.raises(EventHubError):
            _send(producer, "lost")
        hub.faults.mend()
        _send(producer, "through")
    assert _bodies(hub) == ["through"]


@pytest.mark.sdk
def test_throttling_ends_by_itself(hub: TestedEventHub) -> None:
    """For its time every send is server-busy and stores nothing; then the same producer goes on."""
    with _producer(hub) as producer:
        _send(producer, "before")
        hub.faults.throttle(600)
        told = _raises_soon(lambda: _send(producer, "refused"), EventHubError)
        assert "server-busy" in told
        hub.faults.mend()
        _send(producer, "after")
    assert _bodies(hub) == ["before", "after"]


@pytest.mark.sdk
def test_a_stolen_epoch_is_told(hub: TestedEventHub) -> None:
    """A reader with an owner level is disconnected as by a new owner, and may come back."""
    hub.send("event", partition_id="0")
    with Reader(_consumer(hub), owner_level=5) as reader:
        reader.wait_events(1)
        hub.faults.steal_epoch("0")
        assert "higher epoch" in str(reader.wait_error())
    with Reader(_consumer(hub), owner_level=5) as reader:
        reader.wait_events(1)


@pytest.mark.sdk
def test_delayed_and_held_lines(service: TestedService, hub: TestedEventHub) -> None:
    """Held: nothing passes and nothing fails, until it is mended; delayed: it takes at least so long."""
    with _producer(hub) as producer:
        _send(producer, "first")
        hub.faults.delay(0.05)
        started = time.monotonic()
        _send(producer, "second")
        assert time.monotonic() - started >= 0.1  # there and back
        hub.faults.mend()
        hub.faults.hold()
        hub.send("past the fault", partition_id="0")
        assert _bodies(hub) == ["first", "second", "past the fault"]
        hub.faults.hold(False)
        _send(producer, "third")
    assert _bodies(hub)[-1] == "third"


@pytest.mark.slow
def test_the_plugin_gives_each_test_a_hub(pytester: pytest.Pytester) -> None:
    """As a user has it: nothing imported, a fixture by name, a marker for its shape."""
    pytester.makepyfile(
        """
        import pytest

        def test_first(event_hub):
            event_hub.send(b"left behind")
            assert [bytes(event.body) for event in event_hub.events()] == [b"left behind"]

        @pytest.mark.event_hub(partition_count=7, consumer_groups=["reports"])
        def test_second(event_hub):
            assert event_hub.events() == []
            assert event_hub.partition_ids == list("0123456")
            event_hub.faults.steal_epoch("6", "reports")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers", timeout=120)
    result.assert_outcomes(passed=2)


class Child:
    """``python -m tidegate.testing``, as another language's tests drive it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidegate.testing", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self._read()

    def do(self, **command: object) -> dict[str, object]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, object]:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(_WAIT_S) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.sdk
def test_a_process_for_other_languages() -> None:
    """Ready line, hubs, faults, bad commands that do not end it, and the end with its input."""
    with Child("--hub", "orders", "--partitions", "1") as child:
        hubs = child.ready["event_hubs"]
        assert isinstance(hubs, dict)
        with EventHubProducerClient.from_connection_string(hubs["orders"]) as producer:
            _send(producer, "event")
            assert child.do(do="cut") == {"ok": True, "connections": 1}
        made = child.do(do="create", name="more", partition_count=2)
        assert "EntityPath=more" in str(made["connection_string"])
        assert child.do(do="steal_epoch", name="orders", partition_id="0") == {"ok": True}
        for wrong in (
            {"do": "explode"},
            {"do": "create", "size": 3},
            {"do": "delete"},
            {"do": "create", "name": "/"},
        ):
            answer = child.do(**wrong)
            assert answer["ok"] is False
            assert answer["error"]
        assert child.do(do="delete", name="more") == {"ok": True}
        assert child.do(do="mend") == {"ok": True}


@pytest.mark.sdk
def test_it_stands_in_for_the_emulator(tmp_path: Path) -> None:
    """Its Config.json as it is, and its addresses and key as they are written into tests of others."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        port, http_port = first.getsockname()[1], second.getsockname()[1]
    config = _emulator_file(tmp_path)
    with Child("--config", str(config), "--port", str(port), "--http-port", str(http_port)) as child:
        assert child.ready["event_hubs"] == {"eh1": f"{child.ready['connection_string']};EntityPath=eh1"}
        connection_string = (
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )
        with EventHubProducerClient.from_connection_string(
            connection_string, eventhub_name="eh1"
        ) as producer:
            assert producer.get_partition_ids() == ["0", "1"]
            _send(producer, "event")
        with urllib.request.urlopen(f"http://localhost:{http_port}/health", timeout=_WAIT_S) as answer:
            assert json.load(answer)["status"] == "healthy"
        taken = subprocess.run(
            [sys.executable, "-m", "tidegate.testing", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
        )
        assert taken.returncode == 1
        assert f"Cannot listen on 127.0.0.1:{port}" in taken.stderr


@pytest.mark.slow
def test_a_signal_ends_it_without_a_trace(tmp_path: Path) -> None:
    """Test runners of other languages end their children so; the log of each run would pile up."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.testing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ok"]
        assert list(tmp_path.iterdir())
        process.send_signal(signal.SIGTERM)
        assert process.wait(_WAIT_S) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_hub_with_a_name_is_gone_when_its_block_ends(service: TestedService) -> None:
    """And one without soon after: the next test does not wait for it."""
    with service.event_hub("named"):
        assert "named" in service.event_hubs()
    assert "named" not in service.event_hubs()
    with service.event_hub() as hub:
        pass
    deadline = time.monotonic() + _WAIT_S
    while hub.name in service.event_hubs():
        assert time.monotonic() < deadline


def _emulator_file(directory: Path) -> Path:
    config = directory / "Config.json"
    entity = {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}
    namespace = {"Type": "EventHub", "Name": "emulatorNs1", "Entities": [entity]}
    document = {"UserConfig": {"NamespaceConfig": [namespace], "LoggingConfig": {"Type": "File"}}}
    config.write_text(json.dumps(document))
    return config
