"""Cases of azure-servicebus 0.21.1, printed as tests/interop/suites/programs.py reads them."""

from __future__ import annotations

import json
import os
import traceback
from typing import Any

import requests
from azure.common import AzureMissingResourceHttpError
from azure.servicebus import ServiceBusService
from azure.servicebus.models import EventHub

HUB = f"{os.environ['TIDEGATE_HUB']}-atom"
URL = os.environ["TIDEGATE_HTTPS_URL"]


class Session(requests.Session):
    """Goes to the service's port: the SDK knows 443 alone, and no authority of one's own."""

    def request(self, method: Any, url: Any, *arguments: Any, **more: Any) -> requests.Response:
        """Send it to the service."""
        address = str(url).replace("https://localhost:443", URL).replace("https://localhost/", f"{URL}/")
        more |= {"verify": os.environ["TIDEGATE_CA_FILE"]}
        return super().request(method, address, *arguments, **more)


def _service() -> Any:
    fields = dict(each.split("=", 1) for each in os.environ["TIDEGATE_CONNECTION_STRING"].split(";") if each)
    return ServiceBusService(
        service_namespace="localhost",
        host_base="",
        shared_access_key_name=fields["SharedAccessKeyName"],
        shared_access_key_value=fields["SharedAccessKey"],
        request_session=Session(),
    )


def create_event_hub(service: Any) -> None:
    """True where it was made, False where it was there."""
    hub = EventHub(message_retention_in_days=2, partition_count=3)
    assert service.create_event_hub(HUB, hub) is True
    assert service.create_event_hub(HUB, hub) is False


def get_event_hub(service: Any) -> None:
    """What was made."""
    hub = service.get_event_hub(HUB)
    found = (hub.name, hub.partition_count, hub.partition_ids, hub.message_retention_in_days, hub.status)
    assert found == (HUB, 3, ["0", "1", "2"], 2, "Active"), found


def update_event_hub(service: Any) -> None:
    """The retention can be changed."""
    assert service.update_event_hub(HUB, EventHub(message_retention_in_days=4)).message_retention_in_days == 4


def send_event(service: Any) -> None:
    """To the hub, and as a device."""
    service.send_event(HUB, b"event")
    service.send_event(HUB, b"event", device_id="dev-1")


def delete_event_hub(service: Any) -> None:
    """True where it was there, False where it was not; nobody gets it afterwards."""
    assert service.delete_event_hub(HUB) is True
    assert service.delete_event_hub(HUB) is False
    try:
        service.get_event_hub(HUB)
    except AzureMissingResourceHttpError:
        return
    raise AssertionError("it is still there")


def main() -> None:
    """Every case, in order: each needs the ones before it."""
    service = _service()
    for case in (create_event_hub, get_event_hub, update_event_hub, send_event, delete_event_hub):
        outcome, detail = "passed", ""
        try:
            case(service)
        except Exception:
            outcome, detail = "failed", traceback.format_exc(limit=-2)
        print(json.dumps({"name": case.__name__, "outcome": outcome, "detail": detail}), flush=True)


if __name__ == "__main__":
    main()
