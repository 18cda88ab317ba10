"""Owner levels (epochs) with the official Python SDK: the main pairs, the sixth reader, and coming back.

Every ordered pair is in ``tests/gateway/test_epochs.py``; here is what the SDK makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from azure.eventhub import EventData
from tests.interop.support import Reader, SdkTarget, target_of

from tidegate.testing.hub import HubService

OPEN, STOLEN, REFUSED = "both read", "the first is told", "the second is told"


@pytest.fixture(scope="module")
def service() -> Iterator[HubService]:
    """One service for all tests; each makes a hub of its own."""
    with HubService() as service:
        yield service


@pytest.fixture
def target(service: HubService) -> SdkTarget:
    """How the SDK reaches it."""
    return target_of(service, "plain")


@pytest.fixture
def hub(service: HubService, target: SdkTarget) -> str:
    """A hub of one partition with one event, so that a reader can be seen to read."""
    hub = service.create_hub(partition_count=1)
    with target.producer(hub) as producer:
        producer.send_event(EventData("event"))
    return hub


def _reader(target: SdkTarget, hub: str, level: int | None) -> Reader:
    return Reader(target.consumer(hub), owner_level=level)


@pytest.mark.parametrize(
    ("first", "second", "outcome", "text"),
    [
        (None, None, OPEN, ""),
        (None, 0, STOLEN, "higher epoch of '0'"),
        (0, None, REFUSED, "non-epoch receiver is not allowed"),
        (0, 0, STOLEN, "higher epoch of '0'"),
        (1, 0, REFUSED, "with a higher epoch '1' already exists"),
        (1, 1, STOLEN, "higher epoch of '1'"),
        (1, 2, STOLEN, "higher epoch of '2'"),
    ],
)
def test_pairs(
    target: SdkTarget, hub: str, first: int | None, second: int | None, outcome: str, text: str
) -> None:
    """The SDK reports the loser's error with the service's words, and the other one reads."""
    with _reader(target, hub, first) as one:
        one.wait_events(1)
        with _reader(target, hub, second) as two:
            if outcome == STOLEN:
                assert text in str(one.wait_error())
            if outcome == REFUSED:
                assert text in str(two.wait_error())
            elif first is None or first != second:  # equals take it from each other, as the SDK comes back
                two.wait_events(1)
            if outcome != STOLEN:
                assert not one.errors


def test_the_group_is_open_again_when_the_owner_has_gone(target: SdkTarget, hub: str) -> None:
    """After an owner has closed, readers without an owner level get in, and lower owner levels do."""
    with _reader(target, hub, 7) as owner:
        owner.wait_events(1)
    with _reader(target, hub, None) as reader:
        reader.wait_events(1)
    with _reader(target, hub, 1) as lower:
        lower.wait_events(1)


def test_the_sixth_reader(target: SdkTarget, hub: str) -> None:
    """Five readers share a partition; the sixth is told how many are allowed."""
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(_reader(target, hub, None)).wait_events(1)
        with _reader(target, hub, None) as sixth:
            assert "maximum number of allowed receivers per partition in a consumer group which is 5" in str(
                sixth.wait_error()
            )
