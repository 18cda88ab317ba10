"""A full disk and a damaged log, as a client sees them: one clear error, nothing lost, nothing altered."""

from __future__ import annotations

import errno
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.catalogs import read_catalog
from tests.gateway.support import HOST, Pair
from tests.storage.simulated_files import SimulatedFiles
from tests.support.clocks import SetClock

from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.performatives import Accepted, Rejected
from tidegate.broker import Broker
from tidegate.model.errors import ServerBusyError
from tidegate.server.opening import open_broker
from tidegate.wire.batch import wrap_event


@pytest.fixture
def files() -> SimulatedFiles:
    """A disk in memory that can be filled."""
    return SimulatedFiles()


@pytest.fixture
async def simulated(files: SimulatedFiles, clock: SetClock) -> AsyncIterator[Broker]:
    """A namespace on the simulated disk, with the hub ``hub`` of one partition."""
    broker = await open_broker(Path("/data"), clock=clock, files=files)
    await broker.create_event_hub("hub", partition_count=1)
    yield broker
    await broker.close()


def _event(text: str) -> bytes:
    return encode_message(Message(data=(text.encode(),)))


async def test_full_disk_refuses_and_recovers(
    files: SimulatedFiles, simulated: Broker, clock: SetClock
) -> None:
    """While the disk is full sends are rejected as busy; on the same link they succeed when there is room."""
    pair = Pair(simulated, clock)
    assert pair.put_token(simulated, f"sb://{HOST}/hub").status_code == 202
    link = pair.session.attach_sender("s", target="hub/Partitions/0")
    pair.exchange()
    for count, limit in enumerate((None, 0, None), start=1):
        files.space_left = limit
        link.send(_event(str(count)))
        await pair.wait_for(lambda wanted=count: len(pair.settled(link)) == wanted)  # type: ignore[misc]
    states = [event.state for event in pair.settled(link)]
    assert [type(state) for state in states] == [Accepted, Rejected, Accepted]
    assert isinstance(states[1], Rejected)
    assert states[1].error is not None
    assert states[1].error.condition == "com.microsoft:server-busy"
    receiver = pair.session.attach_receiver(
        "r", source="hub/ConsumerGroups/$Default/Partitions/0", target="client"
    )
    receiver.grant_credit(10)
    pair.exchange()
    assert [delivery.payload[-1:] for delivery in pair.deliveries(receiver)] == [b"1", b"3"]


@pytest.mark.slow
async def test_running_out_of_descriptors_refuses_and_recovers(
    files: SimulatedFiles, simulated: Broker, clock: SetClock
) -> None:
    """While no file can be opened sends are rejected as busy, and a receiver waits; its link stays."""
    pair = Pair(simulated, clock)
    assert pair.put_token(simulated, f"sb://{HOST}/hub").status_code == 202
    link = pair.session.attach_sender("s", target="hub/Partitions/0")
    receiver = pair.session.attach_receiver(
        "r", source="hub/ConsumerGroups/$Default/Partitions/0", target="client"
    )
    pair.exchange()
    files.opens_left = 0
    link.send(_event("1"))
    await pair.wait_for(lambda: len(pair.settled(link)) == 1)
    state = pair.settled(link)[0].state
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "com.microsoft:server-busy"
    files.opens_left = None
    link.send(_event("2"))
    await pair.wait_for(lambda: len(pair.settled(link)) == 2)
    files.opens_left = 0
    receiver.grant_credit(10)
    pair.exchange()
    assert pair.deliveries(receiver) == []
    files.opens_left = None
    await pair.wait_for(lambda: bool(pair.deliveries(receiver)))
    assert [delivery.payload[-1:] for delivery in pair.deliveries(receiver)] == [b"2"]


@pytest.mark.slow
async def test_a_hub_that_cannot_be_made_now_can_be_made_later(
    files: SimulatedFiles, simulated: Broker
) -> None:
    """Wherever descriptors run out, the hub is there once or not at all: the next try makes it, once."""
    for opens_left in range(40):
        files.opens_left = opens_left
        name = f"hub{opens_left}"
        try:
            await simulated.create_event_hub(name, partition_count=2)
        except ServerBusyError:
            files.opens_left = None
            await simulated.create_event_hub(name, partition_count=2)
        files.opens_left = None
        names = [record.name for record in read_catalog(Path("/data"), files).event_hubs.values()]
        assert names.count(name) == 1
        await simulated.event_hub(name).partitions[1].append(b"x", array("I", (1,)))


async def test_a_disk_that_does_not_read_stops_no_producer(
    files: SimulatedFiles, simulated: Broker, clock: SetClock
) -> None:
    """A reader that waits at the end is woken, cannot read and is detached; senders are answered."""
    pair = Pair(simulated, clock)
    assert pair.put_token(simulated, f"sb://{HOST}/hub").status_code == 202
    receiver = pair.session.attach_receiver(
        "r", source="hub/ConsumerGroups/$Default/Partitions/0", target="client"
    )
    receiver.grant_credit(10)
    link = pair.session.attach_sender("s", target="hub/Partitions/0")
    pair.exchange()
    files.read_error = errno.EIO
    link.send(_event("1"))
    await pair.wait_for(lambda: bool(pair.settled(link)))
    assert isinstance(pair.settled(link)[0].state, Accepted)
    error = pair.error_of(receiver)
    assert error is not None
    assert "disk" in (error.description or "")
    assert "/data" not in (error.description or "")


async def test_damaged_log_detaches_its_readers(
    broker: Broker, pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Altered events are not served: the reader is detached and told, the other partition is read on."""
    for partition in broker.event_hub("hub").partitions:
        section = wrap_event(_event("intact"))
        await partition.append(section, array("I", (len(section),)))
    damaged = 0
    for path in tmp_path.glob("logs/*/0/*"):
        content = path.read_bytes()
        if b"intact" in content:
            path.write_bytes(content.replace(b"intact", b"INTACT"))
            damaged += 1
    assert damaged == 1
    links = [
        pair.session.attach_receiver(
            f"r{number}", source=f"hub/ConsumerGroups/$Default/Partitions/{number}", target="client"
        )
        for number in range(2)
    ]
    for link in links:
        link.grant_credit(5)
    pair.exchange()
    assert pair.deliveries(links[0]) == []
    error = pair.error_of(links[0])
    assert error is not None
    assert "tidegate check" in (error.description or "")
    assert str(tmp_path) not in (error.description or "")
    assert str(tmp_path) in caplog.text  # for whoever runs the service
    assert len(pair.deliveries(links[1])) == 1
