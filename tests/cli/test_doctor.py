"""``tidegate doctor``: each check says what it found, and a failed one names the remedy."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from tests.cli.support import run_on_terminal, run_tidegate

from tidegate.cli.app import app
from tidegate.cli.service import answers, doctor
from tidegate.cli.service.doctor import Result
from tidegate.model.errors import RemoteProtocolError
from tidegate.server.ready import write_profile
from tidegate.sql import Database
from tidegate.testing.hub import HubService


def _results(*words: str, environment: dict[str, str]) -> tuple[int, dict[str, dict[str, str]]]:
    found = run_tidegate("doctor", *words, "--json", environment=environment)
    records = found.json()
    assert isinstance(records, list)
    return found.code, {record["check"]: record for record in records}


def test_a_running_service_and_a_database(
    hub_service: HubService, lonely: dict[str, str], tmp_path: Path
) -> None:
    """Everything is ok, nothing is left behind in the data directory, and no key is printed."""
    write_profile(hub_service.ready, lonely)
    Database.open(f"sqlite:///{tmp_path}/made.db").close()
    before = sorted(path.name for path in hub_service.data_dir.iterdir())
    code, found = _results("--database", f"sqlite:///{tmp_path}/made.db", environment=lonely)
    wanted = {"versions", "service", "health", "clock", "certificate", "database"}
    assert {name for name in wanted if found[name]["result"] != "ok"} == set()
    assert code == 0
    assert {"descriptors", "disk space", "disk sync", "Java"} <= found.keys()
    assert sorted(path.name for path in hub_service.data_dir.iterdir()) == before
    assert "SharedAccessKey=" not in str(found)


def test_what_fails_is_named_and_nothing_is_created(lonely: dict[str, str], tmp_path: Path) -> None:
    """A service that is away, and a database that does not exist; the rest is still checked."""
    away = lonely | {
        "TIDEGATE_CONNECTION_STRING": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=secret;"
        "UseDevelopmentEmulator=true"
    }
    code, found = _results("--database", f"sqlite:///{tmp_path}/none.db", environment=away)
    assert code == 4
    assert {name for name, each in found.items() if each["result"] == "failed"} == {"service", "database"}
    assert "127.0.0.1:1" in found["service"]["found"]
    assert not (tmp_path / "none.db").exists()
    assert found["disk sync"]["result"] == "skipped"
    assert all(each["advice"] for each in found.values() if each["result"] == "failed")
    assert "secret" not in str(found)


def test_the_service_of_another_profile_is_not_mixed_with_the_last_started_one(
    hub_service: HubService, lonely: dict[str, str]
) -> None:
    """The one that was started last has ended; the one that the commands use answers."""
    ended = replace(hub_service.ready, amqp="127.0.0.1:1", amqps=None, http="127.0.0.1:1", https=None)
    write_profile(ended, lonely)
    _, found = _results("--connection-string", hub_service.connection_string, environment=lonely)
    assert [found[name]["result"] for name in ("service", "health", "clock", "certificate")] == [
        "ok",
        "skipped",
        "skipped",
        "skipped",
    ]


_HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
_OK = b'{"status": "ok"}'


@pytest.mark.parametrize(
    ("answer", "health", "clock"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it does not speak HTTP", "skipped"),
        (_HEAD + b"\r\n<html>", "it answers something else", "skipped"),
        (_HEAD + b"\r\n" + b"[" * 100_000, "it answers something else", "skipped"),
        (_HEAD + b"\r\n[]", "it answers something else", "skipped"),
        (_HEAD + b'\r\n{"status": "ok", "problems": 5}', "it answers something else", "skipped"),
        (_HEAD + b"Content-Length: x\r\n\r\n{}", "it answers something else", "skipped"),
        (_HEAD + b"Content-Length: 9\r\n\r\n{}", "it answers something else", "skipped"),
        (
            _HEAD.replace(b"200 OK", b"302 Found\r\nLocation: /health") + b"\r\n",
            "answers with 302",
            "skipped",
        ),
        (_HEAD.replace(b"200 OK", b"404 Not Found") + b"\r\n", "it answers with 404", "skipped"),
        (_HEAD + b"Date: now\r\n\r\n" + _OK, "", "skipped"),
        (_HEAD + b"Date: Mon, 01 Jan 0001 00:00:00 -0000\r\n\r\n" + _OK, "", "failed"),
        (_HEAD + b"Date: Mon, 01 Jan 99999999999999999999 00:00:00 GMT\r\n\r\n" + _OK, "", "skipped"),
    ],
)
def test_another_program_on_the_port_of_a_service_that_has_ended(
    answer: bytes,
    health: str,
    clock: str,
    hub_service: HubService,
    lonely: dict[str, str],
    tmp_path: Path,
) -> None:
    """One check says so and what to do, and all others have run. The bundle is written."""
    bundle = tmp_path / "report.zip"
    with _answering(answer) as place:
        string = f"Endpoint=sb://{place};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        other = replace(hub_service.ready, amqp=place, amqps=None, http=place, https=None)
        write_profile(replace(other, connection_string=string, connection_string_plain=string), lonely)
        code, found = _results("--bundle", str(bundle), environment=lonely)
    assert found.keys() == {*_CHECKS}
    assert (found["health"]["result"], health in found["health"]["found"]) == (
        "failed" if health else "ok",
        True,
    )
    advised = {name for name, each in found.items() if "another program has the port" in each["advice"]}
    assert advised == ({"service", "health"} if health else {"service"})
    assert found["clock"]["result"] == clock, found["clock"]
    assert found["service"]["result"] == "failed", found["service"]
    assert bundle.exists()
    assert code == 4


@contextmanager
def _answering(answer: bytes) -> Iterator[str]:
    """A program that gives everyone this answer; yields its host and port."""

    def serve() -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


_CHECKS = (
    "versions",
    "descriptors",
    "service",
    "health",
    "clock",
    "certificate",
    "disk space",
    "disk sync",
    "database",
    "Java",
)


def test_answers_are_bounded_and_not_redirected(
    hub_service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another program sends is no reason to use all memory, or to ask a third one."""
    monkeypatch.setattr(answers, "BYTES_MAX", 100)
    too_many = pytest.raises(RemoteProtocolError, match="more than 100 bytes")
    with _answering(_HEAD + b"\r\n" + b" " * 1_000 + _OK) as place, too_many:
        doctor._health(replace(hub_service.ready, http=place))
    with _answering(_HEAD + b"\r\n" + _OK) as elsewhere:
        moved = f"HTTP/1.1 302 Found\r\nLocation: http://{elsewhere}/health\r\n\r\n".encode()
        with _answering(moved) as place, pytest.raises(RemoteProtocolError, match="answers with 302"):
            doctor._health(replace(hub_service.ready, http=place))


def test_a_plain_port_behind_an_address_of_https(hub_service: HubService) -> None:
    """It is not taken for a certificate that is not known here."""
    with _answering(_HEAD + b"\r\n" + _OK) as place:
        tls = replace(hub_service.ready, http=None, connection_string_plain=None, https=place)
        with pytest.raises(RemoteProtocolError, match="does not speak HTTPS"):
            doctor._health(tls)


def test_a_check_that_fails_itself_hides_no_other(
    lonely: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a mistake of ours, and the others may show the reader's problem."""
    monkeypatch.setattr(doctor, "_descriptors", Mock(side_effect=KeyError("x")))
    result = CliRunner().invoke(app, ["doctor", "--json"], prog_name="tidegate", env=lonely)
    found = {each["check"]: each for each in json.loads(result.stdout)}
    assert found.keys() == {*_CHECKS}
    assert "failed with KeyError: 'x'" in found["descriptors"]["found"]


def test_an_address_that_cannot_be_read_hides_no_other_check(
    hub_service: HubService, lonely: dict[str, str]
) -> None:
    """It is one failed check."""
    write_profile(hub_service.ready, lonely)
    code, found = _results(environment=lonely | {"TIDEGATE_CONNECTION_STRING": "garbled"})
    assert code == 4
    assert found.keys() == {*_CHECKS}
    assert {name for name, each in found.items() if each["result"] == "failed"} == {"service"}


@pytest.mark.slow
def test_a_terminal_of_80_columns_shows_all_of_the_advice(lonely: dict[str, str]) -> None:
    """Continued on further lines, between words."""
    shown = run_on_terminal("doctor", "--data-dir", "/nowhere/at/all", environment=lonely).out
    assert "Name another with --data-dir, or run as the service's user." in " ".join(shown.split())
    assert "…" not in shown
    assert max(len(line) for line in click.unstyle(shown).splitlines()) <= 80


def test_a_policy_of_one_event_hub_is_enough(hub_service: HubService, lonely: dict[str, str]) -> None:
    """An application's connection string, which may only send to its hub."""
    hub = hub_service.create_hub(partition_count=2)
    service = lonely | {"TIDEGATE_CONNECTION_STRING": hub_service.connection_string}
    words = (
        "policy",
        "create",
        "feed",
        "--claim",
        "Send",
        "--hub",
        hub,
        "--with-connection-string",
        "--json",
    )
    made = run_tidegate(*words, environment=service).json()
    assert isinstance(made, dict)
    _, found = _results("--connection-string", made["primary_connection_string"], environment=lonely)
    assert found["service"]["result"] == "ok", found["service"]
    assert found["service"]["found"] == f"answers; event hub {hub} has 2 partitions"
    refused = run_tidegate(
        "hub", "list", environment=service | {"TIDEGATE_CONNECTION_STRING": made["primary_connection_string"]}
    )
    assert (refused.code, "this needs a policy of the namespace" in refused.err) == (3, True), refused.err


@pytest.mark.slow
def test_health_is_asked_over_tls_if_there_is_no_other_port(
    hub_service: HubService, lonely: dict[str, str]
) -> None:
    """With the service's certificate authority. One that is not known here is no failure of the service, and
    without a port for HTTP, the reason is said as it is."""
    tls_only = replace(hub_service.ready, http=None, connection_string_plain=None)
    write_profile(tls_only, lonely)
    _, found = _results(environment=lonely)
    assert {found[name]["result"] for name in ("health", "clock")} == {"ok"}
    write_profile(replace(tls_only, ca_file=None), lonely)
    _, found = _results(environment=lonely)
    assert found["health"]["result"] == "skipped"
    assert "certificate" in found["health"]["found"]
    write_profile(replace(tls_only, https=None), lonely)
    _, found = _results(environment=lonely)
    for name in ("health", "clock"):
        assert (found[name]["result"], "no port for HTTP" in found[name]["found"]) == ("skipped", True)


def test_a_database_is_described_as_it_is(tmp_path: Path) -> None:
    """Without tables, and with those of a newer Tidegate; neither is changed."""
    url = f"sqlite:///{tmp_path}/some.db"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE mine (n INTEGER)"))
    found = doctor._database(url)
    assert (found.result, "version 0" in found.found) == (Result.OK, True)
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["mine"]
    Database.open(url).close()
    with engine.begin() as connection:
        connection.execute(
            sa.text("INSERT INTO tidegate_schema_version (version, applied_at) VALUES (999, '2026-01-01')")
        )
    engine.dispose()
    assert doctor._database(url).result is Result.FAILED


@pytest.mark.parametrize(("sync_ms", "result"), [(0.0, Result.OK), (50.0, Result.WARNING)])
def test_a_slow_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_ms: float, result: Result
) -> None:
    """By the clock around each sync."""
    times = iter(range(1_000_000))
    monkeypatch.setattr(
        "tidegate.transport.clock.SystemClock.monotonic", lambda self: next(times) * sync_ms / 1000
    )
    found = doctor._disk_sync(tmp_path)
    assert found.result is result
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "result"), [(1024, Result.WARNING), (65_536, Result.OK), (resource.RLIM_INFINITY, Result.OK)]
)
def test_few_files_are_a_warning(monkeypatch: pytest.MonkeyPatch, files: int, result: Result) -> None:
    """By what the process may raise its limit to."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, files))
    assert doctor._descriptors().result is result


@pytest.mark.parametrize(("free", "result"), [(5, Result.WARNING), (50, Result.OK)])
def test_a_nearly_full_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, result: Result
) -> None:
    """In parts of its size."""
    usage = shutil._ntuple_diskusage(100, 100 - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert doctor._disk_space(tmp_path).result is result


@pytest.mark.parametrize(
    ("hours", "problems", "clock", "health"),
    [(0, [], Result.OK, Result.OK), (1, ["the disk is slow"], Result.FAILED, Result.WARNING)],
)
def test_what_the_service_answers_is_judged(
    monkeypatch: pytest.MonkeyPatch,
    hub_service: HubService,
    hours: int,
    problems: list[str],
    clock: Result,
    health: Result,
) -> None:
    """Its time against this machine's, and the problems that it names."""
    time = datetime.now(UTC) + timedelta(hours=hours)  # noqa: TID251 - against the machine's clock
    answer = json.dumps({"status": "degraded", "problems": problems}).encode()
    monkeypatch.setattr(doctor, "get", lambda *_: (answer, format_datetime(time, usegmt=True)))
    assert doctor._clock(hub_service.ready).result is clock
    found = doctor._health(hub_service.ready)
    assert (found.result, found.found) == (health, problems[0] if problems else "degraded")


def test_a_certificate_that_ends_is_a_warning(
    hub_service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before clients notice."""
    assert doctor._certificate(hub_service.ready).result is Result.OK
    later = datetime.now(UTC) + timedelta(days=380)  # noqa: TID251 - of a certificate made today
    monkeypatch.setattr("tidegate.transport.clock.SystemClock.now_utc", lambda self: later)
    assert doctor._certificate(hub_service.ready).result is Result.WARNING
