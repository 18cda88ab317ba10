"""Named connections: kept for this user alone, found in the promised order, shown without their key."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from tests.cli.support import run_tidegate

from tidegate.cli.shell.connection import Service, resolve_connection
from tidegate.cli.shell.profiles import (
    LOCAL,
    ServiceConnection,
    choose_profile,
    chosen_profile,
    delete_profile,
    load_profile,
    profile_names,
    save_profile,
)
from tidegate.cli.shell.stores import database_url
from tidegate.model.errors import InvalidArgumentError
from tidegate.sql import Database
from tidegate.testing.hub import HubService

KEY = "s3cret+key="
STRING = f"Endpoint=sb://{{host}}/;SharedAccessKeyName=Root;SharedAccessKey={KEY}"


def profile(host: str) -> ServiceConnection:
    """One that leads to ``host``."""
    return ServiceConnection(STRING.format(host=host))


def test_saved_chosen_and_forgotten(lonely: dict[str, str]) -> None:
    """A profile is there until it is deleted; deleting the chosen one goes back to the service's own."""
    assert profile_names(lonely) == []
    save_profile("b", profile("b.example"), lonely)
    save_profile("a", ServiceConnection(STRING.format(host="a.example"), "/ca.pem"), lonely)
    save_profile("b", profile("new.example"), lonely)
    assert profile_names(lonely) == ["a", "b"]
    assert load_profile("b", lonely) == profile("new.example")
    assert load_profile("a", lonely).ca_file == "/ca.pem"
    choose_profile("a", lonely)
    assert chosen_profile(lonely) == "a"
    delete_profile("a", lonely)
    assert (profile_names(lonely), chosen_profile(lonely)) == (["b"], LOCAL)


def test_deleting_leaves_another_choice_alone(lonely: dict[str, str]) -> None:
    """What the variable names is chosen for one shell: the file's choice stays, or goes with its profile."""
    for name in ("kept", "gone"):
        save_profile(name, profile(f"{name}.example"), lonely)
    choose_profile("kept", lonely)
    delete_profile("gone", lonely | {"TIDEGATE_PROFILE": "gone"})
    assert chosen_profile(lonely) == "kept"
    delete_profile("kept", lonely | {"TIDEGATE_PROFILE": "other"})
    assert chosen_profile(lonely) == LOCAL
    with pytest.raises(InvalidArgumentError, match="There is no profile 'kept'"):
        delete_profile("kept", lonely)


def test_only_this_user_may_read_it(lonely: dict[str, str]) -> None:
    """The directory and the file that holds the key are closed to others; no half-written file is left."""
    save_profile("a", profile("a.example"), lonely)
    folder = Path(lonely["TIDEGATE_CONFIG_DIR"]) / "profiles"
    assert [path.name for path in folder.iterdir()] == ["a.json"]
    assert stat.S_IMODE((folder / "a.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert KEY not in repr(load_profile("a", lonely))


@pytest.mark.parametrize("name", ["", "..", "../a", "a/b", ".chosen", "-x", "a" * 65, "a\n"])
def test_names_that_are_none(name: str, lonely: dict[str, str]) -> None:
    """A name is a name: it leads nowhere else in the file system."""
    with pytest.raises(InvalidArgumentError, match="Invalid profile name"):
        save_profile(name, profile("x"), lonely)
    with pytest.raises(InvalidArgumentError, match="Invalid profile name"):
        load_profile(name, lonely)


def test_the_order_in_which_they_are_found(lonely: dict[str, str]) -> None:
    """The variable with the string, then the variable with the name, then what was chosen."""
    for name in ("chosen", "named"):
        save_profile(name, profile(f"{name}.example"), lonely)
    choose_profile("chosen", lonely)

    def host() -> str:
        return resolve_connection(None, None, lonely).connection_string.partition("//")[2].partition("/")[0]

    assert host() == "chosen.example"
    lonely["TIDEGATE_PROFILE"] = "named"
    assert host() == "named.example"
    lonely["TIDEGATE_CONNECTION_STRING"] = STRING.format(host="string.example")
    assert host() == "string.example"


def test_a_damaged_profile_is_told_without_what_is_in_it(lonely: dict[str, str]) -> None:
    """Whoever edited the file by hand is told which one it is; what is in it stays there."""
    save_profile("a", profile("a.example"), lonely)
    path = Path(lonely["TIDEGATE_CONFIG_DIR"]) / "profiles" / "a.json"
    for text in ("{", '{"key": "s3cret"}', f'"{KEY}"'):
        path.write_text(text)
        with pytest.raises(InvalidArgumentError, match=r"a\.json is not a valid profile") as raised:
            load_profile("a", lonely)
        assert "s3cret" not in str(raised.value)
    save_profile("b", profile("b.example"), lonely)
    listed = run_tidegate("profile", "list", "--nl", environment=lonely)
    assert [json.loads(line)["name"] for line in listed.out.splitlines()] == ["b"]
    assert "Skipped a:" in listed.err
    delete_profile("a", lonely)
    assert profile_names(lonely) == ["b"]


def test_commands_take_a_profile(lonely: dict[str, str], hub_service: HubService) -> None:
    """Saved from a pipe, listed without its key, and used by name in place of a connection string: given
    before the command or after it, where the last one counts.
    """
    string = hub_service.connection_string
    saved = run_tidegate("profile", "save", "mine", environment=lonely, input_bytes=f"{string}\n".encode())
    assert saved.code == 0, saved.err
    key = string.partition("SharedAccessKey=")[2].partition(";")[0]
    listed = run_tidegate("profile", "list", "--json", environment=lonely)
    address = string.partition("//")[2].partition(";")[0].rstrip("/")
    assert listed.json() == [
        {
            "name": "mine",
            "used": False,
            "endpoint": address,
            "event_hub": None,
            "key_name": "RootManageSharedAccessKey",
            "ca_file": None,
            "database": None,
        }
    ]
    assert key not in saved.err + saved.out + listed.out
    assert run_tidegate("tier", "show", environment=lonely).code == 3
    assert run_tidegate("tier", "show", "--profile", "mine", environment=lonely).code == 0
    both = run_tidegate(
        "tier", "show", "--profile", "mine", "--connection-string", string, environment=lonely
    )
    assert both.code == 2
    assert "mutually exclusive" in both.err
    before = run_tidegate("--profile", "mine", "tier", "show", "--json", environment=lonely)
    assert (
        before.json() == run_tidegate("tier", "show", "--profile=mine", "--json", environment=lonely).json()
    )
    last = run_tidegate("--profile", "yours", "tier", "show", "--profile", "mine", environment=lonely)
    assert last.code == 0, last.err
    apart = run_tidegate(
        "--profile", "mine", "tier", "show", "--connection-string", string, environment=lonely
    )
    assert apart.code == 2
    unknown = run_tidegate("tier", "show", "--profile", "yours", environment=lonely)
    assert unknown.code == 2
    assert "Existing profiles: mine" in unknown.err
    assert run_tidegate("profile", "use", "mine", environment=lonely).code == 0
    assert run_tidegate("tier", "show", environment=lonely).code == 0
    assert run_tidegate("profile", "delete", "mine", environment=lonely).code == 0
    assert run_tidegate("tier", "show", environment=lonely).code == 3


def test_what_is_no_connection_string_is_not_saved(lonely: dict[str, str]) -> None:
    """A key pasted alone is refused at once, and not repeated."""
    refused = run_tidegate("profile", "save", "mine", environment=lonely, input_bytes=KEY.encode())
    assert refused.code == 2
    assert KEY not in refused.err
    assert profile_names(lonely) == []


def test_a_profile_holds_the_database(
    hub_service: HubService, lonely: dict[str, str], tmp_path: Path
) -> None:
    """Read from a pipe as the key is, shown without its password, and used by commands about that service."""
    postgres = "postgresql://reports:s3cret-word@db.example/reports"
    text = f"{hub_service.connection_string}\n{postgres}\n".encode()
    words = ("profile", "save", "far", "--database", "-")
    assert run_tidegate(*words, environment=lonely, input_bytes=text).code == 0
    shown = run_tidegate("profile", "show", "far", "--json", environment=lonely)
    assert "://reports:***@db.example/reports" in shown.out
    assert "s3cret-word" not in shown.out + repr(load_profile("far", lonely))
    assert "reports:s3cret-word@" in (load_profile("far", lonely).database or "")
    near, given = (f"sqlite:///{tmp_path}/{name}.db" for name in ("near", "given"))
    for url in (near, given):
        Database.open(url).close()
    string = hub_service.connection_string
    save_profile("near", ServiceConnection(string, None, near), lonely)
    save_profile("bare", ServiceConnection(string), lonely)
    choose_profile("near", lonely)

    def used(**environment: str) -> str | None:
        """By a command without options, and with them."""
        return chosen(Service(), environment)

    def chosen(service: Service, environment: dict[str, str]) -> str | None:
        with (
            pytest.MonkeyPatch.context() as patched,
            click.Context(click.Command("x"), obj=service),
        ):
            patched.setattr("os.environ", lonely | environment)
            return database_url(None)

    assert used() == near
    assert used(TIDEGATE_DATABASE=given) == given
    assert used(TIDEGATE_PROFILE="bare") is None
    assert used(TIDEGATE_CONNECTION_STRING=string) is None
    assert chosen(Service(profile="near"), {"TIDEGATE_DATABASE": given}) == near
    assert chosen(Service(profile="bare"), {"TIDEGATE_DATABASE": given}) == given
    assert chosen(Service(string), {}) is None
    for command in (("--profile", "near", "dlq", "list"), ("dlq", "list")):
        assert run_tidegate(*command, environment=lonely).code == 0
    assert run_tidegate("dlq", "list", "--profile", "bare", environment=lonely).code == 2
