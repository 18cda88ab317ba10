"""Faces without TLS that other machines reach are warned of; browsers stay with HTTPS where that is set."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from pathlib import Path

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.server.app import TidegateServer
from tidegate.server.exposure import exposure_warnings
from tidegate.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("203.0.114.9:5672", "a public address: anyone on the way"),
        ("[2606:4700::1]:5672", "a public address: anyone on the way"),
        ("[::ffff:8.8.8.8]:5672", "a public address: anyone on the way"),
        ("0.0.0.0:5672", "every address of this machine, public ones included"),
        ("[::]:5672", "every address of this machine, public ones included"),
        ("192.168.1.9:5672", "private network: anyone in that network and on the way"),
        ("[fd00::9]:5672", "private network: anyone in that network and on the way"),
        ("169.254.1.1:5672", "private network: anyone in that network and on the way"),
    ],
)
def test_who_can_listen_is_said_as_it_is(address: str, words: str) -> None:
    """Each kind of address in its own words, with what is exposed and the setting that helps."""
    (warning,) = exposure_warnings({"amqp": address, "amqps": address, "http": None, "https": address})
    assert address in warning
    assert words in warning
    assert "events, tokens" in warning
    assert "Set amqps_port instead of amqp_port" in warning


@pytest.mark.parametrize(
    "address", ["127.0.0.1:5672", "127.9.9.9:5672", "[::1]:5672", "[::ffff:127.0.0.1]:5672"]
)
def test_loopback_needs_no_warning(address: str) -> None:
    """Development stays quiet."""
    assert not exposure_warnings({"amqp": address, "amqps": None, "http": address, "https": None})


def _settings(tmp_path: Path, host: str, **more: int | None) -> ServerSettings:
    ports: dict[str, int | None] = {"amqp_port": 0, "http_port": 0, **more}
    return ServerSettings(data_dir=tmp_path / "data", host=host, **ports)  # type: ignore[arg-type]


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", 0), ("0.0.0.0", 2)])
async def test_the_service_warns_at_its_start(
    tmp_path: Path, host: str, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per face, in the log, which `tidegate serve` writes to standard error."""
    server = TidegateServer(_settings(tmp_path, host))
    await server.start()
    await server.close()
    assert sum("without TLS listens on" in record.getMessage() for record in caplog.records) == expected


@pytest.mark.slow
async def test_browsers_are_told_to_stay_with_https_where_the_setting_says_so(tmp_path: Path) -> None:
    """On each answer over HTTPS, errors included; never over HTTP, as RFC 6797 wants; not by default."""
    for setting, expected in ((None, None), (3600, "max-age=3600"), (0, "max-age=0")):
        server = TidegateServer(_settings(tmp_path, "127.0.0.1", https_port=0, hsts_max_age_s=setting))
        ready = await server.start()
        try:
            for path in ("/health", "/sign-in", "/api/v1/event-hubs", "/nowhere/else"):
                told = await asyncio.to_thread(_told, str(ready.https), ready.ca_file, path)
                assert told == expected, path
                assert await asyncio.to_thread(_told, str(ready.http), None, path) is None
        finally:
            await server.close()


def _told(address: str, ca_file: str | None, path: str) -> str | None:
    connection = (
        http.client.HTTPConnection(address, timeout=60)
        if ca_file is None
        else http.client.HTTPSConnection(
            address, timeout=60, context=ssl.create_default_context(cafile=ca_file)
        )
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.headers.get("Strict-Transport-Security")
    finally:
        connection.close()


def test_a_negative_age_is_refused(tmp_path: Path) -> None:
    """It is named, instead of being sent to browsers."""
    with pytest.raises(InvalidArgumentError, match="hsts_max_age_s"):
        _settings(tmp_path, "127.0.0.1", hsts_max_age_s=-1)
