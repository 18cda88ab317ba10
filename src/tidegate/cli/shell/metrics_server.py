"""Serves the metrics of a command that runs until it is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.registry import Collector

from tidegate.model.errors import InvalidArgumentError


@contextmanager
def metrics_server(host: str, port: int, collector: Collector) -> Iterator[str]:
    """Serve ``/metrics`` while the context is open; yields ``host:port`` (the actual port if ``port`` is 0).

    Raises InvalidArgumentError if the port is in use.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise InvalidArgumentError(
            f"Metrics cannot be served at {host}:{port}: {error.strerror or error}.",
            next_step="Choose another --metrics-port; 0 means any free port.",
        ) from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
