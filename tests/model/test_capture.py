"""Capture's settings: ranges, name formats, and that they survive as plain values."""

from __future__ import annotations

import json

import pytest

from tidegate.model.capture import NAME_FIELDS, NAME_FORMAT_DEFAULT, CaptureSettings
from tidegate.model.errors import InvalidArgumentError


def test_defaults_are_those_of_the_portal() -> None:
    """300 MB, 5 minutes, empty files written, the documented name format."""
    settings = CaptureSettings("/captured")
    assert (settings.size_window_bytes, settings.time_window_s) == (300 * 1024 * 1024, 300)
    assert not settings.is_empty_skipped
    assert settings.is_enabled
    assert settings.name_format == (
        "{Namespace}/{EventHub}/{PartitionId}/{Year}/{Month}/{Day}/{Hour}/{Minute}/{Second}"
    )


def test_settings_survive_json() -> None:
    """The catalog and the HTTP API carry them as JSON."""
    settings = CaptureSettings(
        "abfs://data@account.dfs.core.windows.net/captured",
        is_enabled=False,
        size_window_bytes=10_485_760,
        time_window_s=60,
        is_empty_skipped=True,
        name_format="{EventHub}/{Namespace}-{PartitionId}/d={Year}{Month}{Day}/{Hour}{Minute}{Second}",
    )
    assert CaptureSettings.from_mapping(json.loads(json.dumps(settings.to_mapping()))) == settings
    assert CaptureSettings.from_mapping({"destination": "/captured"}) == CaptureSettings("/captured")


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("size_window_bytes", 10_485_760, 524_288_000), ("time_window_s", 60, 900)],
)
def test_windows_have_the_documented_ranges(name: str, low: int, high: int) -> None:
    """10 to 500 MB and 60 to 900 seconds; both ends are allowed, nothing beyond them is."""
    for value in (low, high):
        assert getattr(CaptureSettings.from_mapping({"destination": "/x", name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidArgumentError, match=name):
            CaptureSettings.from_mapping({"destination": "/x", name: value})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"destination": 1},
        {"destination": "/x", "is_enabled": 1},
        {"destination": "/x", "size_window_bytes": "10485760"},
        {"destination": "/x", "time_window_s": 60.0},
        {"destination": "/x", "time_window_s": True},
        {"destination": "/x", "interval": 60},
    ],
)
def test_plain_values_are_checked(values: dict[str, object]) -> None:
    """A mapping from outside is an InvalidArgumentError, never a TypeError."""
    with pytest.raises(InvalidArgumentError):
        CaptureSettings.from_mapping(values)


@pytest.mark.parametrize("field", NAME_FIELDS)
def test_each_field_of_the_name_is_mandatory(field: str) -> None:
    """A name without one of them could be given to two files."""
    with pytest.raises(InvalidArgumentError, match=field):
        CaptureSettings("/x", name_format=NAME_FORMAT_DEFAULT.replace(f"{{{field}}}", "none"))


@pytest.mark.parametrize(
    "name_format",
    [
        "/" + NAME_FORMAT_DEFAULT,
        NAME_FORMAT_DEFAULT + "/",
        "../" + NAME_FORMAT_DEFAULT,
        NAME_FORMAT_DEFAULT.replace("/", "//", 1),
        NAME_FORMAT_DEFAULT + "/{Minutes}",
        NAME_FORMAT_DEFAULT + "/{",
        NAME_FORMAT_DEFAULT + " x",
        NAME_FORMAT_DEFAULT + "/" + "x" * 400,
    ],
)
def test_a_name_stays_inside_the_destination(name_format: str) -> None:
    """Parts that are empty or go up, unknown fields and odd characters are refused."""
    with pytest.raises(InvalidArgumentError, match="name format"):
        CaptureSettings("/x", name_format=name_format)


@pytest.mark.parametrize(
    "destination", ["", "captured", "./x", "file://x", "s3://", "://x", "s3://b?k=v", "/\0"]
)
def test_a_destination_is_a_path_or_a_url(destination: str) -> None:
    """A relative path would depend on where the service was started."""
    with pytest.raises(InvalidArgumentError, match="destination"):
        CaptureSettings(destination)


@pytest.mark.parametrize(
    "destination",
    [
        "sftp://user:secret@host/folder",
        "https://account.blob.core.windows.net/container?sv=2024&sig=secret",
        "AccountKey=secret;AccountName=account",
    ],
)
def test_a_destination_with_a_secret_is_refused_without_repeating_it(destination: str) -> None:
    """The catalog and logs hold destinations: a password, a SAS or a key there would leak."""
    with pytest.raises(InvalidArgumentError) as caught:
        CaptureSettings(destination)
    assert "secret" not in str(caught.value)
