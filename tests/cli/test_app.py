"""The command line as a whole: help with an example everywhere, exit codes, a quick start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.cli.support import run_tidegate
from tools.reference.pages import iter_commands

from tidegate import __version__
from tidegate.cli import app as program
from tidegate.cli.app import app
from tidegate.cli.shell.contents import ContentsGroup
from tidegate.cli.shell.render import remark
from tidegate.model.errors import PartitionStoppedError

COMMANDS = dict(iter_commands(app))


def test_the_commands_that_scripts_rely_on() -> None:
    """These names are promised; none may vanish or be renamed."""
    promised = {
        "serve", "hub create", "hub list", "hub show", "hub delete", "send", "receive", "dlq list",
        "dlq show", "dlq redrive", "dlq discard", "check", "version",
    }  # fmt: skip
    assert promised <= set(COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_shows_an_example_of_itself(name: str) -> None:
    """Help without an example leaves people guessing."""
    text = COMMANDS[name].help or ""
    assert "Example" in text
    assert f"tidegate {name}" in text


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_option_is_explained(name: str) -> None:
    """An option without words is one that only its author can use."""
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", None) or parameter.name == "help", parameter.name


@pytest.mark.slow
def test_version() -> None:
    """``--version`` and ``version`` say the same."""
    found = run_tidegate("version", "--json", environment={})
    assert found.json() == {"tidegate": __version__, "python": sys.version.split()[0]}
    assert run_tidegate("--version", environment={}).out.strip() == __version__


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["hub", "create", "x", "--partitions", "many"], 2),
        (["no-such-command"], 2),
        (["hub", "list", "--json", "--csv"], 2),
        (["receive", "x", "--from", "yesterday"], 2),
        (["dlq", "list"], 2),
        (["hub", "list"], 3),
        (["check", "no/such/directory"], 1),
    ],
)
def test_exit_codes(words: list[str], code: int, lonely: dict[str, str]) -> None:
    """Scripts tell wrong words (2), no service (3) and a failed operation (1) apart; each says why."""
    found = run_tidegate(*words, environment=lonely)
    assert found.code == code, found.err
    assert found.err
    assert not found.out
    assert "Traceback" not in found.err


@pytest.mark.slow
def test_a_service_that_is_not_there_is_told_within_seconds(lonely: dict[str, str]) -> None:
    """Somebody waits: no minute of retries before `could not reach`, and the key is not shown."""
    string = (
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=x;SharedAccessKey=s3cret;UseDevelopmentEmulator=true"
    )
    for words in (["hub", "list"], ["receive", "x"], ["send", "x"]):
        found = run_tidegate(*words, "--connection-string", string, environment=lonely, timeout_s=20)
        assert found.code == 3, found.err
        assert "127.0.0.1:1" in found.err
        assert "s3cret" not in found.err


@pytest.mark.slow
def test_help_imports_nothing_heavy() -> None:
    """``tidegate --help`` answers at once: no Spark, SQL, event loop or drawing library is loaded for it."""
    script = (
        "import sys\n"
        "sys.argv = ['tidegate', '--help']\n"
        "from tidegate.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'pyspark', 'pyarrow', 'sqlalchemy', 'asyncio', 'rich', 'cryptography', 'starlette'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "loaded: []"


def test_a_command_imports_no_other() -> None:
    """Each start of ``tidegate`` waits for the modules of its own command only: a quarter less."""
    script = (
        "import sys\n"
        "sys.argv = ['tidegate', 'hub', '--help']\n"
        "from tidegate.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith('tidegate.cli.entities.')))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "tidegate.cli.entities.hub"


@pytest.mark.slow
def test_the_help_is_a_table_of_contents() -> None:
    """Every command is under one heading, with one whole sentence on its line; so is each group's."""
    shown = run_tidegate("--help", environment={"COLUMNS": "80"}).out
    sections = shown.partition("Show this message and exit.\n")[2].split("Exit codes:")[0]
    lines = [line for line in sections.splitlines() if line.strip()]
    headings = [line for line in lines if not line.startswith(" ")]
    assert len(headings) > 3
    assert all(heading.endswith(":") for heading in headings)
    names = [line.split()[0] for line in lines if line.startswith(" ")]
    assert len(names) == len(set(names))
    assert set(names) == {name.partition(" ")[0] for name in COMMANDS}
    groups = sorted({name.partition(" ")[0] for name in COMMANDS if " " in name})
    for text in (shown, *(help_of(group) for group in groups)):
        listed = text.partition("message and exit.")[2]
        assert "..." not in listed
        assert not [line for line in listed.splitlines() if line.startswith("     ")]


def help_of(group: str) -> str:
    """A group's help, made in this process."""
    return CliRunner().invoke(app, [group, "--help"], prog_name="tidegate", env={"COLUMNS": "80"}).output


@pytest.mark.parametrize("name", list(COMMANDS))
def test_who_takes_a_connection_string_takes_a_profile(name: str) -> None:
    """A service is named in one way everywhere, and a database, which a profile holds."""
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    is_needed = {"--connection-string", "--database"} & options and name not in ("profile save", "serve")
    assert ("--profile" in options) == bool(is_needed)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_who_shows_results_shows_them_in_every_format(name: str) -> None:
    """All of --table --json --nl --csv, or none; what is no list of records has two of them. `send` reads
    what --nl writes."""
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    found = options & {"--table", "--json", "--nl", "--csv"}
    few = {"pipeline stop": {"--table", "--json"}, "top": {"--table", "--json"}, "send": {"--nl"}}
    assert found in ((few[name],) if name in few else (set(), {"--table", "--json", "--nl", "--csv"}))


@pytest.mark.slow
def test_no_arguments_shows_help(tmp_path: Path) -> None:
    """A lone ``tidegate`` says what it can do, and is a usage error for scripts."""
    found = run_tidegate(environment={})
    assert "Usage: tidegate" in found.out + found.err
    assert found.code == 2


def test_errors_and_remarks_do_not_steer_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may quote an event, which anyone with Send can write: a pipeline that stops names its reason."""

    def stop(**_: object) -> None:
        raise PartitionStoppedError("partition 0 number 7: \x1b]0;mine\x07\r\x9b2J of\ntwo lines.")

    monkeypatch.setattr(program, "app", stop)
    with pytest.raises(SystemExit):
        program.run()
    shown = "\\x1b]0;mine\\x07\\r\\x9b2J of\ntwo lines.\n"
    assert capsys.readouterr().err == f"Error: partition 0 number 7: {shown}"
    remark("Skipped \x1b[8m")
    assert capsys.readouterr().err == "Skipped \\x1b[8m\n"


def test_logs_and_tracebacks_do_not_steer_a_terminal() -> None:
    """A command that sets up no log writes the client's warnings by Python's handler of last resort. They may
    quote a service, and an unexpected error anything."""
    script = (
        "import logging\n"
        "from tidegate.cli import app\n"
        "def fail(**_):\n"
        "    logging.getLogger('tidegate.client').warning('expired: %s', '\\x1b]0;mine\\x07')\n"
        "    raise RuntimeError('\\x1b[2J of\\ntwo lines')\n"
        "app.app = fail\n"
        "app.run()\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    first, *_, last_but_one, last = found.stderr.splitlines()
    assert (found.returncode, first) == (1, "expired: \\x1b]0;mine\\x07")
    assert (last_but_one, last) == ("RuntimeError: \\x1b[2J of", "two lines")
    assert "Traceback (most recent call last):" in found.stderr


@pytest.mark.parametrize(("answer", "code"), [(KeyboardInterrupt, 130), ("n", 1)])
def test_ctrl_c_at_a_question_is_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, answer: str | type[KeyboardInterrupt], code: int
) -> None:
    """Not the code of a failure, as the answer "no" has it."""

    def asked(_: str) -> str:
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr(click.termui, "visible_prompt_func", asked)
    command = click.Command("ask", callback=lambda: click.confirm("Delete it?", abort=True))
    with pytest.raises(SystemExit) as ended:
        ContentsGroup("tidegate", contents=(), commands=[command]).main(["ask"])
    assert ended.value.code == code
