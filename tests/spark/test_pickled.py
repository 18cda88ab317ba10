"""What a driver sends to tasks as the value of an option."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidegate.spark.runtime.pickled import pickled, unpickled

_ELSEWHERE = """
import sys
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.pickled import unpickled
try:
    print(unpickled(sys.stdin.read())(20))
except InvalidArgumentError as error:
    print(error)
"""


@pytest.fixture
def stray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that no worker finds by its name."""
    path = tmp_path / "stray_steps.py"
    path.write_text("def add(number, more=1):\n    return number + more\n")
    spec = importlib.util.spec_from_file_location("stray_steps", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "stray_steps", module)
    spec.loader.exec_module(module)
    return module


def _run_elsewhere(text: str) -> str:
    words = [sys.executable, "-c", _ELSEWHERE]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout.strip()


def test_the_same_object_for_the_same_text() -> None:
    """So that what a function keeps lives as long as the worker."""
    text = pickled({"limit": 5}, None, subject="The plan")
    assert unpickled(text) == {"limit": 5}
    assert unpickled(text) is unpickled(text)


@pytest.mark.slow
def test_a_function_of_a_module_that_workers_do_not_find_brings_it_along(stray: Any) -> None:
    """As it is, and with arguments filled in."""
    assert _run_elsewhere(pickled(stray.add, stray.add, subject="It")) == "21"
    step = partial(partial(stray.add), more=2)
    assert _run_elsewhere(pickled(step, step, subject="It")) == "22"


@pytest.mark.slow
def test_a_module_that_is_missing_is_named(stray: Any) -> None:
    """A function that nobody named as the user's own: its module stays behind."""
    said = _run_elsewhere(pickled(stray.add, None, subject="It"))
    assert said.startswith("Spark's worker has no module 'stray_steps', which a function of the query needs.")
