"""A Java home and a Spark home whose processes start quickly: for test runs, which start hundreds of them.

The Java home's ``bin/java`` is a script in front of this machine's Java: it lets the JIT compile once and
lightly, and gives Spark's JVMs an archive of the classes that Spark loads, so that each start maps them
instead of reading and verifying 20,000 of them. CPU from start to the third micro-batch: 25.7 s with Java's
own settings, 13.9 s without the archive, 6.8 s with it. What a test or a pipeline sets comes behind, and so
wins.

The Spark home is pip's pyspark, except that ``python/lib/pyspark.zip``, whose modules each Python process of
Spark compiles again, is a folder of that name with the modules that pip has compiled.

    python -m tests.support.quick_spark    makes both once per Java and Spark (half a minute), as `make test`
    use_quick_spark()                      for this process and its children, where they have been made
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_BUILD: Final = Path(__file__).parents[2] / "build" / "spark"
_FORMAT: Final = 3
_READY: Final = "ready"
_WARM_UP_S_MAX: Final = 600.0


def use_quick_spark() -> None:
    """Set ``JAVA_HOME`` and ``SPARK_HOME`` where these homes exist and the user has chosen neither."""
    java = _real_java()
    if java is not None and not {"JAVA_HOME", "SPARK_HOME"} & os.environ.keys():
        folder = _folder_for(java)
        if (folder / _READY).exists():
            os.environ.update(_environment(folder))


def make_quick_spark() -> Path | None:
    """Make the homes unless they are there; None: no Java or no Spark. Another process may do so at once."""
    java = _real_java()
    if java is None:
        return None
    folder = _folder_for(java)
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _READY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, java)
    return folder


def _make(folder: Path, java: Path) -> None:
    archive = folder / "spark.jsa"
    _write_spark_home(folder / "spark")
    _write_java_home(folder / "java", java, f"-XX:ArchiveClassesAtExit={archive}")
    with (folder / "log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "tests.support.quick_spark_classes"],
            env=os.environ | _environment(folder),
            cwd=_BUILD.parents[1],
            stdout=log,
            stderr=log,
            timeout=_WARM_UP_S_MAX,
            check=False,
        )
    options = f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable" if archive.exists() else ""
    _write_java(folder / "java", java, options)
    (folder / _READY).touch()


def _environment(folder: Path) -> dict[str, str]:
    return {"JAVA_HOME": str(folder / "java"), "SPARK_HOME": str(folder / "spark")}


def _write_java_home(home: Path, java: Path, spark_options: str) -> None:
    """Everything of the real home, but ``bin/java``."""
    (home / "bin").mkdir(parents=True)
    _link_all(java.parent.parent, home, "bin")
    _link_all(java.parent, home / "bin", "java")
    _write_java(home, java, spark_options)


def _write_java(home: Path, java: Path, spark_options: str) -> None:
    """spark_options: for Spark's own JVMs."""
    script = home / "bin" / "java"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-XX:+Use*GC*) collector= ;; *) collector=-XX:+UseSerialGC ;; esac\n'
        f'case "$*" in *org.apache.spark.deploy.*|*CoarseGrainedExecutorBackend*)\n'
        f"    spark={shlex.quote(spark_options)} ;; *) spark= ;; esac\n"
        f'exec {shlex.quote(str(java))} -XX:TieredStopAtLevel=1 $collector $spark "$@"\n'
    )
    script.chmod(0o755)


def _write_spark_home(home: Path) -> None:
    """Spark puts ``python/lib/*.zip`` on its Python's path; Python accepts a folder in a zip's place."""
    pyspark = pyspark_home()
    modules = home / "python" / "lib"
    for archive in (pyspark / "python" / "lib").glob("*.zip"):
        package = archive.name.split("-")[0].removesuffix(".zip")
        (modules / archive.name).mkdir(parents=True)
        (modules / archive.name / package).symlink_to(pyspark.parent / package)
    _link_all(pyspark, home, "python")


def _link_all(source: Path, target: Path, left_out: str) -> None:
    for entry in source.iterdir():
        if entry.name != left_out:
            (target / entry.name).symlink_to(entry)


def pyspark_home() -> Path:
    """Where pip has put Spark."""
    specification = importlib.util.find_spec("pyspark")
    assert specification is not None
    assert specification.origin is not None
    return Path(specification.origin).parent


def _folder_for(java: Path) -> Path:
    """Named after what the archive holds for: this Java, these jars at this place."""
    jars = pyspark_home() / "jars"
    facts = [_FORMAT, java, java.stat().st_mtime_ns, jars, *sorted(entry.name for entry in jars.iterdir())]
    return _BUILD / hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _real_java() -> Path | None:
    if importlib.util.find_spec("pyspark") is None:
        return None
    on_path = shutil.which("java")
    java = None if on_path is None else Path(on_path).resolve()
    return java if java is not None and java.parent.name == "bin" else None


if __name__ == "__main__":
    made = make_quick_spark()
    print(
        "No system Java: Spark's tests start slowly." if made is None else f"Java and Spark for tests: {made}"
    )
