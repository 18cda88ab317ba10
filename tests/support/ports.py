"""Free ports of loopback, for servers that have to be given theirs."""

from __future__ import annotations

import random
import socket
from typing import Final

_PORTS: Final = range(20_000, 32_000)
"""Systems take none of them for outgoing connections, or for servers that let them choose."""


def free_ports(count: int) -> list[int]:
    """That many different ports which nobody listened on just now.

    Another process could take one before it is used, but draws from the same 12,000.
    """
    # Not ``random``'s own, which tests seed.
    source = random.SystemRandom()
    found: set[int] = set()
    while len(found) < count:
        port = source.choice(_PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.add(port)
    return list(found)
