"""Typed values from any thread; msgspec alone crashes the process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate

_RACE = """
import dataclasses, sys, threading, types
from tidegate.model.validation import from_json, from_values

sys.setswitchinterval(1e-6)
DATA = b'{"inner": {"a": {"number": 1}, "b": {"number": null}}}'
VALUES = {"inner": {"a": {"number": 1}, "b": {"number": None}}}
SOURCE = '''
@dataclasses.dataclass
class Inner:
    number: "int | None"
    text: "str | None" = None
    numbers: "list[int] | None" = None

@dataclasses.dataclass
class Outer:
    inner: "dict[str, Inner]"
'''
for number in range(300):
    module = types.ModuleType(f"made{number}")
    sys.modules[module.__name__] = module
    vars(module)["dataclasses"] = dataclasses
    exec(SOURCE, vars(module))
    barrier = threading.Barrier(3)

    def decode(work, value):
        barrier.wait()
        assert work(value, module.Outer).inner["a"].number == 1

    works = [(from_json, DATA), (from_values, VALUES), (from_json, DATA)]
    threads = [threading.Thread(target=decode, args=work) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


@pytest.mark.slow
def test_threads_that_meet_a_class_first_at_the_same_time_do_not_crash() -> None:
    """Classes are made for it, because what is known about one stays."""
    subprocess.run([sys.executable, "-c", _RACE], check=True, timeout=120)


def test_classes_are_decoded_there_alone() -> None:
    """Elsewhere msgspec is given builtin types only, of which it finds out nothing."""
    package = Path(tidegate.__file__).parent
    calls = re.compile(
        r"msgspec\.(?:json\.decode\([^\n]*type=|convert\([^,\n]*, )(?!dict\[|Literal\[|_Place\b)(\w+)"
    )
    found = {
        f"{path.relative_to(package)}: {name}"
        for path in package.rglob("*.py")
        if path != package / "model" / "validation.py"
        for name in calls.findall(path.read_text())
    }
    assert not found
