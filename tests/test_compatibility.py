"""The page on compatibility and the table of the log's defects promise what tests show, and nothing else."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.compatibility import AREAS, PAGE, Feature, Status, page

ROOT = Path(__file__).resolve().parent.parent
FEATURES = [feature for features in AREAS.values() for feature in features]


@cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
@pytest.mark.slow
def test_each_feature_is_shown_by_tests_that_exist(feature: Feature) -> None:
    """What is done or different names tests that exist; what is not quite so says why."""
    assert (feature.status is Status.LEFT_OUT) == (feature.tests == ())
    assert feature.why or feature.status is Status.DONE
    for test in feature.tests:
        path, separator, name = test.partition("::")
        assert separator
        assert name in _tests_of(ROOT / "tests" / path), test


def test_features_are_named_once() -> None:
    """No feature stands in two rows, where one could be forgotten."""
    names = [feature.name for feature in FEATURES]
    assert len(names) == len(set(names))


def test_every_official_sdk_is_tried() -> None:
    """Every file of tests with an official SDK stands for a row at least."""
    named = {test.partition("::")[0] for feature in FEATURES for test in feature.tests}
    files = {f"interop/{path.name}" for path in (ROOT / "tests/interop").glob("test_sdk_*.py")}
    assert files
    assert not files - named


def test_the_page_is_up_to_date() -> None:
    """It is what the table says; `make docs` renews it."""
    assert (ROOT / "docs/reference" / PAGE).read_text(encoding="utf-8") == page()


def test_each_defect_of_the_log_is_shown_by_tests_that_exist() -> None:
    """None is left out of the table in decision 15, and each names a test."""
    text = (ROOT / "docs/decisions/0015-a-log-that-proves-itself.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| D(\d+) \|.*\| (.*) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 22)]
    for number, links in rows:
        found = re.findall(r"\[`(.*?)`\]\(\.\./\.\./tests/([^)]*)\)", links)
        assert found, f"D{number}"
        for name, path in found:
            assert name in _tests_of(ROOT / "tests" / path), f"D{number}: {name}"
