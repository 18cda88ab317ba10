"""``tidegate doctor --bundle``: with a service, with its data alone, with neither; never with a secret."""

from __future__ import annotations

import base64
import json
import stat
import zipfile
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.cli.support import run_tidegate

from tidegate.cli.service.redaction import Redaction, secrets_in
from tidegate.model.sas import make_sas_token
from tidegate.server.ready import write_profile
from tidegate.testing.hub import HubService

_KEY = "pLaNtEd+rootkey/0123456789abcdefghijklmnopqrs="
_PASSWORD = 'pa"ss w@rd\\1'
_JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL3N0cyJ9.c2lnbmF0dXJlLW9mLXRva2Vu"
_PEM_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"


def _files(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def _missing(files: dict[str, str]) -> dict[str, dict[str, str]]:
    return {each["file"]: each for each in json.loads(files["manifest.json"])["missing"]}


def test_a_bundle_of_a_running_service_has_no_secret(lonely: dict[str, str], tmp_path: Path) -> None:
    """Known secrets are in every place that is collected; the whole archive has none of them."""
    config, log, bundle = tmp_path / "settings.toml", tmp_path / "service.log", tmp_path / "report.zip"
    state = tmp_path / "state"
    policy_key, other_key = "declared-policy-key", "key of a hub's policy"
    in_url = quote(_PASSWORD, safe="")
    config.write_text(
        f'root_key = "{_KEY}"\n'
        f'database = "postgresql://me:{in_url}@db/name?sslpassword=Tiny5"\n'
        f'[[policies]]\nname = "feed"\nclaims = ["Send"]\nkey = "{policy_key}"\n'
        '[[event_hubs]]\nname = "orders"\npartition_count = 2\n'
        'user_metadata = "password=meta-data-secret"\n'
        f'[[event_hubs.policies]]\nname = "reader"\nclaims = ["Listen"]\nkey = "{other_key}"\n'
    )
    with HubService(config=config, is_http_used=True, is_tls_used=True) as service:
        write_profile(service.ready, lonely)
        token = make_sas_token(audience="sb://here/orders", key_name="feed", key=policy_key, expiry=1)
        signature = token.split("sig=")[1].split("&")[0]
        log.write_text(
            "\n".join(
                (
                    f"INFO opened {service.connection_string}",
                    f"INFO AccountName=a;AccountKey={base64.b64encode(b'storage account').decode()};x",
                    f"INFO {token}",
                    f"INFO Authorization: Bearer {_JWT}",
                    f"INFO token {_JWT} refused",
                    "INFO Cookie: session=cookie-secret-1; other=cookie-secret-2",
                    "INFO Set-Cookie: __Host-tidegate-console-443=cookie-secret-3; Path=/",
                    "INFO mariadb://root:shorty9@db:3306/x?ssl_passwd=hunter2&charset=utf8",
                    json.dumps({"message": _PASSWORD, "nested": json.dumps({"secret": "q7 z9"})}),
                    f"INFO not even {_PASSWORD} alone",
                    f"INFO wrote {json.dumps(policy_key)} and {other_key}, {quote(_KEY, safe='')} for proxy",
                    f"-----BEGIN RSA PRIVATE KEY-----\n{_PEM_LINE}\n-----END RSA PRIVATE KEY-----",
                    "INFO the last line",
                )
            )
        )
        (state / "pipelines" / "rides").mkdir(parents=True)
        (state / "pipelines" / "rides" / "status.json").write_text(
            '{"error": "cannot reach mysql://u:wordpass@h/x"}'
        )
        (state / "pipelines" / "rides" / "spark.log").write_text("client_secret: spark-secret\nspark says\n")
        environment = lonely | {
            "TIDEGATE_STATE_DIR": str(state),
            "TIDEGATE_ROOT_KEY": "root-key-of-a-variable",
            "TIDEGATE_HTTP_PORT": "5399",
            "AZURE_STORAGE_CONNECTION_STRING": "AccountName=b;AccountKey=dmFyaWFibGU=;EndpointSuffix=x",
            "MY_API_TOKEN": "token-of-a-variable",
        }
        log.write_text(log.read_text() + "\nroot-key-of-a-variable token-of-a-variable dmFyaWFibGU=\n")
        words = ["--bundle", str(bundle), "--config", str(config), "--log", str(log), "--log", "-"]
        words += ["--log", str(tmp_path / "absent.log")]
        url = "mariadb://user:option-password@127.0.0.1:1/x"
        found = run_tidegate(
            "doctor",
            *words,
            "--database",
            url,
            environment=environment,
            input_bytes=b"from option-password\n",
        )
        assert service.ready.connection_string_plain is not None
        own_key = next(secrets_in(service.ready.connection_string_plain))
    assert own_key == _KEY
    assert found.code == 4, found.err  # there is no such database
    files = _files(bundle)
    planted = (
        _KEY, quote(_KEY, safe=""), _PASSWORD, in_url, "w@rd",
        _JWT.split(".")[2],
        policy_key, other_key, signature, base64.b64encode(b"storage account").decode(), "cookie-secret",
        "shorty9", "hunter2", "z9", _PEM_LINE, "wordpass", "spark-secret", "root-key-of-a-variable",
        "token-of-a-variable", "dmFyaWFibGU=", "option-password", "Tiny5", "meta-data-secret",
    )  # fmt: skip
    given = (config, log, *(state / "pipelines" / "rides").iterdir())
    sources = "\n".join((*(path.read_text() for path in given), *environment.values(), url))
    assert [each for each in planted if each not in sources] == []
    everything = "\n".join((*files, *files.values()))
    assert [each for each in planted if each in everything or each in found.err + found.out] == []
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    # And it is of use.
    assert "from [removed]" in files["logs/2-standard-input"]
    assert "INFO the last line" in files["logs/1-service.log"]
    assert "charset=utf8" in files["logs/1-service.log"]
    assert "spark says" in files["pipelines/rides/spark.log"]
    assert 'tidegate_partition_next_sequence_number{event_hub="orders"' in files["service/metrics.txt"]
    assert 'token="yes"' in files["service/metrics.txt"]
    assert json.loads(files["service/health.json"])["status"]
    namespace = json.loads(files["service/namespace.json"])
    assert [hub["name"] for hub in namespace["event_hubs"]] == ["orders"]
    assert {each["name"] for each in namespace["policies"]} >= {"feed", "RootManageSharedAccessKey"}
    settings = json.loads(files["settings/serve.json"])
    assert (settings["http_port"], settings["root_key"], settings["database"]) == (5399, "(set)", "(set)")
    assert settings["declared"]["event_hubs"][0]["policies"] == [{"name": "reader", "claims": ["Listen"]}]
    assert json.loads(files["settings/environment.json"])["TIDEGATE_ROOT_KEY"] == "(set)"
    assert json.loads(files["versions.json"])["packages"]["tidegate"]
    assert "audit.jsonl" in files["data/files.json"]
    assert "createEventHub" in files["data/audit.jsonl"]
    assert {each["check"] for each in json.loads(files["checks.json"])} >= {"health", "database"}
    missing = _missing(files)
    assert missing.keys() == {"data/check.json", "data/catalog.json", "logs/3-absent.log"}
    assert missing["logs/3-absent.log"]["reason"] == "No such file or directory"
    assert "in use" in missing["data/check.json"]["reason"]
    assert "data/check.json" in found.err


def test_a_stopped_service_leaves_its_catalog_and_the_check(lonely: dict[str, str], tmp_path: Path) -> None:
    """What the service would say is read from its data directory, without keys."""
    with HubService(tmp_path / "log", root_key=_KEY) as service:
        service.create_hub("orders", partition_count=2)
    bundle = tmp_path / "report.zip"
    words = ("--bundle", str(bundle), "--data-dir", str(tmp_path / "log"))
    found = run_tidegate("doctor", *words, environment=lonely)
    assert found.code == 0, found.err
    files = _files(bundle)
    assert json.loads(files["data/check.json"])["is_sound"] is True
    catalog = json.loads(files["data/catalog.json"])
    assert [hub["name"] for hub in catalog["event_hubs"].values()] == ["orders"]
    assert catalog["namespace"]["policies"][0].keys() == {"name", "claims"}
    assert _KEY not in "".join(files.values())
    assert {"service/metrics.txt", "service/namespace.json", "logs"} <= _missing(files).keys()


def test_without_both_it_says_what_is_missing(lonely: dict[str, str], tmp_path: Path) -> None:
    """Versions, checks and settings are there; each other part with what to give for it."""
    bundle = tmp_path / "report.zip"
    found = run_tidegate("doctor", "--bundle", str(bundle), environment=lonely)
    assert found.code == 0, found.err
    files = _files(bundle)
    assert {"versions.json", "checks.json", "settings/environment.json", "settings/serve.json"} < files.keys()
    missing = _missing(files)
    assert {"service/metrics.txt", "service/namespace.json", "data/check.json", "logs"} <= missing.keys()
    assert [each for each in missing.values() if not each["advice"]] == []
    assert missing["data/check.json"]["advice"] == "Give --data-dir."
    assert all(name in found.err for name in missing)


def test_an_existing_file_is_kept_unless_told(lonely: dict[str, str], tmp_path: Path) -> None:
    """Before anything is collected."""
    bundle = tmp_path / "report.zip"
    bundle.write_text("mine")
    refused = run_tidegate("doctor", "--bundle", str(bundle), environment=lonely)
    assert (refused.code, bundle.read_text()) == (1, "mine")
    assert "--force" in refused.err
    assert refused.out == ""
    assert run_tidegate("doctor", "--bundle", str(bundle), "--force", environment=lonely).code == 0
    assert "manifest.json" in _files(bundle)
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "words", [("--bundle", "report.tar"), ("--log", "x.log"), ("--bundle", "/nowhere/at/all.zip")]
)
def test_what_cannot_be_written_is_refused_first(lonely: dict[str, str], words: tuple[str, str]) -> None:
    """Another kind of archive, a log without a bundle, a directory that does not exist."""
    refused = run_tidegate("doctor", *words, environment=lonely)
    assert refused.code in (1, 2)
    assert refused.out == ""


def test_metrics_and_sentences_are_left_as_they_are() -> None:
    """What only looks like the name of a secret stays readable."""
    text = 'x{speaks="amqp",token="yes"} 4\nA policy with the keys of a hub. key=3 sharedaccesskeyname=feed\n'
    assert Redaction(()).text(text) == text


def test_a_short_secret_is_removed_as_a_word() -> None:
    """Not from inside of other words; a longer one from wherever it is."""
    redaction = Redaction(("log1", "long-enough-secret"))
    assert redaction.text("log1 catalog12 Xlong-enough-secretX") == "[removed] catalog12 X[removed]X"


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "repeated", ["://", "://a:", "eyJaaaa-", "password", "cookie: ", "-----BEGIN PRIVATE KEY-----"]
)
def test_what_peers_write_into_a_log_does_not_hold_it_up(repeated: str) -> None:
    """Two of these did not end within a minute: each of their places was searched to the end of the line."""
    assert len(Redaction(()).text(repeated * (500_000 // len(repeated)))) > 0


def test_a_password_in_a_url_may_have_an_at() -> None:
    """It is removed up to the last one, however long."""
    text = f"x://u:p@ss:w@host/db y://:secret@h z://u:{'q' * 512}@h sb://x:5671/a"
    assert (
        Redaction(()).text(text) == "x://u:[removed]@host/db y://:[removed]@h z://u:[removed]@h sb://x:5671/a"
    )
