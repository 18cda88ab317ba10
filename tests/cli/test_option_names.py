"""One option name per meaning: no command calls what others have by another name."""

from __future__ import annotations

import click
from tools.reference.pages import iter_commands

from tidegate.cli.app import app

SECOND_NAMES = {
    "--all-partitions": "--all",
    "--allow-gap": "--allow-gaps",
    "--bundle-file": "--bundle",
    "--checkpoint-directory": "--checkpoint-dir",
    "--checkpoint-location": "--checkpoint-dir",
    "--checkpoints": "--checkpoint-dir",
    "--consumer-group": "--group",
    "--data": "--data-dir",
    "--db": "--database",
    "--duration": "--seconds",
    "--event-hub": "--hub",
    "--every": "--interval",
    "--filter": "--contains",
    "--max": "--limit",
    "--max-events": "--count",
    "--no-confirm": "--yes",
    "--once-available": "--available-now",
    "--out": "--output",
    "--overwrite": "--force",
    "--partition-id": "--partition",
    "--position": "--from",
    "--quiet": "--log-format",
    "--refresh": "--interval",
    "--replace": "--force",
    "--since": "--from",
    "--starting-position": "--from",
    "--starting-time": "--from",
    "--ttl": "--life",
    "--url": "--database",
}
"""Names that other programs have, or that we had, and ours."""

NAMES = """
actor adopt all allow-duplicates allow-gaps amqp-port amqps-port attempts-max available-now because
blob-container body bundle by-reason ca-file capture capture-destination checkpoint-dir claim config
connection-string console contains content-type correlation-id count csv data-dir database
development-issuer dry-run earliest enqueued-since enqueued-time environment ephemeral error-type event
event-bytes-max failed-since failed-until file follow force format from from-first-row group host
http-port https-port hub ignore interval json keep-partitions key latest lease-duration life limit log
log-format master message-id metrics-host metrics-port name-format namespace nl no-console no-follow
offset once output partition partition-column partition-key partitions paused pipeline policy principal
processes profile progress property publisher python rate read-group ready-file reason reason-is
redrive-pipeline repair restarts retention-bytes retention-hours rewind role root-key seconds secondary
sequence-column sequence-number serve shadow size-window-bytes skip skip-empty spark-log status table
tier time-window-s timeout tls-certificate tls-key tls-name user-metadata verbose version watch whole
wide with-connection-string yes
"""


def _options() -> dict[str, set[str]]:
    """Each long name, with what helps say of it."""
    found: dict[str, set[str]] = {}
    for parameter in (each for _, command in [("", app), *iter_commands(app)] for each in command.params):
        if isinstance(parameter, click.Option):
            for name in (*parameter.opts, *parameter.secondary_opts):
                if name.startswith("--"):
                    found.setdefault(name, set()).add(parameter.help or "")
    return found


def test_each_name_is_meant() -> None:
    """A new name is added here by someone who has looked whether one of these means the same."""
    names = {f"--{each}" for each in NAMES.split()}
    assert sorted(_options().keys() - names) == [], "Does an option here mean the same? Else add it to NAMES."
    assert sorted(names - _options().keys()) == []
    assert {name: SECOND_NAMES[name] for name in _options() if name in SECOND_NAMES} == {}


def test_what_is_said_twice_has_one_name() -> None:
    """No sentence of the help stands beside two names; a pair that a flag and its opposite make is one."""
    names: dict[str, list[str]] = {}
    for name, sentences in _options().items():
        for sentence in sentences:
            names.setdefault(sentence, []).append(name.replace("--no-", "--"))
    assert {sentence: found for sentence, found in names.items() if len({*found}) > 1} == {}
