"""SIGKILL of the service while official producers run: what was acknowledged is there, once, in order."""

from __future__ import annotations

import gc
import random
import threading
import time

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError
from tests.interop.support import SdkTarget, bodies, read

from tidegate.testing.hub import HubProcess

ROUNDS = 3
PRODUCERS = 3


class AcknowledgedSender(threading.Thread):
    """Sends numbered batches until the connection breaks, and remembers what was acknowledged."""

    def __init__(self, sdk: SdkTarget, hub: str, name: str) -> None:
        super().__init__(name=name)
        self._producer = sdk.producer(hub)
        self.sent: list[str] = []
        self.acknowledged: list[str] = []

    def run(self) -> None:
        """Every send is tried once: the SDK's retries would themselves send an event twice."""
        try:
            for number in range(100_000):
                batch = [f"{self.name}-{number}-{index}" for index in range(5)]
                self.sent += batch
                self._producer.send_batch([EventData(text) for text in batch], partition_id="0")
                self.acknowledged += batch
        except (EventHubError, OSError):
            pass  # the service was killed
        finally:
            self._producer.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_acknowledged_events_survive_sigkill() -> None:
    """Over several kills at random moments no acknowledged event is lost, doubled or out of order.

    (The SDK leaves its sockets open when the line breaks: their warnings are not ours.)
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged: list[list[str]] = []
    sent: set[str] = set()
    service = HubProcess()
    hub = service.create_hub(partition_count=1)
    try:
        for round_number in range(ROUNDS):
            service.start()
            sdk = SdkTarget(service.connection_string)
            senders = [
                AcknowledgedSender(sdk, hub, f"r{round_number}p{number}") for number in range(PRODUCERS)
            ]
            for sender in senders:
                sender.start()
            deadline = time.monotonic() + 60
            wanted = chance.randrange(20, 300)
            while sum(len(sender.acknowledged) for sender in senders) < wanted:
                assert time.monotonic() < deadline, "the producers do not get on"
                time.sleep(0.001)
            service.kill()
            for sender in senders:
                sender.join(70)
                assert not sender.is_alive()
            acknowledged += [sender.acknowledged for sender in senders]
            sent.update(text for sender in senders for text in sender.sent)
        service.start()
        sdk = SdkTarget(service.connection_string)
        with sdk.producer(hub) as producer:
            count = producer.get_partition_properties("0")["last_enqueued_sequence_number"] + 1
        stored = bodies(read(sdk.consumer(hub), count))
    finally:
        service.close()
    del senders
    gc.collect()
    assert len(stored) == len(set(stored)) == count
    assert set(stored) <= sent
    place = {text: index for index, text in enumerate(stored)}
    for texts in acknowledged:
        missing = [text for text in texts if text not in place]
        assert not missing, f"seed {seed}: acknowledged and lost: {missing[:5]}"
        places = [place[text] for text in texts]
        assert places == sorted(places), f"seed {seed}: reordered"
