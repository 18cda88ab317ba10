"""A damaged log, as its operator and its clients meet it: the real commands, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.support import COMMAND, environment_without_service, run_tidegate

pytestmark = pytest.mark.usefixtures("forked_python")


class _Operator:
    """Somebody at a terminal with one data directory."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.environment = environment_without_service(directory / "configuration")
        self._ready = directory / "ready.json"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """A service on the directory, until the block ends."""
        self._ready.unlink(missing_ok=True)
        options = ["--data-dir", str(self.data), "--amqp-port", "0", "--ready-file", str(self._ready)]
        command = [*COMMAND, "serve", *options]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while not self._ready.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0

    def run(self, *words: str, lines: str = "") -> tuple[int, str, str]:
        """Exit code, output and errors of a command."""
        found = run_tidegate(*words, environment=self.environment, input_bytes=lines.encode())
        return found.code, found.out, found.err

    def segment(self) -> Path:
        """The one segment of partition 0."""
        (path,) = self.data.glob("logs/*/0/*.log")
        return path


@pytest.fixture
def operator(tmp_path: Path) -> _Operator:
    """A hub of two partitions with three events in the first, sent one by one, and one in the second."""
    operator = _Operator(tmp_path)
    with operator.serving():
        assert operator.run("hub", "create", "hub", "--partitions", "2")[0] == 0
        for line in ("first", "second", "third"):
            assert operator.run("send", "hub", "--partition", "0", lines=line)[0] == 0
        assert operator.run("send", "hub", "--partition", "1", lines="other")[0] == 0
    return operator


@pytest.mark.slow
def test_a_damaged_partition_is_refused_alone_and_served_after_its_repair(
    operator: _Operator, capfd: pytest.CaptureFixture[str]
) -> None:
    """serve says in one line what to do and serves the other partition; doing that loses the damaged event
    alone, and all is served again."""
    segment = operator.segment()
    segment.write_bytes(segment.read_bytes()[:-5])
    capfd.readouterr()
    with operator.serving():
        code, out, told = operator.run("receive", "hub", "--no-follow", "--body", "--partition", "0")
        assert (code != 0, out) == (True, "")
        assert "tidegate check" in told
        assert str(operator.data) not in told
        assert operator.run("send", "hub", "--partition", "0", lines="refused")[0] != 0
        _, out, _ = operator.run("receive", "hub", "--no-follow", "--body", "--partition", "1")
        assert out.split() == ["other"]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "could not be opened" in line]
    assert f"tidegate check {operator.data}" in line
    assert "--repair" in line
    assert operator.run("check", str(operator.data))[0] == 4
    code, out, _ = operator.run("check", str(operator.data), "--repair", "--json")
    assert code == 0
    (damage,) = json.loads(out)
    assert (damage["lost_from"], damage["lost_until"]) == (2, 3)
    assert Path(damage["set_aside"]).exists()
    with operator.serving():
        assert operator.run("send", "hub", "--partition", "0", lines="fourth")[0] == 0
        for partition, start, expected in (
            ("0", "earliest", ["first", "second", "fourth"]),
            ("0", "1h", ["first", "second", "fourth"]),
            ("1", "earliest", ["other"]),
        ):
            words = ["--no-follow", "--body", "--partition", partition, "--from", start]
            _, out, _ = operator.run("receive", "hub", *words)
            assert out.split() == expected


@pytest.mark.slow
def test_a_reader_of_damaged_events_ends_with_one_clear_error(operator: _Operator) -> None:
    """Damage that is met while serving: the reader is told and ends, the rest is served, senders go on."""
    segment = operator.segment()
    segment.write_bytes(segment.read_bytes().replace(b"second", b"SECOND"))
    with operator.serving():
        code, out, told = operator.run("receive", "hub", "--no-follow", "--body", "--partition", "0")
        assert code != 0
        assert "SECOND" not in out
        assert "tidegate check" in told
        assert str(operator.data) not in told
        assert operator.run("send", "hub", "--partition", "0", lines="fourth")[0] == 0
        _, out, _ = operator.run("receive", "hub", "--no-follow", "--body", "--partition", "1")
        assert out.split() == ["other"]


@pytest.mark.slow
def test_a_damaged_catalog_is_told_with_the_logs(operator: _Operator) -> None:
    """A check finds damage of either file of the control log, files that are missing, and logs that are not
    there; a repair makes it usable again, as far as the files hold it, and never invents any of it."""
    paths = [operator.data / "control.log", operator.data / "control.copy"]
    sound = [path.read_bytes() for path in paths]

    def check(*words: str) -> tuple[int, list[dict[str, object]], str]:
        code, out, told = operator.run("check", str(operator.data), "--json", *words)
        return code, json.loads(out), told

    assert check()[:2] == (0, [])
    # One file: the other has everything.
    paths[0].write_bytes(sound[0][:30] + b"x" + sound[0][31:])
    code, (damage,), told = check()
    assert (code, damage["file"], damage["position"]) == (4, str(paths[0]), 0)
    assert "--repair" in told
    code, (damage,), _ = check("--repair")
    assert (code, Path(str(damage["set_aside"])).exists()) == (0, True)
    assert check()[:2] == (0, [])
    # Both, at their ends: a value is lost, and the command says so.
    for path in paths:
        path.write_bytes(path.read_bytes()[:-1])
    code, damages, told = check()
    assert (code, [damage["file"] for damage in damages]) == (4, [str(path) for path in paths])
    code, _, told = check("--repair")
    assert "may be missing or outdated" in told
    # Nothing is left: a repair changes nothing.
    for path in paths:
        path.write_bytes(b"nothing of it")
    assert check("--repair")[0] == 4
    assert paths[0].read_bytes() == b"nothing of it"
    for path in paths:
        path.unlink()
    code, (damage,), _ = check()
    assert code == 4
    assert "missing" in str(damage["damage"])
    assert not paths[0].exists()
    for path, data in zip(paths, sound, strict=True):
        path.write_bytes(data)
    (log,) = operator.data.glob("logs/*/1")
    log.rename(operator.data / "elsewhere")
    code, (damage,), _ = check()
    assert (code, damage["file"]) == (4, str(log))
    (operator.data / "elsewhere").rename(log)
    assert check()[0] == 0
