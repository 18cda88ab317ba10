"""What `python -m examples.flights` says at the end: figures, and commands that can be pasted."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from examples.flights import corrected_pipeline, output
from examples.flights.__main__ import parser
from examples.flights.accounting import PartitionAccount, StageRate
from examples.flights.crash import MidBatch
from examples.flights.demo import FlightsReport
from examples.support.command import CheckFailedError, print_table, run_command
from examples.support.screen import Screen
from sqlalchemy import make_url

from tidegate import AlreadyExistsError, DatabaseUnavailableError, InvalidArgumentError, TidegateError
from tidegate.sql import load_pipeline

REPORT = FlightsReport(
    data_dir=Path("/data/it's here"),
    database=make_url("sqlite:////data/it's here/flights.db"),
    partitions=(PartitionAccount("0", 10, 8, 2, 0, 0), PartitionAccount("1", 5, 5, 0, 1, 0)),
    flights_expected=15,
    crash=MidBatch(3, {"0": 4, "1": 2}, {"0": 10, "1": 5}, {"0": 2, "1": 0}),
    stages=(StageRate("publish", 15, 0.5), StageRate("pipeline", 15, 3.0)),
    carriers=[
        {
            "carrier": "F9",
            "airline": "Frontier Airlines Inc.",
            "flights": 681,
            "mean_delay_min": 21.9,
            "late_%": 38.8,
        }
    ],
    routes=[
        {
            "route": "EWR-RIC",
            "from": "Newark Liberty Intl",
            "to": "Richmond Intl",
            "flights": 1615,
            "mean_delay_min": 25.8,
            "late_%": 40.7,
        }
    ],
    reasons=(),
)


def _text(report: FlightsReport, capsys: pytest.CaptureFixture[str]) -> str:
    output.print_report(report)
    return capsys.readouterr().out


def test_the_figures_of_a_report() -> None:
    """The totals are the partitions' sums; a dead letter that was redriven is no longer open."""
    assert (REPORT.published, REPORT.rows) == (15, 13)
    assert (REPORT.dead_letters_open, REPORT.dead_letters_total) == (2, 3)
    assert REPORT.failures == ()


def test_a_figure_that_does_not_hold_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A lost row and a lost event each make a sentence."""
    lost_row = replace(REPORT, partitions=(PartitionAccount("0", 10, 7, 2, 0, 0), REPORT.partitions[1]))
    assert lost_row.failures == ("partition 0: 7 rows + 2 dead letters ≠ 10 events",)
    lost_event = replace(REPORT, flights_expected=16)
    assert lost_event.failures == ("15 events in the hub, and 16 flights",)
    assert "DOES NOT HOLD" in _text(lost_row, capsys)


def test_json_has_the_promised_names() -> None:
    """Scripts rely on these keys."""
    summary = json.loads(json.dumps(output.summary(REPORT)))
    promised = {
        "published",
        "rows",
        "dead_letters_open",
        "dead_letters_total",
        "database",
        "data_dir",
        "crashes",
    }
    assert promised <= set(summary)
    assert summary["events_per_s"] == {"publish": 30.0, "pipeline": 5.0}
    assert summary["crashes"] == 1


def test_commands_survive_a_shell() -> None:
    """A data directory with a quote and a space in its name comes through the shell whole."""
    listed, redriven = (shlex.split(command) for command in output.follow_up_commands(REPORT))
    assert Path(listed[0]).name == "tidegate"
    assert shutil.which(listed[0]) is not None
    assert listed[1:5] == ["dlq", "list", "--database", str(REPORT.database)]
    assert redriven[redriven.index("--data-dir") + 1] == str(REPORT.data_dir)
    assert load_pipeline(redriven[-1]).name == corrected_pipeline.name


def test_a_password_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A URL that holds a password is not shown; the commands take it from the environment."""
    hidden = replace(REPORT, database=make_url("postgresql://user:secret@host/name"))
    text = _text(hidden, capsys)
    assert '--database "$TIDEGATE_DATABASE"' in text
    assert "secret" not in text
    assert "set TIDEGATE_DATABASE" in text


def test_every_table_is_there_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Carriers and routes with names, the crash, and where things lie."""
    text = _text(REPORT, capsys)
    for words in ("Frontier Airlines", "Richmond Intl", "2 of its 9 events", "/data/it's here", "Throughput"):
        assert words in text


@pytest.mark.parametrize(
    "words",
    [["--no-such-option"], ["--events-per-trigger", "0"], ["--flights-max", "x"], ["--json", "--table"]],
    ids=" ".join,
)
def test_invalid_usage_is_exit_code_2(words: list[str]) -> None:
    """Nothing is started for options that are not there, out of range, or mutually exclusive."""
    with pytest.raises(SystemExit) as left:
        parser().parse_args(words)
    assert left.value.code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailedError(""), 4),
        (DatabaseUnavailableError(""), 3),
        (InvalidArgumentError(""), 2),
        (AlreadyExistsError(""), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_line_and_an_exit_code(
    error: TidegateError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts tell by the code what went wrong; `tidegate` itself has the same codes."""

    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as left:
        run_command(fail)
    assert left.value.code == code
    assert capsys.readouterr().err == f"Error: {error}\n"


def test_what_is_quoted_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The end of a child's log is shown, and may hold an event's words."""
    quoted = "ends:\nbad value\t\x1b]0;title\x07\x9b2J\u202e\r."
    shown = "ends:\nbad value\t\\x1b]0;title\\x07\\x9b2J\\u202e\\r."

    def fail() -> None:
        raise TidegateError(quoted)

    with pytest.raises(SystemExit):
        run_command(fail)
    assert capsys.readouterr().err == f"Error: {shown}\n"
    Screen().note("\x1b[2J[bold]")
    assert capsys.readouterr().err == "\\x1b[2J[bold]\n"
    print_table("Reasons", [{"reason": "\x1b[2J", "events": 1}])
    assert "\\x1b[2J" in capsys.readouterr().out


@pytest.mark.slow
def test_without_spark_the_demo_says_what_to_install() -> None:
    """A base installation has no Spark: one line says what is missing, not a traceback."""
    script = (
        "import runpy, sys\n"
        "sys.modules['pyspark'] = None\n"
        "sys.argv = ['flights']\n"
        "runpy.run_module('examples.flights', run_name='__main__')\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert 'pip install -e ".[service,spark,demos]"' in found.stderr
    assert "Traceback" not in found.stderr
