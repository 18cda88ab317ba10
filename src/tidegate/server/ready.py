"""How other programs learn where the service is: the ready file and this user's profile.

Both hold the same JSON object, which contains a key: they are written with mode 0600, in one step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidegate.model.errors import InvalidArgumentError
from tidegate.transport.private_files import write_private_file

_PROFILE_NAME = "profile.json"


@dataclass(frozen=True, slots=True)
class ReadyInformation:
    """Where a running service is. Addresses are ``host:port``; None if that protocol is not served."""

    amqp: str | None
    amqps: str | None
    http: str | None
    https: str | None
    flight: str | None
    """Reserved for Arrow Flight; always None for now."""
    connection_string: str = field(repr=False)
    """For SDKs: over TLS if that is served, otherwise plain."""
    connection_string_plain: str | None = field(repr=False)
    """For plain AMQP, with ``UseDevelopmentEmulator=true``; None if plain AMQP is not served."""
    ca_file: str | None
    """The certificate authority to trust for ``amqps`` and ``https``."""
    data_dir: str
    console: str | None = None
    """Address of the console for a browser on this machine; None where it is not served."""

    def to_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ReadyInformation:
        """The inverse of ``to_json``; raises InvalidArgumentError when ``text`` is something else."""
        try:
            values = json.loads(text)
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError("This is not the ready information of a Tidegate service.") from error


def write_ready_file(path: Path, information: ReadyInformation) -> None:
    """Write ``information`` so that a reader sees either nothing or all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private_file(path, f"{information.to_json()}\n".encode())


def profile_path(environment: Mapping[str, str]) -> Path:
    """This user's profile, in ``TIDEGATE_CONFIG_DIR``, else the XDG configuration directory."""
    own = environment.get("TIDEGATE_CONFIG_DIR")
    if own:
        return Path(own) / _PROFILE_NAME
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "tidegate" / _PROFILE_NAME


def write_profile(information: ReadyInformation, environment: Mapping[str, str]) -> Path:
    """Save ``information`` for this user's other commands; returns the file."""
    path = profile_path(environment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_ready_file(path, information)
    return path


def read_profile(environment: Mapping[str, str]) -> ReadyInformation | None:
    """What the last ``serve`` of this user saved; None if nothing.

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
