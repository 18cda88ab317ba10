"""Azure's Python SDK: its own live tests, unmodified, from the source archives of its releases.

They run in a pytest of their own, with the interpreter and the pinned packages of ``.venv``; the release's
own packages are put in front. What they need of Azure is replaced from outside by
``tests/interop/python/instead_of_azure.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.suites.programs import run_program
from tests.interop.suites.service import BUILD, SuiteService
from tests.interop.suites.suite import Case, Suite, ToolMissingError, Transport

_PLUGIN: Final = Path(__file__).parents[1] / "python" / "instead_of_azure.py"
_CASE_S_MAX: Final = 480
"""The slowest live tests sleep for 250 s."""
_FETCH_S_MAX: Final = 300
_PROCESSES: Final = 12
"""Live tests mostly sleep."""


@dataclass(frozen=True, slots=True)
class Release:
    """One file of the registry: a requirement and the file's SHA-256."""

    requirement: str
    sha256: str

    @property
    def line(self) -> str:
        """For a requirements file."""
        return f"{self.requirement} --hash=sha256:{self.sha256}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTests(Suite):
    """The live tests of one release."""

    archives: tuple[Release, ...]
    """Source archives that hold tests."""
    folders: tuple[str, ...]
    """Beneath the archives: where the tests are that need a service."""
    packages: tuple[Release, ...]
    """Wheels: what is tested."""

    def prepare(self) -> None:
        target = BUILD / self.name
        stamp, wanted = target / "fetched", "".join(each.line for each in self.archives + self.packages)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        _pip(target, "download", self.archives, "--no-binary", ":all:", "--dest", str(target))
        for archive in target.glob("*.tar.gz"):
            shutil.unpack_archive(archive, target, filter="data")
        for archive in target.glob("*.zip"):
            shutil.unpack_archive(archive, target)
        into = ("--target", str(target / "packages"))
        _pip(target, "install", self.packages, "--only-binary", ":all:", *into)
        stamp.write_text(wanted)

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        target = BUILD / self.name
        (target / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
        path = [str(target / "packages"), str(_PLUGIN.parent)]
        command = [sys.executable, "-P", "-m", "pytest", "-c", "pytest.ini", "--rootdir", str(target)]
        command += ["-p", _PLUGIN.stem, "-p", "no:tidegate", "-p", "no:cacheprovider", "-qq"]
        command += [
            f"--timeout={_CASE_S_MAX}",
            "-n",
            str(min(_PROCESSES, len(cases) or _PROCESSES)),
            "--dist",
            "worksteal",
        ]
        yield from run_program(
            [*command, *(cases or self.folders)],
            service,
            transport,
            environment={
                "PYTHONPATH": os.pathsep.join(path),
                "TIDEGATE_AMQPS_PORT": str(service.port_for(Transport.TLS)),
            },
            is_azurite_used=True,
            cwd=target,
            case_s_max=_CASE_S_MAX + 60,
        )


def _pip(folder: Path, command: str, releases: Sequence[Release], *options: str) -> None:
    """Run pip on ``releases``, which must have the checksums that they are pinned to."""
    requirements = folder / f"{command}.txt"
    requirements.write_text("".join(release.line for release in releases))
    words = [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", "--require-hashes", *options]
    done = subprocess.run([*words, "-r", str(requirements)], capture_output=True, timeout=_FETCH_S_MAX)
    if done.returncode != 0:
        raise ToolMissingError(f"pip could not fetch it: {done.stderr.decode()[-1000:]}")


_EVENT_HUB_FOLDERS: Final = ("livetest", "pyamqp_tests/synctests", "pyamqp_tests/asynctests")
"""Beneath the tests of azure-eventhub: those that need a service."""
_CURRENT_WHEEL: Final = Release(
    "azure-eventhub==5.15.1", "ebe1379d228632d12892f0e2d480e0c13a234c384249b0c2c0fe862cd58b3e48"
)
_STORE_WHEELS: Final = (
    Release(
        "azure-eventhub-checkpointstoreblob==1.2.0",
        "ea570a5b6ab8d89d5b40b7bc66285662d85ac3f239feb2b60afd0597b3ed6de7",
    ),
    Release(
        "azure-eventhub-checkpointstoreblob-aio==1.2.0",
        "c59d76c1b6f92b7781b823bb4c3254b099b9f6313bb9cddd432a1c2241b446f0",
    ),
)

SUITES: Final = (
    LiveTests(
        name="python-5.15",
        sdk="azure-eventhub",
        version="5.15.1",
        transports=(Transport.TLS, Transport.WEBSOCKET),
        archives=(
            Release(
                "azure-eventhub==5.15.1", "201de7b6e10b7517c594e529aa7d21c6887ac2a4757fc4850c991a3f640a02fb"
            ),
        ),
        folders=tuple(f"azure_eventhub-5.15.1/tests/{folder}" for folder in _EVENT_HUB_FOLDERS),
        packages=(_CURRENT_WHEEL, *_STORE_WHEELS),
    ),
    # The first release that speaks AMQP by itself, and the oldest whose archive holds all of its tests.
    LiveTests(
        name="python-5.11",
        sdk="azure-eventhub",
        version="5.11.0",
        transports=(Transport.TLS,),
        archives=(
            Release(
                "azure-eventhub==5.11.0", "81f8fdd3e43c4564fe8ca3c3dc3ab53e00106a2d566d3b40fe7c3369fda83a1b"
            ),
        ),
        folders=tuple(f"azure-eventhub-5.11.0/tests/{folder}" for folder in _EVENT_HUB_FOLDERS),
        packages=(
            Release(
                "azure-eventhub==5.11.0", "09e988751858e62c51caec698b4e69da14e273615a2f688b57c6095ef2d34bf8"
            ),
            *_STORE_WHEELS,
        ),
    ),
    LiveTests(
        name="python-checkpoints",
        sdk="azure-eventhub-checkpointstoreblob, -aio",
        version="1.2.0",
        transports=(Transport.TLS,),
        archives=(
            Release(
                "azure-eventhub-checkpointstoreblob==1.2.0",
                "ff8d80cbf401606c4e501c54110d898b02e3eac8c73358eb63c946a3ef3b6c20",
            ),
            Release(
                "azure-eventhub-checkpointstoreblob-aio==1.2.0",
                "d61d5e425c1a59bbe042ce287de072386e73a3b19ea21f8a7ac04d2a54c7c12b",
            ),
        ),
        folders=(
            "azure_eventhub_checkpointstoreblob-1.2.0/tests",
            "azure_eventhub_checkpointstoreblob_aio-1.2.0/tests",
        ),
        packages=(_CURRENT_WHEEL, *_STORE_WHEELS),
    ),
)
