"""Checks for packages that a plain installation does not include."""

from __future__ import annotations

from importlib.util import find_spec

from tidegate.model.errors import NotFoundError


def check_installed(*packages: str, extras: str) -> None:
    """Raise NotFoundError, with the command to install it, if a package cannot be imported.

    extras: Tidegate's extras for ``pip install``, such as ``spark,postgresql``.
    """
    for name in packages:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:  # its parent package is missing
            found = None
        if found is None:
            raise NotFoundError(
                f"This command requires the package {name}, which is not installed.",
                next_step=f"Run `pip install 'tidegate[{extras}]'`; in a clone, `make demo`.",
            )
