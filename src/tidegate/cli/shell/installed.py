"""What a command needs that a plain installation does not bring."""

from __future__ import annotations

from importlib.util import find_spec

from tidegate.model.errors import NotFoundError


def check_installed(*packages: str, extras: str) -> None:
    """Raise NotFoundError where one of the packages cannot be imported, with the command that installs it.

    extras: of Tidegate, as ``pip install`` names them: ``spark,postgresql``.
    """
    for name in packages:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:  # the package that it would be in
            found = None
        if found is None:
            raise NotFoundError(
                f"This command requires the package {name}, which is not installed.",
                next_step=f"Run `pip install 'tidegate[{extras}]'`; in a clone, `make demo`.",
            )
