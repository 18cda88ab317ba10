"""Azurite for tests: what happens on a machine that lacks it, and that nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.azurite import AzuriteServer, find_azurite, required_azurite
from tests.support.servers import ServerMissingError


def test_a_machine_without_node_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason is in the error: first Node.js, then Azurite."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissingError, match="no node on PATH"):
        find_azurite()
    (tmp_path / "node").touch(mode=0o755)
    with pytest.raises(ServerMissingError, match="azurite-blob is neither"):
        find_azurite(tmp_path)


def test_tests_are_skipped_loudly_but_fail_on_a_build_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A green build has run everything; a user's machine may lack it, and the run says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NOT TESTED ON AZURE BLOB STORAGE"), required_azurite():
        pass
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="make npm"), required_azurite():
        pass


def test_a_server_that_does_not_start_shows_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And it leaves no folder behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    program = tmp_path / "bin" / "azurite-blob"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    program.chmod(0o755)
    (tmp_path / "bin" / "node").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    with pytest.raises(RuntimeError, match="no such option"):
        AzuriteServer().__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
