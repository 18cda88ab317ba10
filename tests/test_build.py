"""The package is built with its extension or without it, and says its version and where it comes from."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from importlib import import_module
from pathlib import Path
from sysconfig import get_config_var
from typing import Any

import pytest
from hatchling.bridge.app import Application
from hatchling.builders.sdist import SdistBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

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


def _repository(place: Path) -> None:
    """A clone without history, with what decides about version and metadata."""
    place.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, place)


def _git(place: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=place, check=True, capture_output=True)


def _metadata(place: Path) -> ProjectMetadata[Any]:
    return ProjectMetadata(str(place), PluginManager())


@pytest.mark.slow
def test_the_version_is_that_of_the_tag(tmp_path: Path) -> None:
    """A clone without a tag is a version before the first; files without a history build as well."""
    place = tmp_path / "clone"
    _repository(place)
    assert _metadata(place).version == "0.1.dev0"
    _git(place, "init", "-q")
    _git(place, "add", ".")
    _git(place, "commit", "-q", "-m", "first")
    assert re.fullmatch(r"0\.1\.dev1\+g[0-9a-f]+", _metadata(place).version)
    _git(place, "tag", "v1.2.3")
    assert _metadata(place).version == "1.2.3"
    _git(place, "commit", "-q", "--allow-empty", "-m", "second")
    assert re.fullmatch(r"1\.2\.4\.dev1\+g[0-9a-f]+", _metadata(place).version)


@pytest.mark.filterwarnings("ignore:write_version_to_path called without:DeprecationWarning")  # hatch-vcs 0.5
@pytest.mark.slow
def test_an_sdist_keeps_its_version_and_its_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is built where there is neither a repository nor its address."""
    place = tmp_path / "clone"
    _repository(place)
    (place / "src/tidegate").mkdir(parents=True)
    (place / "src/tidegate/__init__.py").touch()
    _git(place, "init", "-q")
    _git(place, "add", ".")
    _git(place, "commit", "-q", "-m", "first")
    _git(place, "tag", "v1.2.3")
    monkeypatch.setenv(hatch_build.REPOSITORY, "https://example.org/tidegate")
    (archive,) = SdistBuilder(str(place), app=Application()).build(directory=str(tmp_path / "dist"))
    monkeypatch.delenv(hatch_build.REPOSITORY)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    first, again = (_metadata(found).core for found in (place, tmp_path / "tidegate-1.2.3"))
    assert _metadata(tmp_path / "tidegate-1.2.3").version == "1.2.3"
    assert not first.urls
    assert again.urls["Security"] == "https://example.org/tidegate/blob/v1.2.3/SECURITY.md"
    assert "](https://example.org/tidegate/raw/v1.2.3/docs/images/" in again.readme


@pytest.mark.parametrize("address", ["", "https://example.org/owner/tidegate"])
def test_no_link_of_the_description_needs_the_repository(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an address links and pictures lead there, to files that exist; without one they are text."""
    monkeypatch.setenv(hatch_build.REPOSITORY, address)
    place = tmp_path / "files"
    _repository(place)
    targets = re.findall(r"\]\(([^)]*)\)", _metadata(place).core.readme)
    if not address:
        assert not [target for target in targets if not target.startswith("https://")]
        return
    ours = [target.split("/HEAD/")[1] for target in targets if target.startswith(address)]
    assert "SECURITY.md" in ours
    assert len(ours) == len(targets)
    assert all((ROOT / target.partition("#")[0]).exists() for target in ours)


@pytest.mark.parametrize("address", ["http://example.org/a/b", "https://user:key@example.org/a/b", "here"])
def test_an_address_that_is_not_public_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in an address would be published with the metadata."""
    monkeypatch.setenv(hatch_build.REPOSITORY, address)
    _repository(tmp_path / "files")
    with pytest.raises(ValueError, match="must be https"):
        _ = _metadata(tmp_path / "files").core
