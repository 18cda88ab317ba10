"""Builds the optional extension of ``tidegate.wire``, and metadata that name the repository.

Without Cython and a C compiler the package is built without the extension, and runs the same code in Python:
nothing else differs.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from sysconfig import get_config_var
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCE = "src/tidegate/wire/_usual_events.pyx"
WITHOUT = "TIDEGATE_WITHOUT_EXTENSION"
"""Set in the environment, it builds the package without the extension."""
REPOSITORY = "TIDEGATE_REPOSITORY"
"""In the environment, the repository's public address: https://HOST/OWNER/NAME."""

_PAGES = {
    "Homepage": "",
    "Documentation": "docs/index.md",
    "Changelog": "CHANGELOG.md",
    "Security": "SECURITY.md",
}
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<target>[^)]+)\)")
"""A link or picture of a page whose target is a path."""


class ExtensionHook(BuildHookInterface[Any]):
    """Compiles ``SOURCE`` beside itself, for wheels and for editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the extension to the build; say why where it cannot be compiled."""
        if self.target_name != "wheel":
            return
        # One of an earlier build would be loaded, whatever becomes of this one.
        Path(self.root, SOURCE).with_suffix(get_config_var("EXT_SUFFIX")).unlink(missing_ok=True)
        compiled = None if os.environ.get(WITHOUT) else self._compile()
        if compiled is not None:
            build_data["pure_python"], build_data["infer_tag"] = False, True
            build_data["force_include"][str(compiled)] = f"tidegate/wire/{compiled.name}"

    def _compile(self) -> Path | None:
        try:
            from Cython.Build import cythonize
            from setuptools import Distribution, Extension
        except ImportError as error:
            self.app.display_warning(f"Built without the extension: {error}.")
            return None
        source, built = Path(self.root) / SOURCE, Path(self.root) / "build" / "extension"
        shutil.rmtree(built, ignore_errors=True)
        extension = Extension(f"tidegate.wire.{source.stem}", [str(source)])
        (module,) = cythonize([extension], build_dir=str(built), quiet=True)
        module.optional = True  # setuptools then only warns where it cannot be compiled
        command = Distribution({"ext_modules": [module]}).get_command_obj("build_ext")
        command.build_lib = command.build_temp = str(built)
        command.ensure_finalized()
        command.run()
        made = Path(command.get_ext_fullpath(module.name))
        if not made.exists():
            self.app.display_warning("Built without the extension: there is no C compiler that works.")
            return None
        return Path(shutil.copy2(made, source.parent))


class RepositoryHook(MetadataHookInterface):
    """Sets ``urls``, and makes a ``readme`` of README.md whose links work where there is no repository.

    Without an address there are no URLs and no pictures, and a link is its text. An sdist keeps those that it
    was made with: hatchling reads its PKG-INFO instead.
    """

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both fields. Raises ValueError for an address that is not of a public repository."""
        address = os.environ.get(REPOSITORY, "").rstrip("/")
        if address and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", address):
            raise ValueError(f"{REPOSITORY} must be https://HOST/OWNER/NAME, got {address!r}.")
        # What is built between releases shows the newest pages.
        reference = "HEAD" if "dev" in metadata["version"] else f"v{metadata['version']}"
        pages = _PAGES if address else {}
        urls = {name: _url(address, "blob", reference, page) for name, page in pages.items()}
        text = _with_links(Path(self.root, "README.md").read_text(encoding="utf-8"), address, reference)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls


def _with_links(text: str, address: str, reference: str) -> str:
    def replaced(link: re.Match[str]) -> str:
        if not address:
            return "" if link["picture"] else link["text"]
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({_url(address, kind, reference, link['target'])})"

    return _LINK.sub(replaced, text)


def _url(address: str, kind: str, reference: str, page: str) -> str:
    return f"{address}/{kind}/{reference}/{page}" if page else address
