"""What the site does to a page on its way from Markdown to HTML.

Pages link to files of the repository that are not part of the site (examples, tests, the changelog). Where
the repository is read such a link leads to the file; in the site it becomes its text, with the file's path.
The search finds what a reader can follow before what one looks up.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_SEARCH = 'data-md-component="search" role="dialog" aria-label="Search"'
_BOOST = {"tutorial.md": 4, "guides": 4, "concepts": 2, "decisions": 0.5}
"""Weight in the search of a page, or of the pages of a folder; the reference has 1."""
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """MkDocs' hook: the text, with each link out of ``docs/`` replaced. Sets its weight in the search."""
    directory = posixpath.dirname(page.file.src_uri)
    boost = _BOOST.get(page.file.src_uri.partition("/")[0], 1)
    page.meta.setdefault("search", {"boost": boost})
    return "\n".join(
        line if line.startswith("    ") else _LINK.sub(lambda found: _inside(found, directory), line)
        for line in markdown.split("\n")
    )


def on_post_page(output: str, **_: object) -> str:
    """MkDocs' hook: the theme's search dialog gets the name that screen readers ask for."""
    return output.replace('data-md-component="search" role="dialog"', _SEARCH, 1)


def _inside(found: re.Match[str], directory: str) -> str:
    text, target = found.groups()
    path = posixpath.normpath(posixpath.join("docs", directory, target.partition("#")[0]))
    if "://" in target or path.startswith("docs/") or path == "docs":
        return found.group()
    return text if f"`{path}`" == text else f'<span title="{path}">{text}</span>'
