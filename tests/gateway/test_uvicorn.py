"""What ``gateway.http.server`` uses of uvicorn's private HTTP protocol; pyproject.toml bounds the version.

Before you raise the bound, install the new version and run this file with tests/server/test_http*.py.
"""

from __future__ import annotations

import ast
import asyncio
import inspect

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidegate.gateway.http import server

_OVERRIDDEN = {
    "connection_made": "(self, transport: 'asyncio.Transport') -> 'None'",
    "connection_lost": "(self, exc: 'Exception | None') -> 'None'",
    "data_received": "(self, data: 'bytes') -> 'None'",
    "handle_events": "(self) -> 'None'",
    "pause_writing": "(self) -> 'None'",
    "resume_writing": "(self) -> 'None'",
    "timeout_keep_alive_handler": "(self) -> 'None'",
    "on_response_complete": "(self) -> 'None'",
    "shutdown": "(self) -> 'None'",
    "handle_websocket_upgrade": "(self, event: 'h11.Request') -> 'None'",
    "send_400_response": "(self, msg: 'str') -> 'None'",
}
"""Methods that uvicorn, or the event loop, calls and our class overrides."""

_ATTRIBUTES = {
    *("app", "app_state", "client", "conn", "cycle", "flow", "headers", "logger", "loop", "scheme", "scope"),
    "transport",
    "_unset_keepalive_if_required",
}
"""What our class reads or sets. ``cycle`` needs ``response_complete``, ``flow`` needs ``read_paused``,
``write_paused`` and ``drain``."""

_CALLS = {
    "timeout_keep_alive_handler": "self.timeout_keep_alive_handler",
    "handle_events": "self.handle_events()",
    "on_response_complete": "self.on_response_complete",
    "handle_websocket_upgrade": "self.handle_websocket_upgrade(event)",
    "send_400_response": "self.send_400_response(msg)",
}
"""Where uvicorn calls an overridden method itself, how its source does."""


@pytest.fixture
async def protocol() -> H11Protocol:
    """Uvicorn's own, without a connection."""

    async def application(scope: object, receive: object, send: object) -> None:
        """Answers nothing."""

    config = uvicorn.Config(application, log_config=None, lifespan="off")
    config.load()
    return H11Protocol(config, ServerState(), {}, asyncio.get_running_loop())


async def test_the_lists_name_all_that_our_class_uses(protocol: H11Protocol) -> None:
    """A use that is added to ``_HttpProtocol`` is added here, too."""
    tree = ast.parse(inspect.getsource(server._HttpProtocol))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    methods = {node.name for node in body.body if isinstance(node, ast.FunctionDef)}
    used = {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    theirs = {name for name in vars(H11Protocol) if not name.startswith("__")} | set(vars(protocol))
    assert methods & theirs == set(_OVERRIDDEN)
    assert used & theirs - set(_OVERRIDDEN) == _ATTRIBUTES


async def test_this_version_of_uvicorn_has_what_is_used(protocol: H11Protocol) -> None:
    """Names, signatures, and that uvicorn calls what is overridden."""
    for name, signature in _OVERRIDDEN.items():
        assert str(inspect.signature(getattr(H11Protocol, name))) == signature
    assert set(dir(protocol)) >= _ATTRIBUTES
    source = inspect.getsource(H11Protocol)
    assert [name for name, call in _CALLS.items() if call not in source] == []
    assert "response_complete" in inspect.signature(RequestResponseCycle).parameters or (
        "self.response_complete = False" in inspect.getsource(RequestResponseCycle)
    )
    assert "app_state" in inspect.getsource(H11Protocol.handle_websocket_upgrade)


def test_this_version_of_uvicorn_starts_and_stops_servers_as_ours_expects() -> None:
    """``HttpServer`` overrides ``startup`` and ``capture_signals``, and sets what ``shutdown`` reads."""
    for name in ("startup", "capture_signals"):
        assert f"self.{name}(" in inspect.getsource(uvicorn.Server)
    shutdown = inspect.getsource(uvicorn.Server.shutdown)
    assert "self.servers" in shutdown
    assert "self.server_state.connections" in shutdown
