"""Free ports of loopback, for servers that have to be told theirs."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """That many different ports which nobody listened on just now; another process may take one first."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
