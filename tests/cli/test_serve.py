"""``tidegate serve``: what it says, what it leaves behind, how it stops."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.cli.support import COMMAND, run_tidegate

from tidegate.cli.service.serve import serve
from tidegate.model.connection_string import ConnectionString
from tidegate.model.sas import make_sas_token
from tidegate.server.settings import ServerSettings

pytestmark = pytest.mark.usefixtures("forked_python")


@contextmanager
def _start(environment: dict[str, str], *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The service, until the block ends: where a test fails in it, it is killed rather than waited for."""
    with subprocess.Popen(
        [*COMMAND, "serve", *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> dict[str, object]:
    deadline = time.monotonic() + 90
    while not path.exists():
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_first_start_prints_what_people_need(tmp_path: Path, lonely: dict[str, str]) -> None:
    """Connection strings that SDKs take, the data's place, each port and the CA; the profile serves the
    rest."""
    ready_file = tmp_path / "ready.json"
    data_dir = tmp_path / "data"
    options = ["--data-dir", str(data_dir), "--amqp-port", "0", "--amqps-port", "0", "--http-port", "0"]
    with _start(lonely, *options, "--ready-file", str(ready_file)) as process:
        ready = _wait_for(ready_file, process)
        # No option and no variable: the profile that serve has just left is what leads there.
        assert run_tidegate("hub", "create", "first", environment=lonely).code == 0
        listed = run_tidegate("hub", "list", "--nl", environment=lonely)
        assert json.loads(listed.out)["name"] == "first"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    text = out.decode()
    for name in (
        "amqp",
        "amqps",
        "http",
        "ca_file",
        "data_dir",
        "connection_string",
        "connection_string_plain",
    ):
        assert str(ready[name]) in text, name
    assert ready["https"] is None
    assert "First start" in text
    assert "sign-in?link=" not in text  # no terminal
    assert "--tier Standard" in text
    plain = ConnectionString.parse(str(ready["connection_string_plain"]))
    assert plain.use_development_emulator
    assert plain.shared_access_key
    assert plain.shared_access_key not in err.decode()
    assert not ready_file.exists()


@pytest.mark.slow
def test_a_terminal_gets_a_link_that_signs_in_once(tmp_path: Path, lonely: dict[str, str]) -> None:
    """Its first GET is signed in; asking by HEAD uses nothing up; a JSON log comes without a link."""
    ready_file = tmp_path / "ready.json"
    options = ["--data-dir", str(tmp_path / "data"), "--amqp-port", "0", "--http-port", "0"]
    for log_format in ("text", "json"):
        terminal, side = pty.openpty()
        command = [*COMMAND, "serve", *options, "--ready-file", str(ready_file), "--log-format", log_format]
        with subprocess.Popen(command, env=lonely, stdout=side, stderr=subprocess.PIPE) as process:
            try:
                ready = _wait_for(ready_file, process)
                if log_format == "text":
                    shown = b""
                    while not (found := re.search(rb"(/console/sign-in\?link=\S{43})\s", shown)):
                        shown += os.read(terminal, 4096)
                    link, other = found[1].decode(), found[1][:-1].decode() + "!"
                    asked = [("HEAD", link), ("GET", other), ("GET", link), ("GET", link)]
                    answers = [_ask(str(ready["http"]), *each) for each in asked]
                    assert [status for status, _ in answers] == [200, 403, 303, 403]
                    assert [cookie is not None for _, cookie in answers] == [False, False, True, False]
                    cookie = answers[2][1]
                    assert _ask(str(ready["http"]), "GET", "/hubs", cookie)[0] == 200
                    assert _ask(str(ready["http"]), "GET", "/hubs")[0] == 303
            finally:
                process.terminate()
                _, err = process.communicate(timeout=60)
        os.close(side)
        os.set_blocking(terminal, False)
        try:
            rest = os.read(terminal, 4096)
        except OSError:
            rest = b""
        os.close(terminal)
        assert b"link=" not in err
        assert log_format == "text" or b"link=" not in rest


@pytest.mark.slow
def test_data_survives_a_restart(tmp_path: Path, lonely: dict[str, str]) -> None:
    """A second start finds hubs and key of the first one, and does not call itself the first."""
    ready_file = tmp_path / "ready.json"
    options = ["--data-dir", str(tmp_path / "data"), "--amqp-port", "0", "--ready-file", str(ready_file)]
    keys = []
    for number in range(2):
        with _start(lonely, *options) as process:
            ready = _wait_for(ready_file, process)
            keys.append(ConnectionString.parse(str(ready["connection_string"])).shared_access_key)
            if number == 0:
                assert run_tidegate("hub", "create", "kept", environment=lonely).code == 0
            else:
                assert "kept" in run_tidegate("hub", "list", environment=lonely).out
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        assert (b"First start" in out) == (number == 0)
    assert keys[0] == keys[1]


@pytest.mark.slow
def test_a_tier_is_set_at_the_start(tmp_path: Path, lonely: dict[str, str]) -> None:
    """By option or variable; its limits apply then, and nothing is said of tiers."""
    ready_file = tmp_path / "ready.json"
    options = ["--data-dir", str(tmp_path / "data"), "--amqp-port", "0", "--http-port", "0"]
    for tier, chosen, variables in (
        ("Basic", ["--tier", "basic"], {}),
        ("Standard", [], {"TIDEGATE_TIER": "Standard"}),
    ):
        with _start(lonely | variables, *options, *chosen, "--ready-file", str(ready_file)) as process:
            _wait_for(ready_file, process)
            shown = run_tidegate("tier", "show", "--nl", environment=lonely)
            assert json.loads(shown.out)["tier"] == tier
            refused = run_tidegate("hub", "create", "wide", "--partitions", "33", environment=lonely)
            assert (refused.code, "33" in refused.err) == (2, True)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
        assert b"--tier" not in out


@pytest.mark.slow
def test_a_directory_has_one_service(tmp_path: Path, lonely: dict[str, str]) -> None:
    """A second service on the same directory, and a check of it, are refused with a clear word."""
    ready_file = tmp_path / "ready.json"
    data_dir = str(tmp_path / "data")
    with _start(
        lonely, "--data-dir", data_dir, "--amqp-port", "0", "--ready-file", str(ready_file)
    ) as process:
        _wait_for(ready_file, process)
        for words in (["serve", "--data-dir", data_dir, "--amqp-port", "0"], ["check", data_dir]):
            second = run_tidegate(*words, environment=lonely)
            assert second.code == 1
            assert "Error:" in second.err
            assert "Traceback" not in second.err
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert run_tidegate("check", data_dir, environment=lonely).code == 0


@pytest.mark.slow
def test_settings_from_a_file(tmp_path: Path, lonely: dict[str, str]) -> None:
    """A TOML file gives settings, paths in it start at the file, and options win over it."""
    config = tmp_path / "tidegate.toml"
    config.write_text('data_dir = "log"\namqp_port = 1\nready_file = "ready.json"\n')
    with _start(lonely, "--config", str(config), "--amqp-port", "0") as process:
        ready = _wait_for(tmp_path / "ready.json", process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert ready["data_dir"] == str(tmp_path / "log")
    assert not str(ready["amqp"]).endswith(":1")
    config.write_text("amqp_prot = 1\n")
    failed = run_tidegate("serve", "--config", str(config), environment=lonely)
    assert failed.code == 2
    assert "amqp_prot" in failed.err


def test_every_option_is_a_variable_as_well() -> None:
    """Protects containers and units: what the command line can say, the environment can say too."""
    names = {field.name for field in fields(ServerSettings)}
    own = {name for option in serve.params if (name := option.name) and option.name not in names}
    assert {option.envvar for option in serve.params if option.name in own} == {
        "TIDEGATE_CONFIG",
        "TIDEGATE_EPHEMERAL",
        "TIDEGATE_LOG_FORMAT",
        "TIDEGATE_TIER",
    }
    assert len(own) == 4


@pytest.mark.slow
def test_variables_and_options(tmp_path: Path, lonely: dict[str, str]) -> None:
    """A service is configured by its environment alone; an option wins, and the file loses."""
    config = tmp_path / "tidegate.toml"
    config.write_text('amqp_port = 1\nhttp_port = 1\nhost = "127.0.0.3"\n')
    ready_file = tmp_path / "ready.json"
    given = lonely | {
        "TIDEGATE_CONFIG": str(config),
        "TIDEGATE_DATA_DIR": str(tmp_path / "data"),
        "TIDEGATE_AMQP_PORT": "0",
        "TIDEGATE_HTTP_PORT": "2",
        "TIDEGATE_READY_FILE": str(ready_file),
        "TIDEGATE_IS_CONSOLE_SERVED": "false",
    }
    with _start(given, "--http-port", "0") as process:
        ready = _wait_for(ready_file, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert (ready["data_dir"], ready["console"]) == (str(tmp_path / "data"), None)
    assert str(ready["amqp"]).startswith("127.0.0.3:")
    assert not str(ready["http"]).endswith((":1", ":2"))
    failed = run_tidegate("serve", environment=given | {"TIDEGATE_AMQP_PORT": "five"})
    assert (failed.code, "TIDEGATE_AMQP_PORT" in failed.err) == (2, True)


@pytest.mark.slow
def test_an_ephemeral_service_leaves_nothing(tmp_path: Path, lonely: dict[str, str]) -> None:
    """The fixture of tests in any language: hubs of a file, free ports, no profile, no data afterwards."""
    config = tmp_path / "hubs.toml"
    config.write_text('[[event_hubs]]\nname = "orders"\npartition_count = 2\n')
    ready_file = tmp_path / "ready.json"
    options = ["--ephemeral", "--config", str(config), "--ready-file", str(ready_file)]
    with _start(lonely | {"TIDEGATE_DATA_DIR": str(tmp_path / "kept")}, *options) as process:
        ready = _wait_for(ready_file, process)
        data_dir = Path(str(ready["data_dir"]))
        assert data_dir.exists()
        string = str(ready["connection_string"])
        listed = run_tidegate(
            "hub", "list", "--nl", environment=lonely | {"TIDEGATE_CONNECTION_STRING": string}
        )
        assert json.loads(listed.out)["name"] == "orders"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"find the service automatically" not in out
    assert not str(ready["amqp"]).endswith(":5672")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hubs.toml"]
    assert not data_dir.exists()
    both = run_tidegate("serve", "--ephemeral", "--data-dir", str(tmp_path / "a"), environment=lonely)
    assert (both.code, "mutually exclusive" in both.err) == (2, True)


@pytest.mark.slow
def test_a_taken_port_is_told(tmp_path: Path, lonely: dict[str, str]) -> None:
    """A port that somebody else has is one clear error."""
    ready_file = tmp_path / "ready.json"
    first = ["--data-dir", str(tmp_path / "a"), "--amqp-port", "0", "--ready-file", str(ready_file)]
    with _start(lonely, *first) as process:
        port = str(_wait_for(ready_file, process)["amqp"]).rpartition(":")[2]
        failed = run_tidegate(
            "serve", "--data-dir", str(tmp_path / "b"), "--amqp-port", port, environment=lonely
        )
        assert failed.code == 2
        assert port in failed.err
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.slow
def test_the_log_as_json_holds_no_secret(tmp_path: Path, lonely: dict[str, str]) -> None:
    """A service's life as JSON lines: where it serves, what it refused, its end; no key on any stream."""
    ready_file = tmp_path / "ready.json"
    options = ["--data-dir", str(tmp_path / "data"), "--amqp-port", "0", "--http-port", "0"]
    options += ["--log-format", "json"]
    with _start(lonely, *options, "--ready-file", str(ready_file)) as process:
        ready = _wait_for(ready_file, process)
        assert run_tidegate("hub", "show", "missing", environment=lonely).code == 1
        assert run_tidegate("hub", "create", "made", environment=lonely).code == 0
        words = ["policy", "create", "feed", "--claim", "Send", "--with-connection-string", "--json"]
        policy = run_tidegate(*words, environment=lonely).json()
        assert isinstance(policy, dict)
        _make_group(ready, "made", "reports")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    entries = [json.loads(line) for line in err.decode().splitlines()]
    messages = [str(entry["message"]) for entry in entries]
    (started,) = (entry for entry in entries if "serves" in str(entry["message"]))
    assert (started["amqp"], started["data_dir"]) == (ready["amqp"], ready["data_dir"])
    assert any("refused" in message and "missing" in message for message in messages)
    assert messages[-1] == "the service has stopped"
    changes = [entry["audit"] for entry in entries if "audit" in entry]
    assert [(change["action"], change["target"], change["door"]) for change in changes] == [
        ("createEventHub", "made", "amqp"),
        ("createPolicy", "policies/feed", "amqp"),
        ("createConsumerGroup", "made/consumergroups/reports", "http"),
    ]
    assert {change["policy"] for change in changes} == {"RootManageSharedAccessKey"}
    assert out == b""
    for text in (str(ready["connection_string"]), str(policy["primary_connection_string"])):
        key = ConnectionString.parse(text).shared_access_key
        assert key is not None
        assert key not in err.decode()


def _make_group(ready: dict[str, object], hub: str, name: str) -> None:
    """By HTTP, as the root."""
    root = ConnectionString.parse(str(ready["connection_string"]))
    assert root.shared_access_key_name is not None
    assert root.shared_access_key is not None
    token = make_sas_token(
        audience="sb://127.0.0.1/",
        key_name=root.shared_access_key_name,
        key=root.shared_access_key,
        expiry=2**31,
    )
    asked = urllib.request.Request(
        f"http://{ready['http']}/api/v1/event-hubs/{hub}/consumer-groups",
        json.dumps({"name": name}).encode(),
        {"Authorization": token, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 201


def _ask(http: str, method: str, path: str, cookie: str | None = None) -> tuple[int, str | None]:
    """Status and cookie of an answer; redirects are not followed."""
    with closing(HTTPConnection(http, timeout=60)) as connection:
        connection.request(method, path, headers={} if cookie is None else {"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        given = answer.getheader("set-cookie")
        return answer.status, None if given is None else given.partition(";")[0]
