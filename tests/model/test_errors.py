"""Errors as text."""

from __future__ import annotations

import traceback

import pytest

from tidegate.model.errors import loggable, text_of, traceback_of


def _error() -> ValueError:
    try:
        try:
            raise KeyError("first")
        except KeyError as cause:
            raise ValueError("second") from cause
    except ValueError as error:
        return error


def test_a_traceback_is_pythons() -> None:
    """With its causes."""
    error = _error()
    assert traceback_of(error) == "".join(traceback.format_exception(error))
    assert loggable(error) is error


def test_a_traceback_that_python_cannot_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 and later raise while they look for names similar to an unknown one, in causes as well."""

    def fail(*arguments: object, **named: object) -> None:
        "\ud800".encode()

    error = _error()
    with monkeypatch.context() as patch:  # pytest itself prints errors
        patch.setattr(traceback.TracebackException, "__init__", fail)
        lines, logged = traceback_of(error).splitlines(), loggable(error)
    assert "in _error" in lines[0]
    assert lines[-1] == "ValueError: second"
    assert logged is None


def test_an_error_without_words_has_its_class() -> None:
    """Whatever it does when it is asked for them."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert (text_of(MuteError()), text_of(ValueError()), text_of(ValueError("x"))) == (
        "MuteError",
        "ValueError",
        "x",
    )
