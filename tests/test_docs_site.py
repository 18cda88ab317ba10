"""The site of docs/ builds without a warning, loads nothing from elsewhere, and has no dead link."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.docs_support import ROOT, build_site

pytestmark = pytest.mark.slow

_LOADING = {"src", "srcset", "poster", "data", "action", "formaction", "background", "manifest"}
"""Attributes that make a browser fetch, whatever element they are of (``a`` has none of them)."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    directory = tmp_path_factory.mktemp("site")
    build_site(ROOT / "mkdocs.yml", directory)
    return directory


class _Page(HTMLParser):
    """What a page loads, links to, and can be linked to at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self._is_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._is_style = tag == "style"
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.loads.append(values.get("href", ""))
        self.loads += [values[name] for name in _LOADING & values.keys()]
        self.loads += _loads_of_style(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._is_style:
            self.loads += _loads_of_style(data)
            self._is_style = False


def _loads_of_style(text: str) -> list[str]:
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)", text) + re.findall(r"@import\s+['\"]([^'\"]+)", text)
    return [address for address in found if not address.startswith(("data:", "#"))]


def _pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path, _read(path)


@cache
def _read(path: Path) -> _Page:
    return _Page(path.read_text(encoding="utf-8"))


def test_every_page_of_docs_is_in_the_site_and_reached_from_its_navigation(site: Path) -> None:
    """Nothing is written that nobody can find."""
    home = _read(site / "index.html")
    reached = {urlsplit(link).path for link in home.links}
    for page in ROOT.glob("docs/**/*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / name).exists(), name
        assert name in reached, f"{name} is not in the navigation"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """A reader without a network sees the same; nobody learns who reads."""
    for path, page in _pages(site):
        for address in page.loads:
            assert not urlsplit(address).netloc, f"{path.name} loads {address}"
    for style in site.rglob("*.css"):
        for address in _loads_of_style(style.read_text(encoding="utf-8")):
            assert not urlsplit(address).netloc, f"{style.name} loads {address}"
    for picture in site.rglob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert not re.search(r"(href|src)=[\"']https?:|@import|url\(['\"]?https?:", text), picture.name


def test_no_link_is_dead(site: Path) -> None:
    """Every link within the site leads to a page, and its anchor to a place in it."""
    for path, page in _pages(site):
        if path.name == "404.html":
            continue  # It is served at any address, so its links are absolute.
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            assert target.is_file(), f"{path.relative_to(site)} links to {link}"
            if parts.fragment and target.suffix == ".html":
                anchors = _read(target).anchors
                assert unquote(parts.fragment) in anchors, f"{path.relative_to(site)} links to {link}"


def test_a_dead_link_fails_thebuild_site(tmp_path: Path) -> None:
    """Strict is strict: the configuration that people build with does not pass over it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Home\n\n[nowhere](nowhere.md)\n", encoding="utf-8")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    text = text.replace("docs/site_hooks.py", str(ROOT / "docs/site_hooks.py"))
    (tmp_path / "mkdocs.yml").write_text(text, encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build_site(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert "nowhere.md" in failed.value.stderr.decode()
