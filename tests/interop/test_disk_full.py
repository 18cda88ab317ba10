"""A full disk, for real: the kernel refuses the running service's writes, and the official SDK is told so."""

from __future__ import annotations

import resource
import sys

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError
from tests.interop.support import SdkTarget, read

from tidegate.testing.hub import HubProcess

_BODY_BYTES = 300_000
_FILE_BYTES_MAX = 2_000_000
_EVENTS_THAT_FIT = _FILE_BYTES_MAX // _BODY_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a running process are Linux's prlimit(2)")
def test_a_full_disk_is_one_clear_error_and_loses_nothing() -> None:
    """Sends are refused with what to do; what was acknowledged is there; with room again, sending goes on.

    The limit on a file's size stands for the disk's end: the same call of the kernel fails, in mid-batch.
    """
    service = HubProcess()
    hub = service.create_hub(partition_count=1)
    with service:
        sdk = SdkTarget(service.connection_string)
        _, unlimited = resource.prlimit(service.process_id, resource.RLIMIT_FSIZE)
        resource.prlimit(service.process_id, resource.RLIMIT_FSIZE, (_FILE_BYTES_MAX, unlimited))
        with sdk.producer(hub) as producer:
            for number in range(_EVENTS_THAT_FIT):
                producer.send_batch([_event(number)], partition_id="0")
            with pytest.raises(EventHubError, match=r"disk is full: nothing was stored.*free disk"):
                producer.send_batch([_event(99)], partition_id="0")
            resource.prlimit(service.process_id, resource.RLIMIT_FSIZE, (unlimited, unlimited))
            producer.send_batch([_event(100)], partition_id="0")
        events = read(sdk.consumer(hub), _EVENTS_THAT_FIT + 1)
        texts = [event.body_as_str() for event in events]
    assert texts == [_event(number).body_as_str() for number in [*range(_EVENTS_THAT_FIT), 100]]


def _event(number: int) -> EventData:
    return EventData(str(number).rjust(_BODY_BYTES))
