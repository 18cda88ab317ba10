"""Destinations: what a name and a crash may find in them, and what they say when they fail."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tidegate.capture import destination as destination_module
from tidegate.capture.destination import (
    CaptureDestinationError,
    Destination,
    DirectoryDestination,
    FsspecDestination,
    Spool,
    open_destination,
)
from tidegate.model.capture_destination import CaptureDestinations


def _publish(destination: Destination, name: str, data: bytes, token: str = "t-1") -> None:
    spool = Spool(destination.spool(token))
    spool.write(data[:2])
    spool.finish(data[2:])
    destination.publish(spool.path, name)


@pytest.mark.parametrize("is_url", [False, True])
def test_a_directory_shows_whole_files_alone(tmp_path: Path, is_url: bool) -> None:
    """A file that is being written is not below the names; a second one of its name replaces it."""
    root = tmp_path / "not" / "there yet"
    destination = open_destination(root.as_uri() if is_url else str(root), spool_directory=tmp_path)
    assert not destination.exists("a/b/c.avro")
    spool = Spool(destination.spool("t-1"))
    spool.write(b"first")
    assert list(root.rglob("*.avro")) == []
    spool.finish(b"")
    destination.publish(spool.path, "a/b/c.avro")
    _publish(destination, "a/b/c.avro", b"second", token="t-2")
    assert (root / "a/b/c.avro").read_bytes() == b"second"
    assert destination.exists("a/b/c.avro")
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["c.avro"]


def test_what_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    """Captured events are not for every user of the machine, whatever the umask, and the mode of a spool."""
    root = tmp_path / "not" / "there"
    destination = DirectoryDestination(root)
    earlier = os.umask(0)
    try:
        spool = destination.spool("t-1")
        spool.write_bytes(b"of an earlier version")
        _publish(destination, "a/b/c.avro", b"data")
    finally:
        os.umask(earlier)
    made = [root.parent, root, *root.rglob("*")]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in made} == {
        "not": 0o700,
        "there": 0o700,
        ".tidegate-capture": 0o700,
        "a": 0o700,
        "b": 0o700,
        "c.avro": 0o600,
    }


def test_a_power_loss_takes_no_directory_of_a_published_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file counts as captured once it is published: so each directory on the way to it is synced by then,
    also where its making was not this attempt's.
    """
    synced: list[Path] = []
    monkeypatch.setattr(destination_module, "sync_directory", synced.append)
    root = tmp_path / "not" / "there"
    destination = DirectoryDestination(root)
    _publish(destination, "a/b/c.avro", b"first")
    assert {tmp_path, tmp_path / "not", root, root / "a", root / "a/b"} <= set(synced)
    (root / "a/d").mkdir()  # left by an attempt that failed
    synced.clear()
    _publish(destination, "a/d/e.avro", b"second")
    assert synced == [root / "a/d", root / "a", root]


def test_what_a_killed_service_left_is_removed(tmp_path: Path) -> None:
    """Only what one partition left: another's file may be in the making."""
    destination = DirectoryDestination(tmp_path)
    for token in ("hub-1-a", "hub-1-b", "hub-10-a"):
        destination.spool(token).write_bytes(b"left")
    destination.discard("hub-1-")
    assert [path.name for path in (tmp_path / ".tidegate-capture").iterdir()] == ["hub-10-a.tmp"]


@pytest.mark.parametrize("is_in_steps", [False, True])
def test_fsspec_replaces_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_steps: bool) -> None:
    """In one upload, or (as on SFTP) beside its place and renamed; the spool is gone afterwards."""
    if is_in_steps:
        monkeypatch.setattr(destination_module, "_IN_STEPS", frozenset({"memory"}))
    root = f"/bucket-{is_in_steps}/folder"
    destination = FsspecDestination(f"memory:/{root}", spool_directory=tmp_path / "spool")
    assert not destination.exists("a/b.avro")
    _publish(destination, "a/b.avro", b"first")
    _publish(destination, "a/b.avro", b"second")
    assert destination.exists("a/b.avro")
    files = MemoryFileSystem()
    assert files.cat_file(f"{root}/a/b.avro") == b"second"
    assert files.find(root) == [f"{root}/a/b.avro"]
    assert list((tmp_path / "spool").iterdir()) == []


def test_failures_name_the_place_and_the_reason(tmp_path: Path) -> None:
    """Whatever a library raises is one kind of error, which is worth a retry."""
    (tmp_path / "file").write_text("")
    destination = DirectoryDestination(tmp_path / "file")
    with pytest.raises(CaptureDestinationError, match=f"{tmp_path}/file.*[Nn]ot a directory") as caught:
        destination.spool("t")
    assert caught.value.is_transient
    with pytest.raises(CaptureDestinationError, match=r"nosuch.*Install the missing package"):
        open_destination("nosuch://a/b", spool_directory=tmp_path)


def test_a_destination_outside_is_not_opened(tmp_path: Path) -> None:
    """Settings may come from a catalog, and a directory within may be a link to one outside by now."""
    allowed = CaptureDestinations((str(tmp_path / "allowed"), "memory://bucket/folder"))
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path)
    for within in (str(tmp_path / "allowed" / "hub"), "memory://bucket/folder/x"):
        open_destination(within, spool_directory=tmp_path, allowed=allowed)
    for outside in (
        str(tmp_path),
        f"local://{tmp_path}",
        str(tmp_path / "allowed" / "link"),
        "memory://bucket",
    ):
        with pytest.raises(CaptureDestinationError, match="not allowed by this service") as caught:
            open_destination(outside, spool_directory=tmp_path, allowed=allowed)
        assert "--capture-destination" in str(caught.value)
    with pytest.raises(CaptureDestinationError, match="URL within another"):
        open_destination(f"simplecache::file://{tmp_path}", spool_directory=tmp_path)


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "fd00:ec2::254", "168.63.129.16"])
def test_a_name_that_resolves_to_metadata_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Whatever is allowed: a name in DNS may mean another machine by now."""

    def lookup(host: str, port: object) -> list[tuple[object, ...]]:
        return [(None, None, 6, "", (address if host == "files.example" else "192.0.2.1", 0))]

    monkeypatch.setattr("tidegate.capture.destination.socket.getaddrinfo", lookup)
    allowed = CaptureDestinations(("sftp://files.example", "abfs://c@files.example"))
    for url in ("sftp://files.example/x", "abfs://c@files.example/x"):
        with pytest.raises(CaptureDestinationError, match="link-local or cloud metadata addresses"):
            open_destination(url, spool_directory=tmp_path, allowed=allowed)


def test_a_spool_that_was_given_up_is_gone(tmp_path: Path) -> None:
    """Also when it was finished, removed or closed before."""
    spool = Spool(tmp_path / "t.tmp")
    spool.write(b"x")
    spool.discard()
    spool.discard()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CaptureDestinationError):
        spool.write(b"y")
