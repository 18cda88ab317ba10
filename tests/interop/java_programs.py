"""How the Java programs here are built, and whom they trust."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop.suites.suite import ToolMissingError

JAVA_5: Final = Path(__file__).parent / "java"
JAVA_3: Final = Path(__file__).parent / "java3"
"""The SDK before: it needs other versions of the same libraries."""
SOURCES: Final = Path("src", "main", "java")
QUICK_START: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dfile.encoding=UTF-8",
    "-Dstdout.encoding=UTF-8",
)
"""For programs that live for seconds."""

_QUICK_TOOL: Final = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
"""The same for the JDK's tools: 7.0 → 4.5 s of CPU per build."""
_BUILD_S_MAX: Final = 240.0
_TOOLS: Final = ("java", "javac", "keytool", "mvn")


def build(project: Path, sources: Sequence[Path], folder: Path) -> str:
    """The class path of ``sources``, compiled into ``folder`` with what the project's pom.xml names.

    The pom pins versions. Maven compares every file that it fetches with the repository's checksum, and with
    ``-C`` refuses what differs. Raises ToolMissingError where a tool or the way to the repository is missing.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise ToolMissingError(f"not on PATH: {', '.join(missing)}")
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / "class-path"
    # The SDK first, and apart: a machine without a way to it is skipped, a program that is wrong is not.
    command = ["mvn", "-q", "-B", "-C", "-f", str(project / "pom.xml"), "dependency:build-classpath"]
    fetched = subprocess.run(
        [*command, f"-Dmdep.outputFile={listed}"], capture_output=True, timeout=_BUILD_S_MAX
    )
    if fetched.returncode != 0:
        raise ToolMissingError(f"Maven cannot fetch the SDK: {fetched.stdout.decode()[-500:]}")
    path = listed.read_text().strip()
    classes = folder / "classes"
    shutil.rmtree(classes, ignore_errors=True)
    subprocess.run(
        ["javac", *_QUICK_TOOL, "-encoding", "UTF-8", "-cp", path, "-d", str(classes), *map(str, sources)],
        check=True,
        timeout=_BUILD_S_MAX,
    )
    return f"{path}:{classes}"


def sources_of(project: Path, *names: str) -> list[Path]:
    """The project's sources of these names; none means all."""
    folder = project / SOURCES
    return [folder / f"{name}.java" for name in names] or sorted(folder.glob("*.java"))


def trusting(ca_file: str, store: Path) -> list[str]:
    """Java's options for a trust store with this certificate authority alone, made anew at ``store``."""
    store.unlink(missing_ok=True)
    password = "not a secret"
    command = ["keytool", *_QUICK_TOOL, "-importcert", "-noprompt", "-alias", "ca", "-file", ca_file]
    command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", password]
    subprocess.run(command, check=True, capture_output=True, timeout=_BUILD_S_MAX)
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"]
