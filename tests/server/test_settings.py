"""Settings: what is accepted, what is refused with the setting's name, and the rule about ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.server.config_file import load_settings
from tidegate.server.settings import ServerSettings, environment_values, settings_from_mapping


def test_defaults_serve_plain_amqp_and_http_on_loopback(tmp_path: Path) -> None:
    """A first start without options is reachable from this machine only, and by the SDKs' default port."""
    settings = ServerSettings(tmp_path)
    assert (settings.host, settings.amqp_port, settings.amqps_port) == ("127.0.0.1", 5672, None)
    assert not settings.is_tls_used


@pytest.mark.parametrize("port", [-1, 65536, True, "5672"])
def test_port_that_is_none_is_refused_by_name(tmp_path: Path, port: object) -> None:
    """A wrong port names its setting instead of failing later in the socket layer."""
    with pytest.raises(InvalidArgumentError, match="amqps_port"):
        ServerSettings(tmp_path, amqps_port=port)  # type: ignore[arg-type]


def test_no_amqp_face_is_refused(tmp_path: Path) -> None:
    """A service that no client can reach is a mistake, not a configuration."""
    with pytest.raises(InvalidArgumentError, match="Neither AMQP port is set"):
        ServerSettings(tmp_path, amqp_port=None)


def test_given_ports_switch_the_others_off(tmp_path: Path) -> None:
    """Scripts that ask for one face do not get another one on a fixed port."""
    settings = settings_from_mapping({"amqps_port": 0}, data_dir=tmp_path)
    assert (settings.amqp_port, settings.amqps_port, settings.http_port) == (None, 0, None)
    assert settings_from_mapping({}, data_dir=tmp_path) == ServerSettings(tmp_path)


def test_settings_from_the_environment(tmp_path: Path) -> None:
    """Every setting has a variable of its name; values get their types, and an empty one is not given."""
    given = {
        "TIDEGATE_DATA_DIR": "/data",
        "TIDEGATE_AMQPS_PORT": "5671",
        "TIDEGATE_IS_CONSOLE_SERVED": "false",
        "TIDEGATE_DRAIN_TIMEOUT_S": "2.5",
        "TIDEGATE_TLS_NAMES": "a.example.org, b.example.org,",
        "TIDEGATE_ROOT_KEY": "123",
        "TIDEGATE_HTTP_PORT": "",
        "TIDEGATE_PROFILE": "another program's",
    }
    settings = settings_from_mapping(environment_values(given))
    assert settings == ServerSettings(
        Path("/data"),
        amqp_port=None,
        amqps_port=5671,
        http_port=None,
        is_console_served=False,
        drain_timeout_s=2.5,
        tls_names=("a.example.org", "b.example.org"),
        root_key="123",
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TIDEGATE_AMQP_PORT", "amqp"),
        ("TIDEGATE_AMQP_PORT", "70000"),
        ("TIDEGATE_IS_CONSOLE_SERVED", "maybe"),
    ],
)
def test_wrong_variables_are_named(variable: str, value: str) -> None:
    """Whoever writes a manifest reads which variable is wrong; its value, perhaps a key, is not repeated."""
    with pytest.raises(InvalidArgumentError, match=variable) as caught:
        environment_values({variable: value})
    assert value not in str(caught.value)


def test_any_port_of_a_service_for_tests(tmp_path: Path) -> None:
    """Two test runs on one machine do not meet on the default ports; given ports are used as they are."""
    free = settings_from_mapping({}, data_dir=tmp_path, is_any_port=True)
    assert (free.amqp_port, free.amqps_port, free.http_port) == (0, None, 0)
    given = settings_from_mapping({"amqp_port": 5672}, data_dir=tmp_path, is_any_port=True)
    assert (given.amqp_port, given.http_port) == (5672, None)


def test_configuration_file(tmp_path: Path) -> None:
    """A TOML file sets fields by name; relative paths start at the file, not at the working directory."""
    path = tmp_path / "tidegate.toml"
    path.write_text('data_dir = "log"\namqps_port = 0\ntls_names = ["hub.example"]\ndrain_timeout_s = 2\n')
    settings = load_settings(path)
    assert settings.data_dir == tmp_path / "log"
    assert (settings.amqp_port, settings.amqps_port, settings.tls_names) == (None, 0, ("hub.example",))
    assert settings.drain_timeout_s == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots = 1", "Unknown field 'hots'"),
        ("host = 1", "host must be a string, got an integer"),
        ("tls_names = 'a'", "tls_names must be a list, got a string"),
        ("drain_timeout_s = true", "drain_timeout_s must be a number, got true or false"),
        ("capture_namespace = 'a/b'", "capture_namespace is 'a/b'"),
        ("capture_namespace = 1", "capture_namespace must be a string"),
        ("host = ", "not TOML"),
    ],
)
def test_mistake_in_the_file_names_file_and_setting(tmp_path: Path, text: str, message: str) -> None:
    """A typing mistake is found at start and says where it is."""
    path = tmp_path / "tidegate.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        load_settings(path, data_dir=tmp_path)
    assert str(path) in str(caught.value)


def test_data_dir_is_needed() -> None:
    """The service never guesses where the log lives."""
    with pytest.raises(InvalidArgumentError, match="data_dir"):
        settings_from_mapping({"amqp_port": 0})


def test_certificate_and_key_come_together(tmp_path: Path) -> None:
    """One without the other is a mistake that is told before anything starts."""
    with pytest.raises(InvalidArgumentError, match="tls_certificate and tls_key"):
        ServerSettings(tmp_path, tls_certificate=tmp_path / "server.pem")
    both = settings_from_mapping({"tls_certificate": "a.pem", "tls_key": "a.key"}, data_dir=tmp_path)
    assert (both.tls_certificate, both.tls_key) == (Path("a.pem"), Path("a.key"))


def test_trusted_proxies_are_addresses_or_networks(tmp_path: Path) -> None:
    """A proxy given by name would be trusted as nobody, in silence."""
    assert ServerSettings(tmp_path, trusted_proxies=("10.0.0.0/8", "::1")).trusted_proxies
    with pytest.raises(InvalidArgumentError, match=r"trusted proxy.*proxy\.example"):
        ServerSettings(tmp_path, trusted_proxies=("proxy.example",))


@pytest.mark.parametrize("name", ["gate.example:5671", "https://gate.example", "*.example", "", "a b", "a/b"])
def test_host_names_are_names_or_addresses(tmp_path: Path, name: str) -> None:
    """Anything else would be no host that a token can name, in silence."""
    assert ServerSettings(tmp_path, host_names=("gate.example", "10.0.0.7", "2001:db8::7")).host_names
    with pytest.raises(InvalidArgumentError, match="host_names"):
        ServerSettings(tmp_path, host_names=(name,))


def test_allowed_origins_are_origins(tmp_path: Path) -> None:
    """As browsers send them: a name alone would let no page in."""
    settings = settings_from_mapping({"allowed_origins": ["https://app.example"]}, data_dir=tmp_path)
    assert settings.allowed_origins == ("https://app.example",)
    with pytest.raises(InvalidArgumentError, match=r"allowed origin.*'app\.example'"):
        ServerSettings(tmp_path, allowed_origins=("app.example",))
