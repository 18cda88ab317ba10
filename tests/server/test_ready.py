"""Ready file and profile: complete when visible, private, and found where the user's variables say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.server.ready import (
    ReadyInformation,
    profile_path,
    read_profile,
    write_profile,
    write_ready_file,
)

INFORMATION = ReadyInformation(
    amqp="127.0.0.1:5672",
    amqps=None,
    http=None,
    https=None,
    connection_string="Endpoint=sb://127.0.0.1;SharedAccessKeyName=a;SharedAccessKey=secret",
    connection_string_plain=None,
    ca_file=None,
    data_dir="/data",
)


def test_ready_file_round_trip(tmp_path: Path) -> None:
    """What a script reads is what the service wrote; the file holds a key, so it is private."""
    path = tmp_path / "run" / "ready.json"
    write_ready_file(path, INFORMATION)
    assert ReadyInformation.from_json(path.read_text()) == INFORMATION
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["ready.json"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_in_the_way_does_not_get_the_key(tmp_path: Path, kind: str) -> None:
    """Where other users may write, as in /tmp, they could have put a file or a link where it is written."""
    path, theirs = tmp_path / "ready.json", tmp_path / "theirs"
    theirs.touch()
    theirs.chmod(0o666)
    in_the_way = tmp_path / f".ready.json.{os.getpid()}"
    if kind == "link":
        in_the_way.symlink_to(theirs)
    else:
        in_the_way.hardlink_to(theirs)
    write_ready_file(path, INFORMATION)
    assert theirs.read_text() == ""
    assert (path.is_symlink(), path.stat().st_mode & 0o777) == (False, 0o600)


def test_key_is_not_in_the_repr() -> None:
    """Logging the value shows no secret."""
    assert "secret" not in repr(INFORMATION)


def test_profile_is_found_by_the_users_variables(tmp_path: Path) -> None:
    """TIDEGATE_CONFIG_DIR wins over XDG_CONFIG_HOME, which wins over the home directory."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert profile_path(environment) == tmp_path / "xdg" / "tidegate" / "profile.json"
    environment["TIDEGATE_CONFIG_DIR"] = str(tmp_path / "own")
    assert read_profile(environment) is None
    assert write_profile(INFORMATION, environment) == tmp_path / "own" / "profile.json"
    assert read_profile(environment) == INFORMATION


def test_garbled_profile_names_the_file(tmp_path: Path) -> None:
    """A profile of another program is an error that names it, not a crash in JSON."""
    (tmp_path / "profile.json").write_text("[]")
    with pytest.raises(InvalidArgumentError, match=r"profile\.json"):
        read_profile({"TIDEGATE_CONFIG_DIR": str(tmp_path)})
