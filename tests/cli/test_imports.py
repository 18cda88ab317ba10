"""Imports of much at once."""

from __future__ import annotations

import gc

import pytest

from tidegate.cli.shell.imports import collections_paused


def _fail_to_import() -> None:
    with collections_paused():
        assert not gc.isenabled()
        raise ImportError


def test_garbage_is_collected_again_after_them() -> None:
    """Also if one fails."""
    with pytest.raises(ImportError):
        _fail_to_import()
    assert gc.isenabled()
