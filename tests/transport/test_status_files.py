"""Status files of pipelines: whatever a file holds, it is a status or an error that says so."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from tests.console.pipeline_process import status_of

from tidegate.model.errors import InvalidArgumentError
from tidegate.transport.status_files import PipelineFiles


def test_only_its_user_may_read_a_status(tmp_path: Path) -> None:
    """Its error may quote an event; one that an earlier version wrote is closed with the next status."""
    files = PipelineFiles(tmp_path / "state")
    with files.owned("new"):
        files.write(status_of("new", "orders"))
    folder = files.root / "new"
    status = folder / "status.json"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (files.root.parent, files.root, folder)} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (status, folder / "lock")} == {0o600}
    status.chmod(0o644)
    files.write(status_of("new", "orders"))
    assert stat.S_IMODE(status.stat().st_mode) == 0o600


def _changed(**changes: object) -> bytes:
    return json.dumps(status_of("bad", "orders").to_values() | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        _changed(updated_at="2026-11-22T06:00:00"),
        _changed(updated_at=None),
        _changed(process={"host": "", "pid": "\0", "started": ""}),
    ],
    ids=["empty", "a list", "no UTF-8", "deep", "no zone", "no time", "no process number"],
)
def test_a_damaged_file_is_an_error_of_its_own(content: bytes, tmp_path: Path) -> None:
    """One that cannot be read as a status names itself, and hides none of the others."""
    files = PipelineFiles(tmp_path)
    files.write(status_of("bad", "orders"))
    files.write(status_of("good", "orders"))
    (files.root / "bad" / "status.json").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"bad/status\.json"):
        files.read("bad")
    assert [status.name for status in files.read_all()] == ["good"]
