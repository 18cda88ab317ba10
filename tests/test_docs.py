"""The documents say what the program does: every command, option, setting and promised file is in them."""

from __future__ import annotations

import dataclasses
import importlib
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.docs_support import PAGES, ROOT, environment_of, write_programs
from tools.reference.api import API_PAGES, page_entries
from tools.reference.pages import iter_commands, reference_pages
from tools.reference.source import exported_entries

from tidegate.cli.app import app
from tidegate.cli.hosts.metrics import HOST_METRICS, RESTARTS
from tidegate.cli.hosts.metrics import PREFIX as HOST_METRIC_PREFIX
from tidegate.gateway.metrics import METRICS
from tidegate.gateway.metrics import PREFIX as METRIC_PREFIX
from tidegate.model import errors, limits
from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.model.hub_settings import HUB_SETTINGS
from tidegate.server.declared import DeclaredEventHub, DeclaredNamespace, DeclaredPolicy
from tidegate.server.ready import ReadyInformation
from tidegate.server.settings import ServerSettings
from tidegate.spark.capture.options import CaptureOptions
from tidegate.spark.file_sink.options import FileSinkOptions
from tidegate.spark.hub_sink.options import HubSinkOptions
from tidegate.spark.progress.metrics import PIPELINE_METRICS
from tidegate.spark.progress.metrics import PREFIX as PIPELINE_METRIC_PREFIX
from tidegate.spark.runtime.options import option_names
from tidegate.spark.source.options import SourceOptions
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")

COMMANDS = dict(iter_commands(app))
_NO_VARIABLES = {"TIDEGATE_STOPPED"}
"""Names of other things that look like an environment variable's."""


@pytest.mark.slow
def test_the_generated_pages_are_up_to_date() -> None:
    """They are what the code says that they are made of; `make docs` renews them."""
    made = reference_pages()
    assert made == {name: (ROOT / "docs/reference" / name).read_text(encoding="utf-8") for name in made}


def test_every_error_and_limit_is_in_the_reference() -> None:
    """No error and no quota is undocumented, whatever made the pages."""
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.TidegateError):
            assert f"`{name}`" in page, name
    page = (ROOT / "docs/reference/limits.md").read_text(encoding="utf-8")
    for name in vars(limits):
        if name.isupper():
            assert f"`{name}`" in page, name


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_and_option_is_in_the_reference(name: str) -> None:
    """No command and no option is undocumented, whatever made the page."""
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## tidegate {name}\n")[2].partition("\n## ")[0]
    assert section
    for parameter in COMMANDS[name].params:
        if not getattr(parameter, "hidden", False) and parameter.name != "help":
            for option in parameter.opts:
                assert option in section or parameter.param_type_name == "argument", option


def test_every_setting_and_ready_field_is_in_the_reference() -> None:
    """settings.md names every setting, with words, and service.md what is declared and in the ready file."""
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    for name in {field.name for field in dataclasses.fields(ServerSettings)} - {"declared"}:
        assert re.search(rf"^\| `{name}` \|.*\| \S[^|]+ \|$", page, flags=re.MULTILINE), name
    page = (ROOT / "docs/reference/service.md").read_text(encoding="utf-8")
    for values in (DeclaredNamespace, DeclaredEventHub, DeclaredPolicy, ReadyInformation):
        names = set(values.__annotations__) - {"settings"}
        for name in names | {setting.name for setting in HUB_SETTINGS}:
            assert f"`{name}`" in page, name


def test_every_metric_is_in_the_reference() -> None:
    """Of the service, of a pipeline and of hosts, by the whole name."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    names = [METRIC_PREFIX + row.name for row in METRICS]
    names += [PIPELINE_METRIC_PREFIX + row.name for row in PIPELINE_METRICS]
    names += [HOST_METRIC_PREFIX + name for name in (*(row.name for row in HOST_METRICS), RESTARTS[0])]
    for name in names:
        assert f"| `{name}` |" in page, name


OPTIONS = {
    "spark-source.md": option_names(SourceOptions),
    "spark-sinks.md": (*option_names(HubSinkOptions), *option_names(FileSinkOptions)),
    "spark-capture.md": option_names(CaptureOptions),
}


@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_option_of_a_spark_format_is_in_a_table_of_its_page(name: str) -> None:
    """Each in the first column of a table; the names are those that the format itself refuses others by."""
    page = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*?) \|", page, flags=re.MULTILINE)
    documented = {word for cell in cells for word in re.findall(r"`([\w.]+)`", cell)}
    assert not set(OPTIONS[name]) - documented


@pytest.mark.slow
@pytest.mark.parametrize("name", list(API_PAGES))
def test_every_public_name_has_words_and_is_on_its_page(name: str) -> None:
    """What is exported says what it is; so does each of its methods; and the page has them all."""
    page = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    entries = list(page_entries(API_PAGES[name]))
    assert entries
    for entry in entries:
        assert entry.words, f"{entry.module}.{entry.name} has no docstring"
        assert f"\n## {entry.name}\n" in page, entry.name
        for member in entry.members:
            assert member.words or member.is_field, f"{entry.name}.{member.name} has no docstring"
            first = member.text.partition("\n")[0]
            assert first in page.replace("\\|", "|"), f"{entry.name}.{member.name}"


@pytest.mark.slow
@pytest.mark.parametrize("package", ["client", "processor", "sql", "spark"])
def test_the_pages_have_what_the_package_really_exports(package: str) -> None:
    """The page is made from the source's text; the package agrees that these are its names."""
    exported = importlib.import_module(f"tidegate.{package}").__all__
    assert [entry.name for entry in exported_entries(package)] == list(exported)


@pytest.mark.slow
def test_every_environment_variable_is_in_the_reference() -> None:
    """What the program reads from its environment is said where people look things up."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        found |= set(re.findall(r"\bTIDEGATE_[A-Z_]+\b", path.read_text(encoding="utf-8")))
    pages = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/reference/*.md"))
    for name in found - _NO_VARIABLES:
        assert name in pages, name


def _shell_commands(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.slow
def test_commands_in_the_documents_exist(page: Path) -> None:
    """Every `tidegate …` and `make …` of a shell example is a command, with options that it has."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in _shell_commands(page.read_text(encoding="utf-8")):
        for part in line.split(" | "):
            words = shlex.split(part, comments=True)
            if words[:1] == ["make"]:
                assert f"\n{words[1]}:" in makefile, line
            if words[:1] == ["tidegate"]:
                _check_command(words[1:], line)


def _check_command(words: list[str], line: str) -> None:
    name = next((n for n in (" ".join(words[:2]), " ".join(words[:1])) if n in COMMANDS), None)
    assert name is not None, line
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    known |= {option for parameter in COMMANDS[name].params for option in parameter.secondary_opts}
    for word in words:
        if word.startswith("--"):
            assert word in known, f"{word} in: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.slow
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of this repository leads to a file, and one to a heading to a heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, target


def _anchor(heading: str) -> str:
    """As GitHub makes it, and MkDocs by the slugify of mkdocs.yml."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_licence_is_there() -> None:
    """The licence that pyproject.toml names is the one in the file."""
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


# --- the programs in the pages run ------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A directory with the programs of all pages in it."""
    return write_programs(tmp_path)


FIRST_PROGRAMS = (
    ["first_program.py"],
    ["official_sdk.py"],
    ["our_client.py"],
    ["script.py"],
    ["follow.py"],
    [str(ROOT / "examples/checkpoint_every_n.py"), "telemetry", "0"],
)


@pytest.mark.slow
def test_the_first_programs_show_events_and_end_at_ctrl_c(workplace: Path) -> None:
    """Pasted, they send an event, or read what others sent, and wait for more; none ends in a traceback."""
    with HubService() as service:
        service.create_hub("telemetry", partition_count=1)
        for words in FIRST_PROGRAMS:
            with subprocess.Popen(
                [sys.executable, *words],
                cwd=workplace,
                env=environment_of(service),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as process:
                assert process.stdout is not None
                assert "celsius" in process.stdout.readline().decode(), words
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=60)
            assert (process.returncode, errors.decode()) == (0, ""), words


@pytest.mark.spark
@pytest.mark.programs
@pytest.mark.timeout(600)
def test_the_tutorials_pipelines_run(workplace: Path) -> None:
    """Function and DataFrame of the tutorial, pasted, give the same rows, and put the same event aside."""
    readings = ['{"device": "a1", "celsius": 21.5}', '{"device": "b2"}', '{"device": "c3", "celsius": 19}']
    with HubService() as service:
        service.create_hub("telemetry", partition_count=4)
        words = [sys.executable, "-m", "tidegate.cli"]
        environment = environment_of(service)
        subprocess.run(
            [*words, "send", "telemetry", "--key", ".device"],
            env=environment,
            input="\n".join(readings).encode(),
            check=True,
            capture_output=True,
        )
        for program, database in (
            ("run_function.py", "readings.db"),
            ("run_dataframe.py", "readings_by_dataframe.db"),
        ):
            started = time.monotonic()
            found = subprocess.run(
                [sys.executable, program], cwd=workplace, env=environment, capture_output=True, check=False
            )
            assert found.returncode == 0, found.stderr.decode()
            listed = subprocess.run(
                [*words, "dlq", "list", "--database", f"sqlite:///{database}", "--nl"],
                cwd=workplace,
                env=environment,
                capture_output=True,
                check=True,
            )
            assert listed.stdout.count(b"\n") == 1, f"{program} after {time.monotonic() - started:.0f} s"
            assert _rows(workplace / database) == [("a1", 21.5), ("c3", 19.0)]


def _rows(database: Path) -> list[tuple[str, float]]:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT device, celsius FROM readings ORDER BY device").fetchall()


# --- examples ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sequence-number", "offset", "time"])
def test_the_example_goes_on_from_its_checkpoint(kind: str, tmp_path: Path) -> None:
    """checkpoint_every_n.py, ended between two checkpoints, repeats what it must and skips nothing."""
    example = ROOT / "examples/checkpoint_every_n.py"
    with HubService() as service:
        service.create_hub("telemetry", partition_count=1)
        lines = "\n".join(str(number) for number in range(250)).encode()
        words = [sys.executable, "-m", "tidegate.cli", "send", "telemetry"]
        subprocess.run(words, env=environment_of(service), input=lines, check=True, capture_output=True)

        def run(*options: str) -> list[int]:
            found = subprocess.run(
                [sys.executable, str(example), "telemetry", "0", *options],
                cwd=tmp_path,
                env=environment_of(service),
                check=True,
                capture_output=True,
            )
            numbers = [int(line.split()[0]) for line in found.stdout.splitlines()]
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            return numbers

        assert run("--events", "230") == list(range(230))
        again = run("--events", "50", "--from", kind)
    if kind == "time":
        assert again[0] <= 200
    else:
        assert again[0] == 200


def test_the_example_prints_any_body(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is not UTF-8 would end each start at the same event; an escape character steers a terminal."""
    example = importlib.import_module("examples.checkpoint_every_n")
    example.process(ReceivedEvent("0", 7, "7", 0, contents=EventContents(b"\xff\x1b[2J")))
    assert capsys.readouterr().out == "7 b'\\xff\\x1b[2J'\n"


# --- troubleshooting --------------------------------------------------------------------------------------


def test_the_messages_that_troubleshooting_quotes_are_in_the_code() -> None:
    """A reader searches for what a program said: a message that was reworded is not found."""
    page = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (?!you see)(.*?) \|", page, flags=re.MULTILINE)
    quoted = [
        words.rstrip(" …") for cell in cells for words in re.findall(r"`([^`]+)`", cell) if " " in words
    ]
    assert len(quoted) > 10
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for words in quoted:
        assert words in code, words
