"""Where Capture may write: what is below a prefix, in every form that a destination can be written in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.model.capture_destination import CaptureDestinations, CapturePlace
from tidegate.model.errors import InvalidArgumentError

ARCHIVE = "abfs://archive@account.dfs.core.windows.net/events"


def _is_allowed(destination: str, *prefixes: str) -> bool:
    try:
        CaptureDestinations(prefixes).check(destination, real_path=os.path.realpath)
    except InvalidArgumentError:
        return False
    return True


@pytest.mark.parametrize(
    "destination",
    [
        "{root}",
        "{root}/",
        "{root}/hub",
        "{root}/a/../b",
        "file://{root}/hub",
        "FILE://{root}/hub%20one",
        "local://{root}/hub",
        "{root}/a::b",
    ],
)
def test_directories_within_are_allowed(destination: str, tmp_path: Path) -> None:
    """Protects who names a directory in another way than its operator did."""
    root = str(tmp_path / "allowed")
    for prefix in (root, f"{root}/", f"file://{root}"):
        assert _is_allowed(destination.format(root=root), "/elsewhere", prefix)


@pytest.mark.parametrize(
    "destination",
    [
        "/etc/cron.d",
        "{root}-beside",
        "{root}/../beside",
        "{root}/link/hub",
        "{root}/link/../hub",
        "file://{root}/../beside",
        "file://{root}/%2e%2e/beside",
        "file://localhost{root}",
        "local:///etc",
        "LOCAL:///etc",
        "simplecache::file://{root}",
        "simplecache::http://{root}",
        "zip://x.zip::file://{root}/a",
        "{root}/zip::http://host/x",
        "s3://bucket{root}",
        "{root}/\0",
    ],
)
def test_directories_outside_are_refused(destination: str, tmp_path: Path) -> None:
    """Protects the machine's files from whoever may manage an event hub."""
    root = tmp_path / "allowed"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    assert not _is_allowed(destination.format(root=root), str(root))


@pytest.mark.parametrize(
    "destination",
    [
        ARCHIVE,
        f"{ARCHIVE}/",
        f"{ARCHIVE}/hub/of/mine",
        ARCHIVE.replace("abfs:", "ABFS:").replace("account.dfs", "Account.DFS"),
        f"{ARCHIVE}//",
    ],
)
def test_urls_within_are_allowed(destination: str) -> None:
    """Protects object stores as operators and users write them."""
    assert _is_allowed(destination, "s3://other/folder", ARCHIVE)
    assert _is_allowed(destination, ARCHIVE.removesuffix("/events"))


@pytest.mark.parametrize(
    "destination",
    [
        f"{ARCHIVE}-beside",
        ARCHIVE.replace("archive@", "secrets@"),
        ARCHIVE.replace("account.", "account.evil."),
        ARCHIVE.replace("abfs:", "az:"),
        ARCHIVE.replace("archive@", "archive@account.dfs.core.windows.net@evil.example/"),
        f"{ARCHIVE}/../secrets",
        f"{ARCHIVE}/%2e%2e/secrets",
        f"{ARCHIVE}/x?sig=1",
        f"{ARCHIVE}/x#y",
        f"{ARCHIVE}\\..\\secrets",
        f"{ARCHIVE}/x\n",
        f"simplecache::{ARCHIVE}",
        f"{ARCHIVE}::http://evil.example/",
        f"{ARCHIVE}/[::]x://y",
        f"{ARCHIVE}/[::1]",
        f"{ARCHIVE}//x",
        ARCHIVE.replace("/events", "//events"),
        "abfs://archive/events",
        "/events",
    ],
)
def test_urls_outside_are_refused(destination: str) -> None:
    """Protects other containers and hosts, which the service may have credentials for."""
    assert not _is_allowed(destination, ARCHIVE)


def test_a_prefix_with_a_password_is_refused_without_it() -> None:
    """Protects it from those who are told which destinations are allowed."""
    with pytest.raises(InvalidArgumentError, match=r"capture_destinations.*contains a password") as caught:
        CaptureDestinations(("sftp://user:hunter2@files.example/x",))
    assert "hunter2" not in str(caught.value)


def test_letters_of_a_bucket_count() -> None:
    """Protects what is in another bucket: some stores tell ``Captured`` and ``captured`` apart."""
    assert _is_allowed("memory://Captured/x", "memory://Captured")
    assert not _is_allowed("memory://captured/x", "memory://Captured")


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.0.1:8080",
        "user@169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "00000000000000251.254.169.254",
        "0x0000000000a9fea9fe",
        "0xA9.254.169.0376",
        "169.16689662",
        "[fe80::1]",
        "[fe80::1]:22",
        "[fd00:ec2::254]",
        "[fd00:ec2::23]",
        "[fd20:ce::254]",
        "[fd00:c1::a9fe:a9fe]",
        "[fd00:42::42]",
        "192.0.0.192",
        "100.100.100.200",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[::a9fe:a9fe]",
        "metadata.google.internal",
        "Metadata.Google.Internal.",
        "168.63.129.16",
    ],
)
def test_link_local_and_metadata_hosts_are_refused_whatever_is_allowed(host: str) -> None:
    """Protects the credentials that a cloud gives to its machines, and the machine's own neighbours."""
    with pytest.raises(InvalidArgumentError, match="does not write to link-local or cloud metadata"):
        CapturePlace.parse(f"sftp://{host}/folder")
    with pytest.raises(InvalidArgumentError, match="capture_destinations"):
        CaptureDestinations((f"sftp://{host}/folder",))


@pytest.mark.parametrize(
    "host", ["127.0.0.1:10000", "10.0.0.1", "[::1]:22", "[fd00::1]", "a.example", "bucket"]
)
def test_other_hosts_are_allowed_where_they_are_named(host: str) -> None:
    """Protects emulators on loopback and stores in one's own network."""
    assert _is_allowed(f"sftp://{host}/folder/x", f"sftp://{host}/folder")


def test_the_refusal_says_what_is_allowed_and_which_setting_to_give() -> None:
    """Protects who is refused from guessing."""
    allowed = CaptureDestinations(("/data/capture",))
    with pytest.raises(InvalidArgumentError) as caught:
        allowed.check("/captured", real_path=os.path.realpath)
    assert "'/captured'" in str(caught.value)
    assert "Allowed: /data/capture, and paths below" in str(caught.value)
    assert "--capture-destination" in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "captured", "s3://", "://x", "simplecache::/x", "s3://b/../c"])
def test_a_prefix_that_means_nothing_is_refused_by_its_setting(prefix: str) -> None:
    """Protects operators: a prefix with a slip must not allow everything or nothing without a word."""
    with pytest.raises(InvalidArgumentError, match="The setting capture_destinations"):
        CaptureDestinations((prefix,))
