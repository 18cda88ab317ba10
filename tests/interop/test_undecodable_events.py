"""Official SDKs read past events that one of them cannot decode, each of which precedes a control event."""

from __future__ import annotations

import base64
import subprocess
from array import array
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Final, cast

import pytest
from tests.interop.java_programs import JAVA_5, QUICK_START, build, sources_of
from tests.interop.node import JavaScript, JavaScriptSdk
from tests.interop.suites.suite import ToolMissingError
from tests.interop.support import read, target_of
from tests.interop.test_sdk_go import RUN_S_MAX, build_program
from tests.wire.undecodable import UNDECODABLE

from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event

CONTROLS: Final = [b"control %d" % number for number in range(len(UNDECODABLE))]
NULL: Final = b"\x00\x53\x75\x40"
"""What JavaScript's SDK sends for ``body: null``; the standard has no such data section."""
BODIES: Final = [body for pair in zip(UNDECODABLE.values(), CONTROLS, strict=True) for body in pair]
BODIES.extend((b"", b"the end"))
"""What a reader receives: each event that it could not decode as a body, and the one after it; nothing for
null."""


@pytest.fixture(scope="module")
def hub(hub_service: HubService) -> str:
    """A hub with these events in partition 0, each followed by a control event."""
    name = hub_service.create_hub(partition_count=2)
    controls = (encode_event(EventData(body)) for body in CONTROLS)
    pairs = zip(UNDECODABLE.values(), controls, strict=True)
    end = encode_event(EventData(b"the end"))
    sections = [wrap_event(event) for event in (*chain.from_iterable(pairs), NULL, end)]

    async def append(server: TidegateServer) -> None:
        partition = server.broker.event_hub(name).partition("0")
        await partition.append(b"".join(sections), array("I", map(len, sections)))

    hub_service.call(append)
    return name


def test_python(hub_service: HubService, hub: str) -> None:
    """Protects readers with azure-eventhub, which otherwise wait for ever and report nothing."""
    events = read(target_of(hub_service, "plain").consumer(hub), len(BODIES))
    assert [b"".join(cast("Iterable[bytes]", event.body or ())) for event in events] == BODIES
    assert [event.sequence_number for event in events] == list(range(len(BODIES)))


def test_javascript(javascript: JavaScript, hub_service: HubService, hub: str) -> None:
    """Protects readers with @azure/event-hubs."""
    connection_string = hub_service.ready.connection_string_plain
    assert connection_string is not None
    events = JavaScriptSdk(javascript, connection_string).read(hub, len(BODIES))
    assert events[-2]["body"] is None
    assert [event["body"] or b"" for event in events] == BODIES
    assert [event["sequenceNumber"] for event in events] == list(range(len(BODIES)))


def test_go(hub_service: HubService, hub: str, tmp_path: Path) -> None:
    """Protects readers with azeventhubs, whose link ends at such an event each time that it is opened."""
    assert _bodies([str(build_program(tmp_path)), "bodies"], hub_service, hub) == BODIES


def test_java(hub_service: HubService, hub: str, tmp_path: Path) -> None:
    """Protects readers with azure-messaging-eventhubs."""
    try:
        class_path = build(JAVA_5, sources_of(JAVA_5, "Bodies"), tmp_path)
    except ToolMissingError as error:
        pytest.skip(f"NOT TESTED WITH THE JAVA SDK: {error}")
    assert _bodies(["java", *QUICK_START, "-cp", class_path, "Bodies"], hub_service, hub) == BODIES


def _bodies(command: list[str], service: HubService, hub: str) -> list[bytes]:
    """What a program prints: the body of each event of partition 0, in base64."""
    arguments = [service.connection_string, hub, str(len(BODIES))]
    run = subprocess.run([*command, *arguments], capture_output=True, timeout=RUN_S_MAX)
    assert run.returncode == 0, run.stderr.decode()[-2000:]
    return [base64.b64decode(line) for line in run.stdout.splitlines()]
