"""Named connections of this user: ``production``, ``staging``, and ``local``, written by ``tidegate serve``.

Each is a file ``profiles/NAME.json`` beside the profile of ``tidegate serve``, written atomically and with
mode 0600, since it holds a key. ``profiles/.chosen`` names the one that commands use by default.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import click

from tidegate.files import replace_file
from tidegate.model.errors import InvalidArgumentError
from tidegate.server.ready import profile_path, read_profile

LOCAL: Final = "local"
"""The profile that ``tidegate serve`` writes; users cannot save or delete it."""
PROFILE_VARIABLE: Final = "TIDEGATE_PROFILE"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CHOSEN: Final = ".chosen"


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """How to reach a service."""

    connection_string: str = field(repr=False)
    ca_file: str | None = None
    """The certificate authority to trust besides the system's; None: only the system's."""
    database: str | None = field(default=None, repr=False)
    """The URL of the database of its hosts and pipelines; may contain a password."""


def profile_names(environment: Mapping[str, str]) -> list[str]:
    """The names of all profiles, sorted; ``local`` first if a service has written it."""
    saved = sorted(path.stem for path in _directory(environment).glob("*.json") if _NAME.fullmatch(path.stem))
    return [LOCAL, *saved] if profile_path(environment).exists() else saved


def complete_profile(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The names that a shell completes."""
    return [name for name in profile_names(os.environ) if name.startswith(incomplete)]


def load_profile(name: str, environment: Mapping[str, str]) -> ServiceConnection:
    """The profile of that name. Raises InvalidArgumentError if it does not exist or is not readable."""
    if name == LOCAL:
        written = read_profile(environment)
        if written is None:
            raise InvalidArgumentError(
                "There is no profile 'local': this user has not run `tidegate serve`.",
                next_step="Start a service with `tidegate serve`.",
            )
        return ServiceConnection(written.connection_string, written.ca_file)
    path = _path(name, environment)
    try:
        return ServiceConnection(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise _missing(name, environment) from None
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{path} is not a valid profile.", next_step="Save the profile again."
        ) from error


def save_profile(name: str, profile: ServiceConnection, environment: Mapping[str, str]) -> None:
    """Save a profile, replacing one of that name. Raises InvalidArgumentError for an invalid name."""
    if name == LOCAL:
        raise InvalidArgumentError(
            "The profile 'local' is reserved for `tidegate serve`.", next_step="Choose another name."
        )
    path = _path(name, environment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, f"{json.dumps(asdict(profile))}\n".encode())


def delete_profile(name: str, environment: Mapping[str, str]) -> None:
    """Delete a profile, readable or not; ``local`` becomes the default if it was this one.

    Raises InvalidArgumentError if it does not exist.
    """
    if name == LOCAL:
        raise InvalidArgumentError(
            "The profile 'local' is reserved for `tidegate serve`.",
            next_step=f"Delete {profile_path(environment)} if you no longer run a service.",
        )
    try:
        _path(name, environment).unlink()
    except FileNotFoundError:
        raise _missing(name, environment) from None
    # By the file: the environment's choice is for one shell only.
    if _chosen_in_file(environment) == name:
        choose_profile(LOCAL, environment)


def choose_profile(name: str, environment: Mapping[str, str]) -> None:
    """Make a profile the default of all commands."""
    directory = _directory(environment)
    if name == LOCAL:
        (directory / _CHOSEN).unlink(missing_ok=True)
        return
    load_profile(name, environment)
    replace_file(directory / _CHOSEN, f"{name}\n".encode())


def chosen_profile(environment: Mapping[str, str]) -> str:
    """The name in ``TIDEGATE_PROFILE``, else the one chosen with ``tidegate profile use``, else ``local``."""
    return environment.get(PROFILE_VARIABLE) or _chosen_in_file(environment)


def _chosen_in_file(environment: Mapping[str, str]) -> str:
    try:
        return (_directory(environment) / _CHOSEN).read_text(encoding="utf-8").strip() or LOCAL
    except FileNotFoundError:
        return LOCAL


def _missing(name: str, environment: Mapping[str, str]) -> InvalidArgumentError:
    names = ", ".join(profile_names(environment)) or "none"
    return InvalidArgumentError(
        f"There is no profile {name!r}.",
        next_step=f"Save it with `tidegate profile save {name}`. Existing profiles: {names}.",
    )


def _directory(environment: Mapping[str, str]) -> Path:
    return profile_path(environment).parent / "profiles"


def _path(name: str, environment: Mapping[str, str]) -> Path:
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"Invalid profile name {name[:80]!r}.",
            next_step="Use up to 64 letters, digits, dots, dashes and underscores.",
        )
    return _directory(environment) / f"{name}.json"
