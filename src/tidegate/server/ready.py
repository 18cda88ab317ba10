"""The ready file and this user's profile, from which other programs learn how to reach the service.

Both hold the same JSON object, which contains a key: they are written atomically, with mode 0600.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidegate.files import replace_file, user_directory
from tidegate.model.errors import InvalidArgumentError

_PROFILE_NAME = "profile.json"


@dataclass(frozen=True, slots=True)
class ReadyInformation:
    """How to reach a running service. Addresses are ``host:port``; None if that protocol is not served."""

    amqp: str | None
    amqps: str | None
    http: str | None
    https: str | None
    connection_string: str = field(repr=False)
    """For SDKs: over TLS if that is served, otherwise plain."""
    connection_string_plain: str | None = field(repr=False)
    """For plain AMQP, with ``UseDevelopmentEmulator=true``; None if plain AMQP is not served."""
    ca_file: str | None
    """The certificate authority to trust for ``amqps`` and ``https``."""
    data_dir: str
    console: str | None = None
    """The console's URL for a browser on this machine; None if it is not served."""

    @property
    def connection_strings(self) -> tuple[str, ...]:
        """Both, or the only one."""
        both = (self.connection_string, self.connection_string_plain)
        return tuple(dict.fromkeys(each for each in both if each is not None))

    def to_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ReadyInformation:
        """The inverse of ``to_json``. Raises InvalidArgumentError for an invalid ``text``."""
        try:
            values = json.loads(text)
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError("This is not the ready information of a Tidegate service.") from error


def write_ready_file(path: Path, information: ReadyInformation) -> None:
    """Write ``information`` atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, f"{information.to_json()}\n".encode())


def profile_path(environment: Mapping[str, str]) -> Path:
    """The path of this user's profile, in ``TIDEGATE_CONFIG_DIR`` or the XDG configuration directory."""
    directory = user_directory(environment, "TIDEGATE_CONFIG_DIR", "XDG_CONFIG_HOME", ".config")
    return directory / _PROFILE_NAME


def write_profile(information: ReadyInformation, environment: Mapping[str, str]) -> Path:
    """Save ``information`` for this user's other commands, and return the file's path."""
    path = profile_path(environment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_ready_file(path, information)
    return path


def read_profile(environment: Mapping[str, str]) -> ReadyInformation | None:
    """The information that this user's last ``serve`` saved, if any.

    Raises InvalidArgumentError naming the file if it exists and is not a valid profile.
    """
    path = profile_path(environment)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return ReadyInformation.from_json(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path} is not a profile.", next_step="Delete it.") from error
