"""Where a command finds its service, in which order, and what it says when it finds none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli.shell.connection import resolve_connection
from tidegate.cli.shell.exit_codes import ExitCode, NoConnectionError, exit_code_of
from tidegate.model.errors import ConnectionStringError
from tidegate.server.ready import ReadyInformation, write_profile

STRING = "Endpoint=sb://{host};SharedAccessKeyName=Root;SharedAccessKey=a+secret=;UseDevelopmentEmulator=true"


def _profile(directory: Path) -> dict[str, str]:
    environment = {"TIDEGATE_CONFIG_DIR": str(directory)}
    ready = ReadyInformation(
        amqp="127.0.0.1:5672",
        amqps=None,
        http=None,
        https=None,
        connection_string=STRING.format(host="profile"),
        connection_string_plain=STRING.format(host="profile"),
        ca_file="/ca.pem",
        data_dir="/data",
    )
    write_profile(ready, environment)
    return environment


def test_option_then_variable_then_profile(tmp_path: Path) -> None:
    """The nearer source wins: the option over the variable, the variable over the profile."""
    environment = _profile(tmp_path)
    found = resolve_connection(None, None, environment)
    assert found.connection_string == STRING.format(host="profile")
    assert found.ca_file == "/ca.pem"
    environment["TIDEGATE_CONNECTION_STRING"] = STRING.format(host="variable")
    assert "variable" in resolve_connection(None, None, environment).connection_string
    found = resolve_connection(STRING.format(host="option"), Path("mine.pem"), environment)
    assert "option" in found.connection_string
    assert found.ca_file == "mine.pem"


def test_nothing_anywhere_is_unreachable(tmp_path: Path) -> None:
    """Without any source the message names all three, and the exit code is 3."""
    with pytest.raises(NoConnectionError, match="TIDEGATE_CONNECTION_STRING") as raised:
        resolve_connection(None, None, {"TIDEGATE_CONFIG_DIR": str(tmp_path)})
    assert "tidegate serve" in str(raised.value)
    assert exit_code_of(raised.value) is ExitCode.UNREACHABLE


def test_a_bad_string_is_told_without_its_key(tmp_path: Path) -> None:
    """A string that does not parse is a usage error, and its key is nowhere in the message."""
    with pytest.raises(ConnectionStringError) as raised:
        resolve_connection("SharedAccessKeyName=Root;SharedAccessKey=s3cret", None, {})
    assert "s3cret" not in str(raised.value)
    assert exit_code_of(raised.value) is ExitCode.USAGE


def test_the_key_is_not_in_the_repr(tmp_path: Path) -> None:
    """A connection in a traceback or log line keeps its secret."""
    assert "a+secret" not in repr(resolve_connection(None, None, _profile(tmp_path)))
