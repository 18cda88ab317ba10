"""Builds ``dist/``, and tries what is in it: ``make release``.

The wheels are built from the unpacked sdist, so it is complete without a repository. Each trial installs the
wheel for any machine with no extra into one empty environment, and the wheel for this one with ``service``
into another: a client of the first exchanges events with a service of the second. pip resolves both, once to
the newest versions that pyproject.toml allows, and once to the oldest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from packaging.utils import canonicalize_name

from tools.floors import PROJECT_FILE, ROOT, lowest_of, read_project

_DIST: Final = ROOT / "dist"
_START_TIMEOUT_S: Final = 60.0
_PROGRAM: Final = """
import asyncio, sys
from tidegate import EventData, EventHubConsumer, EventHubProducer, EventPosition

async def main(string):
    async with EventHubProducer.from_connection_string(string, "released") as producer:
        await producer.send([EventData(b"from Python")], partition_id="1")
    async with (
        EventHubConsumer.from_connection_string(string, "released") as consumer,
        await consumer.open_receiver("1", EventPosition.earliest()) as receiver,
    ):
        async for event in receiver:
            return print(event.body.decode())

asyncio.run(main(sys.argv[1]))
"""
_REFUSED: Final = {
    "service": ("serve --ephemeral", "check ."),
    "sql": ("dlq list --database sqlite:////tmp/none.db",),
    "spark": ("pipeline run absent.py:pipeline",),
}
"""Extra → commands that need it."""


def main() -> None:
    """Build and try; an error ends the process with its command's output."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--twine", metavar="PROGRAM", help="checks the metadata as the package index would")
    parser.add_argument("--only-build", action="store_true", help="install and try nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-release-") as scratch:
        plain, compiled = build(_DIST, Path(scratch))
        if given.twine:
            say(run(given.twine, "check", "--strict", *sorted(map(str, _DIST.iterdir()))))
        if not given.only_build:
            for which, constraints in (("newest", ""), ("oldest", oldest())):
                say(f"With the {which} versions that pyproject.toml allows:")
                attempt(plain, compiled, Path(scratch, which), constraints)
    say(f"Built: {', '.join(sorted(path.name for path in _DIST.iterdir()))}.")


# --- building ---------------------------------------------------------------------------------------------


def build(target: Path, scratch: Path) -> tuple[Path, Path]:
    """Make sdist and wheels in ``target``; the wheel for any machine, and that for this one.

    They are the same where there is no compiler.
    """
    shutil.rmtree(target, ignore_errors=True)
    (archive,) = _hatchling("sdist", ROOT, target)
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    source = scratch / archive.name.removesuffix(".tar.gz")
    (plain,) = _hatchling("wheel", source, target, TIDEGATE_WITHOUT_EXTENSION="1")
    return plain, next(iter(_hatchling("wheel", source, target)), plain)


def _hatchling(kind: str, source: Path, target: Path, **environment: str) -> list[Path]:
    """Build, with what the virtual environment has; the new files."""
    before = set(target.glob("*"))
    words = (sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target))
    run(*words, directory=source, environment={**os.environ, **environment})
    return sorted(set(target.glob("*")) - before)


def oldest() -> str:
    """pip's constraints: each declared dependency at its lower bound."""
    required = read_project(PROJECT_FILE.read_text(encoding="utf-8")).required
    return "".join(f"{each.name}=={lowest}\n" for each in required if (lowest := lowest_of(each)) is not None)


# --- trying -----------------------------------------------------------------------------------------------


class Environment:
    """A virtual environment with one wheel in it, and commands that know nothing of this machine's user."""

    def __init__(self, place: Path, wheel: Path, extras: str, constraints: str) -> None:
        self.place, self._wheel, self._constraints = place, wheel, constraints
        run(sys.executable, "-m", "venv", str(place))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self.variables = kept | {"TIDEGATE_CONFIG_DIR": str(place / "config")}
        self.variables.pop("PYTHONPATH", None)
        self.install(extras)

    def install(self, extras: str) -> None:
        """Install the wheel with these extras, comma-separated, and let pip check what is installed."""
        path = self.place / "constraints.txt"
        path.write_text(self._constraints)
        wanted = f"{self._wheel}[{extras}]" if extras else str(self._wheel)
        self.run("python", "-m", "pip", "install", "--quiet", "-c", str(path), wanted)
        self.run("python", "-m", "pip", "check")

    def distributions(self) -> set[str]:
        """The normalised names of what is installed."""
        listed = self.run("python", "-m", "pip", "list", "--format=json")
        return {canonicalize_name(each["name"]) for each in json.loads(listed)}

    def run(self, program: str, *words: str, text: str = "") -> str:
        """Run a program of the environment; what it wrote."""
        command = (str(self.place / "bin" / program), *words)
        return run(*command, directory=self.place, environment=self.variables, text=text)

    def refuses(self, extra: str, *words: str) -> None:
        """See that ``tidegate`` with these words names an extra that is missing, in a line."""
        found = subprocess.run(
            [self.place / "bin" / "tidegate", *words], env=self.variables, capture_output=True, text=True
        )
        step = f'pip install "tidegate[{extra}] @ {self._wheel.as_uri()}"'
        is_refused = found.returncode == 1 and step in found.stderr and "Traceback" not in found.stderr
        expect(is_refused, f"tidegate {' '.join(words)} ends with {found.returncode}: {found.stderr}")


def attempt(plain: Path, compiled: Path, place: Path, constraints: str) -> None:
    """Install both wheels, and let client and service exchange events. Raises SystemExit."""
    place.mkdir()
    client = Environment(place / "client", plain, "", constraints)
    version = plain.name.split("-")[1]
    shown = json.loads(client.run("tidegate", "version", "--json"))["tidegate"]
    expect(shown == version, f"the wheel of {version} says {shown}")
    client.run("tidegate", "--help")
    extras = read_project(PROJECT_FILE.read_text(encoding="utf-8")).extras
    foreign = {canonicalize_name(each.name) for extra in extras.values() for each in extra}
    foreign -= {canonicalize_name(each.name) for each in extras[""]}
    installed = client.distributions()
    expect(not installed & foreign, f"the base installs {installed & foreign}")
    for extra, commands in _REFUSED.items():
        for command in commands:
            client.refuses(extra, *command.split())
    say(f"  client: {len(installed) - 2} packages ({', '.join(sorted(installed - {'pip', 'setuptools'}))})")

    server = Environment(place / "server", compiled, "service", constraints)
    if compiled != plain:
        server.run(
            "python", "-c", "from tidegate.wire.event_codec import usual_events as found; assert found"
        )
    with serving(server) as ready:
        exchange(client, ready["connection_string_plain"])
        with urlopen(f"http://{ready['http']}/ready", timeout=30) as answer:
            expect(answer.status == 200, "/ready")
    say(f"  service: {len(server.distributions()) - 2} packages; events went both ways")

    client.install("sql")
    url = f"sqlite:///{place}/released.db"
    client.run("python", "-c", f"from tidegate import Database; Database.open({url!r}).close()")
    client.run("tidegate", "dlq", "list", "--database", url)
    say("  sql: a database was made and read")


@contextmanager
def serving(server: Environment) -> Iterator[Mapping[str, Any]]:
    """A service of the environment while the block runs; what it says of itself. Raises SystemExit."""
    file = server.place / "ready.json"
    words = ("serve", "--ephemeral", "--ready-file", str(file))
    with subprocess.Popen(
        [server.place / "bin" / "tidegate", *words], env=server.variables, stdout=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not file.exists():
                expect(process.poll() is None and time.monotonic() < deadline, "the service does not start")
                time.sleep(0.05)
            yield json.loads(file.read_text())
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(_START_TIMEOUT_S)
    expect(code == 0, f"the service ended with {code}")


def exchange(client: Environment, connection_string: str) -> None:
    """Send and receive with the command line and in Python, as someone who installed the client does."""
    client.variables["TIDEGATE_CONNECTION_STRING"] = connection_string
    client.run("tidegate", "hub", "create", "released", "--partitions", "2")
    client.run("tidegate", "send", "released", "--partition", "0", text='{"device": "a1"}\n')
    received = client.run("tidegate", "receive", "released", "--count", "1", "--body")
    expect(received == '{"device": "a1"}\n', f"received {received}")
    program = client.place / "program.py"
    program.write_text(_PROGRAM)
    found = client.run("python", str(program), connection_string)
    expect(found == "from Python\n", f"the program printed {found}")


# --- helpers ----------------------------------------------------------------------------------------------


def run(
    *words: str, directory: Path = ROOT, environment: Mapping[str, str] | None = None, text: str = ""
) -> str:
    """Run a command; its standard output. Raises SystemExit with all of its output if it fails."""
    found = subprocess.run(
        words, cwd=directory, env=environment, input=text, capture_output=True, text=True, check=False
    )
    expect(found.returncode == 0, f"{' '.join(words)} failed:\n{found.stdout}{found.stderr}")
    return found.stdout


def expect(is_so: bool, otherwise: str) -> None:
    """End with a message unless it is so."""
    if not is_so:
        raise SystemExit(f"release: {otherwise}")


def say(text: str) -> None:
    """Show progress."""
    print(text.rstrip(), flush=True)


if __name__ == "__main__":
    main()
