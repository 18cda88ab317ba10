"""A Java home whose JVMs start quickly: for test runs, which start dozens of Sparks that live for seconds.

Its ``bin/java`` is a script in front of this machine's Java: it lets the JIT compile once and lightly, and
gives Spark's JVMs an archive of the classes that Spark loads, so that each start maps them instead of reading
and verifying 20,000 of them. CPU from start to the third micro-batch: 25.7 s with Java's own settings, 13.9 s
without the archive, 6.8 s with it. What a test or a pipeline sets comes behind, and so wins.

    python -m tests.support.quick_java    makes it once per Java and Spark (half a minute); `make test` does
    use_quick_java()                      for this process and its children, where it has been made
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_BUILD: Final = Path(__file__).parents[2] / "build" / "java"
_FORMAT: Final = 1
_WARM_UP_S_MAX: Final = 600.0


def use_quick_java() -> None:
    """Set ``JAVA_HOME`` for this process where that home exists and the user has not chosen a Java."""
    found = _real_java()
    if found is not None and "JAVA_HOME" not in os.environ:
        home = _home_of(found)
        if (home / "bin" / "java").exists():
            os.environ["JAVA_HOME"] = str(home)


def make_quick_java() -> Path | None:
    """Make the home unless it is there; None: no Java or no Spark. Another process may do so at once."""
    java = _real_java()
    if java is None:
        return None
    home = _home_of(java)
    if (home / "bin" / "java").exists():
        return home
    _BUILD.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=_BUILD))
    made.chmod(0o755)  # PostgreSQL's user is not the only other one
    archive = made / "spark.jsa"
    _write_home(made, java, f"-XX:ArchiveClassesAtExit={archive}")
    with (made / "log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "tests.support.quick_java_classes"],
            env=os.environ | {"JAVA_HOME": str(made)},
            cwd=_BUILD.parents[1],
            stdout=log,
            stderr=log,
            timeout=_WARM_UP_S_MAX,
            check=False,
        )
    options = (
        f"-XX:SharedArchiveFile={home / archive.name} -Xshare:auto -Xlog:disable" if archive.exists() else ""
    )
    _write_home(made, java, options)
    try:
        made.rename(home)
    except OSError:  # the other process was first
        shutil.rmtree(made)
    return home


def _write_home(home: Path, java: Path, spark_options: str) -> None:
    """Everything of the real home, but ``bin/java``. spark_options: for Spark's own JVMs."""
    real_home = java.parent.parent
    for entry in real_home.iterdir():
        if entry.name != "bin" and not (home / entry.name).is_symlink():
            (home / entry.name).symlink_to(entry)
    (home / "bin").mkdir(exist_ok=True)
    for entry in java.parent.iterdir():
        if entry.name != "java" and not (home / "bin" / entry.name).is_symlink():
            (home / "bin" / entry.name).symlink_to(entry)
    script = home / "bin" / "java"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-XX:+Use*GC*) collector= ;; *) collector=-XX:+UseSerialGC ;; esac\n'
        f'case "$*" in *org.apache.spark.deploy.SparkSubmit*|*CoarseGrainedExecutorBackend*)\n'
        f"    spark={shlex.quote(spark_options)} ;; *) spark= ;; esac\n"
        f'exec {shlex.quote(str(java))} -XX:TieredStopAtLevel=1 $collector $spark "$@"\n'
    )
    script.chmod(0o755)


def _home_of(java: Path) -> Path:
    """Named after what the archive holds for: this Java, these jars at this place."""
    specification = importlib.util.find_spec("pyspark")
    assert specification is not None
    assert specification.origin is not None
    jars = Path(specification.origin).parent / "jars"
    facts = [_FORMAT, java, java.stat().st_mtime_ns, jars, *sorted(entry.name for entry in jars.iterdir())]
    return _BUILD / hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _real_java() -> Path | None:
    if importlib.util.find_spec("pyspark") is None:
        return None
    on_path = shutil.which("java")
    java = None if on_path is None else Path(on_path).resolve()
    return java if java is not None and java.parent.name == "bin" else None


if __name__ == "__main__":
    made_home = make_quick_java()
    print(
        "No system Java: Spark's tests start slowly." if made_home is None else f"Java for tests: {made_home}"
    )
