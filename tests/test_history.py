"""History that can be read: commit subjects, and the changelog's fragments."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[1]
_FIRST: Final = "f78c91d"
"""The first commit that the rule holds for."""
_EXCEPTIONS: Final = {"4ca10d6d8f1a1dffb5bd15d3e6b409cd62cdb75e"}
"""Landed before the check did: generated pages, no body."""
_SUBJECT_MAX: Final = 72
_SUBJECT: Final = re.compile(r"[a-z][a-z0-9_.]*(, [a-z][a-z0-9_.]*)*: \S")
_FRAGMENT: Final = re.compile(r"[a-z0-9-]+\.(added|changed|deprecated|removed|fixed|security)\.md")
_FRAGMENT_MAX: Final = 300


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _commits() -> list[tuple[str, str, str]]:
    """(hash, subject, body) of each commit since the rule; skips outside a complete clone."""
    try:
        text = _git("log", "--no-merges", "--format=%H%x00%s%x00%b%x01", f"{_FIRST}~1..HEAD")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"Commit subjects are not checked: no git, or no complete clone ({error}).")
    parts = [commit.strip().split("\0") for commit in text.split("\1")]
    return [(part[0], part[1], part[2]) for part in parts if len(part) == 3]


def problem_of(subject: str, body: str) -> str | None:
    """What is wrong with a commit message; None: nothing."""
    if len(subject) > _SUBJECT_MAX:
        return f"the subject has {len(subject)} characters, {_SUBJECT_MAX} at most"
    if not _SUBJECT.match(subject):
        return "the subject must be `area: effect`"
    if not body.strip():
        return "the body must give cause, choice and figures"
    return None


def test_commit_messages_have_area_effect_and_body() -> None:
    """Protects readers of the history from subjects that do not fit a line, and commits without a reason."""
    wrong = {hash_: problem_of(subject, body) for hash_, subject, body in _commits()}
    assert {key for key, problem in wrong.items() if problem} <= _EXCEPTIONS, wrong


@pytest.mark.parametrize(
    ("subject", "body", "part"),
    [
        ("sql: " + "x" * 68, "Why.", "73 characters"),
        ("Rows are written once", "Why.", "area: effect"),
        ("sql:no space", "Why.", "area: effect"),
        ("sql: rows are written once", " \n", "body"),
    ],
)
def test_bad_commit_messages_are_found(subject: str, body: str, part: str) -> None:
    """Protects the check above from finding nothing."""
    assert part in (problem_of(subject, body) or "")


def test_fragments_have_known_kinds_and_fit_two_lines() -> None:
    """Protects the changelog: one file per change, with a name that the tool knows, and short."""
    for path in (_ROOT / "changes").iterdir():
        if path.name == "README.md":
            continue
        assert _FRAGMENT.fullmatch(path.name), f"changes/README.md says how to name {path.name}"
        assert 0 < len(path.read_text().strip()) <= _FRAGMENT_MAX, path.name
