"""Builds the optional extension of ``tidegate.wire``, where Cython and a C compiler are installed.

Without them the package is built without it, and runs the same code in Python: nothing else differs.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from sysconfig import get_config_var
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/tidegate/wire/_usual_events.pyx"
WITHOUT = "TIDEGATE_WITHOUT_EXTENSION"
"""Set in the environment, it builds the package without the extension."""


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
