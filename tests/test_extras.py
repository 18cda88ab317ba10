"""An installation without extras is client, hosts and command line; errors name the extra that is missing."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.floors import PROJECT_FILE, ROOT, read_project

from tidegate.extras import EXTRAS, install_step, not_installed
from tidegate.testing.hub import HubService

_PROJECT = read_project(PROJECT_FILE.read_text(encoding="utf-8"))
_MAY_IMPORT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("server", "gateway", "console", "capture", "broker", "storage"), ("service",)),
    "tracing.py": ("otel",),
    "columns": ("arrow",),
    "client": ("arrow",),
    "processor": ("sql", "azure"),
    "sql": ("sql", "arrow", "spark", "mariadb"),
    "spark": ("spark",),
    "cli": ("spark",),
}
"""Package of src → extras that it may import beside the base; the others: the base only."""
_OTHERS = {
    "uvloop": "asyncio's own event loop does without it",
    "azure.eventhub": "the user's own dependency",
    "py4j": "pyspark requires an exact version of it",
    "pytest": "tidegate.testing.plugin is loaded by pytest",
}
_BASE = f"""
import sys
for name in {sorted({*EXTRAS, "adlfs", "azure", "uvloop"})!r}:
    sys.modules[name] = None
"""
"""Makes a Python in which no extra is installed."""


def _names(requirements: tuple[Requirement, ...]) -> set[str]:
    return {canonicalize_name(each.name) for each in requirements}


def _imported(path: Path) -> set[str]:
    """What a module imports, at its top or later, by whole names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            found.add(node.module)
    return found


@pytest.mark.slow
def test_a_package_imports_what_its_extras_have() -> None:
    """An import that belongs to another extra would break an installation that lacks it."""
    providers = importlib.metadata.packages_distributions()
    for path in sorted((ROOT / "src/tidegate").rglob("*.py")):
        package = path.relative_to(ROOT / "src/tidegate").parts[0]
        allowed = _names(_PROJECT.extras[""]).union(
            *(_names(_PROJECT.extras[extra]) for extra in _MAY_IMPORT.get(package, ()))
        )
        for name in _imported(path):
            module = name.partition(".")[0]
            if module in sys.stdlib_module_names or module == "tidegate" or name.startswith(tuple(_OTHERS)):
                continue
            found = {canonicalize_name(each) for each in providers.get(module, ())}
            assert found & allowed, f"{path.name} imports {name}"


@pytest.mark.slow
def test_each_package_of_an_extra_is_in_the_table_with_that_extra() -> None:
    """The command that an error shows installs what is missing."""
    providers = importlib.metadata.packages_distributions()
    for module, extra in EXTRAS.items():
        found = {canonicalize_name(name) for name in providers[module]}
        assert module == "py4j" or found & _names(_PROJECT.extras[extra]), module
    base = _names(_PROJECT.extras[""])
    known = {*EXTRAS, "azure", *sys.stdlib_module_names, *_OTHERS, "tidegate"}
    for path in (ROOT / "src").rglob("*.py"):
        for module in {name.partition(".")[0] for name in _imported(path)} - known:
            assert base & {canonicalize_name(each) for each in providers[module]}, module


def _run(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _BASE + code, *words],
        env=environment, input="one event\n", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def _tidegate(*words: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from tidegate.cli import main\nmain()"
    return _run(code, *words, TIDEGATE_CONFIG_DIR=str(directory), HOME=str(directory), **environment)


@pytest.mark.slow
def test_client_and_command_line_need_no_extra(hub_service: HubService, tmp_path: Path) -> None:
    """A hub is created, an event sent and received; the doctor skips what is missing."""
    name = "without-extras"
    for words in (
        ("hub", "create", name, "--partitions", "1"),
        ("send", name),
        ("receive", name, "--count", "1", "--body"),
        ("hub", "list"),
        ("host", "--help"),
        ("token", "sas", "--claim", "Listen", "--life", "1h"),
    ):
        found = _tidegate(
            *words, directory=tmp_path, TIDEGATE_CONNECTION_STRING=hub_service.connection_string
        )
        assert found.returncode == 0, found.stderr
        assert words[0] != "receive" or found.stdout == "one event\n"
    names = "EventHubConsumer, EventHubProducer, EventProcessorHost, DirectoryStore, MemoryStore"
    found = _run(f"from tidegate import {names}")
    assert found.returncode == 0, found.stderr
    words = ("doctor", "--json", "--database", "sqlite:///none.db", "--data-dir", str(tmp_path))
    found = _tidegate(*words, directory=tmp_path, TIDEGATE_CONNECTION_STRING=hub_service.connection_string)
    records = {each["check"]: each for each in json.loads(found.stdout)}
    assert records["service"]["result"] == "ok"
    assert records["database"]["result"] == "skipped"
    assert "[sql]" in records["database"]["found"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("serve --ephemeral", "service"),
        ("check .", "service"),
        ("dlq list --database sqlite:///none.db", "sql"),
        ("audit hub --table t --database sqlite:///none.db", "sql"),
        ("pipeline run absent.py:pipeline", "spark"),
        ("spark package", "spark"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(words: str, extra: str, tmp_path: Path) -> None:
    """In one line, with the command that adds it."""
    found = _tidegate(*words.split(), directory=tmp_path)
    assert found.returncode == 1, found.stderr
    assert re.fullmatch(rf"Error: .*\bpip install .*\[{extra}\].*\n", found.stderr), found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("from tidegate import Database", "sql"),
        ("from tidegate import run_pipeline", "spark"),
        ("from tidegate.spark import LedgerSink", "spark"),
        ("import tidegate.testing.event_hub", "service"),
        ("import tidegate.processor.stores.blob", "azure"),
    ],
)
def test_a_name_tells_the_extra_that_it_needs(statement: str, extra: str) -> None:
    """It stays an ImportError, which programs may catch."""
    found = _run(f"try:\n    {statement}\nexcept ImportError as error:\n    print(error)")
    assert re.search(rf"needs the package \w+\. Run: pip install .*\[{extra}\]", found.stdout), found


def test_a_module_that_no_extra_has_is_an_ordinary_error() -> None:
    """A mistake of the user's program is not mistaken for a missing extra."""
    error = ModuleNotFoundError("No module named 'colour'", name="colour")
    with pytest.raises(ModuleNotFoundError) as caught:
        not_installed(error, "This")
    assert caught.value is error


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": "file:///w/tidegate-1-py3-none-any.whl", "archive_info": {}},
            'pip install "tidegate[sql,arrow] @ file:///w/tidegate-1-py3-none-any.whl"',
        ),
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, 'pip install -e "/a b[sql,arrow]"'),
        (None, 'pip install "tidegate[sql,arrow]"'),
    ],
)
def test_the_command_names_where_tidegate_came_from(
    origin: dict[str, object] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel, a checkout, or a package index."""

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed())
    assert install_step("sql", "arrow") == f"Run: {command}"


_FROM_THE_INDEX = re.compile(
    r"\b(?:pip3?|pipx|uv)\b[^\n]*\b(?:install|add|run)\b[^\n]*[ '\"]tidegate"
    r"(?=[\[ '\"`]|$)(?!\[[^\]]*\] @)",
    re.MULTILINE,
)


@pytest.mark.slow
def test_nothing_says_that_a_package_index_has_tidegate() -> None:
    """Until it is published, that command would install a stranger's package."""
    assert _FROM_THE_INDEX.search("Run `pip install 'tidegate[sql]'`.")
    assert _FROM_THE_INDEX.search("pip install tidegate")
    assert not _FROM_THE_INDEX.search('pip install "tidegate[sql] @ https://example.org/tidegate.whl"')
    files = subprocess.run(
        ["git", "ls-files", "README.md", "SECURITY.md", "src", "docs", "deploy", "examples", "changes"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    texts = [ROOT / file for file in files if file.endswith((".md", ".py", ".toml", ".yaml", "file"))]
    assert len(texts) > 100
    for path in texts:
        assert not _FROM_THE_INDEX.findall(path.read_text(encoding="utf-8")), path
