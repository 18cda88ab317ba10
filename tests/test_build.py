"""The package is built with its extension or without it; never with one of an earlier build."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from sysconfig import get_config_var
from typing import Any

import pytest
from hatchling.bridge.app import Application

hatch_build: Any = import_module("hatch_build")  # untyped, as Cython is
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("name", "value"), [(hatch_build.WITHOUT, "1"), ("CC", "/nonexistent")])
@pytest.mark.slow
def test_an_extension_that_is_not_built_is_not_loaded(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is not wanted or cannot be compiled: an older one does what the code once did."""
    source = tmp_path / hatch_build.SOURCE
    source.parent.mkdir(parents=True)
    shutil.copy2(ROOT / hatch_build.SOURCE, source)
    older = source.with_suffix(get_config_var("EXT_SUFFIX"))
    older.touch()
    monkeypatch.setenv(name, value)
    build_data: dict[str, Any] = {"force_include": {}}
    unused: Any = None
    hook = hatch_build.ExtensionHook(
        str(tmp_path), {}, unused, unused, str(tmp_path), "wheel", app=Application()
    )
    hook.initialize("editable", build_data)
    assert build_data == {"force_include": {}}
    assert not older.exists()
