"""Loads what makes record batches: pyarrow and numpy are optional, and slow to import."""

from __future__ import annotations

from types import ModuleType

from tidegate.extras import install_step
from tidegate.model.errors import NotFoundError


def load_batches() -> ModuleType:
    """The module ``columns.batches``. Raises NotFoundError if numpy or pyarrow is not installed."""
    try:
        from tidegate.columns import batches
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "pyarrow"):
            raise
        raise NotFoundError(
            f"Record batches require the package {error.name}, which is not installed.",
            next_step=install_step("arrow"),
        ) from error
    return batches
