"""Ready file and profile hold a key: they follow when it is regenerated, or commands were locked out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.broker import ROOT_POLICY_NAME, Claim
from tidegate.model.connection_string import ConnectionString
from tidegate.server.app import TidegateServer
from tidegate.server.ready import ReadyInformation, read_profile, write_profile
from tidegate.server.settings import ServerSettings


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A profile of this test's own."""
    directory = str(tmp_path / "config")
    monkeypatch.setenv("TIDEGATE_CONFIG_DIR", directory)
    return {"TIDEGATE_CONFIG_DIR": directory}


def _settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(
        data_dir=tmp_path / "data",
        amqp_port=0,
        http_port=None,
        ready_file=tmp_path / "ready.json",
        is_profile_written=True,
    )


def _key(information: ReadyInformation | None) -> str | None:
    assert information is not None
    return ConnectionString.parse(information.connection_string).shared_access_key


async def test_a_regenerated_root_key_reaches_ready_file_and_profile(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """All three places say the new key, still for their owner only; other policies change nothing."""
    server = TidegateServer(_settings(tmp_path))
    first = await server.start()
    ready_file = tmp_path / "ready.json"
    try:
        written = ready_file.stat().st_mtime_ns
        await server.broker.create_policy(None, "other", [Claim.SEND])
        assert ready_file.stat().st_mtime_ns == written
        new_key = (await server.broker.regenerate_key(None, ROOT_POLICY_NAME)).key
        assert new_key != _key(first)
        ready = ReadyInformation.from_json(ready_file.read_text())
        assert _key(ready) == _key(server.ready) == _key(read_profile(environment)) == new_key
        assert ready_file.stat().st_mode & 0o777 == 0o600
        await server.broker.create_policy(None, "admin", [Claim.MANAGE])
        await server.broker.delete_policy(None, ROOT_POLICY_NAME)
        assert _key(server.ready) is None
    finally:
        await server.close()
    assert not ready_file.exists()


async def test_another_services_profile_is_left_alone(tmp_path: Path, environment: dict[str, str]) -> None:
    """The profile is the last service's of this user: an earlier one does not take it back."""
    server = TidegateServer(_settings(tmp_path))
    ready = await server.start()
    try:
        other = ReadyInformation.from_json(ready.to_json().replace(ready.data_dir, "/another"))
        write_profile(other, environment)
        await server.broker.regenerate_key(None, ROOT_POLICY_NAME)
        assert read_profile(environment) == other
    finally:
        await server.close()
