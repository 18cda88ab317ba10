"""Several namespaces: one service is one, and any number of services run side by side on their own ports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.support import environment_without_service, run_tidegate

from tidegate.model.connection_string import ConnectionString
from tidegate.testing.hub import HubService

_HUBS = 12


@pytest.mark.slow
def test_two_services_are_two_namespaces(tmp_path: Path) -> None:
    """Hubs of the same names, more than the ten that the official emulator has, hold what each service was
    sent; a key opens its own service only; a stop of one leaves the other serving."""
    environment = environment_without_service(tmp_path)

    def run(service: HubService, *words: str, lines: str = "") -> str:
        options = ["--connection-string", service.connection_string]
        found = run_tidegate(*words, *options, environment=environment, input_bytes=lines.encode())
        assert found.code == 0, found.err
        return found.out

    orders, billing = HubService(), HubService()
    with orders, billing:
        assert orders.ready.amqp != billing.ready.amqp
        for service in (orders, billing):
            for number in range(_HUBS):
                service.create_hub(f"hub-{number}", partition_count=1)
        run(orders, "send", "hub-11", lines="an order")
        run(billing, "send", "hub-11", lines="a bill")
        assert len(json.loads(run(orders, "hub", "list", "--json"))) == _HUBS
        for service, body in ((orders, "an order"), (billing, "a bill")):
            assert run(service, "receive", "hub-11", "--no-follow", "--body").split("\n")[0] == body
        own, other = (ConnectionString.parse(service.connection_string) for service in (orders, billing))
        wrong = replace(own, shared_access_key=other.shared_access_key).format()
        refused = run_tidegate("hub", "list", "--connection-string", wrong, environment=environment)
        assert refused.code == 3
        assert "InvalidSignature" in refused.err
        run(orders, "throughput", "set", "1")
        assert json.loads(run(billing, "throughput", "show", "--json"))["units"] is None
        orders.stop()
        run(billing, "send", "hub-0", lines="still there")
