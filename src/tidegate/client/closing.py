"""``with`` and ``async with`` for everything in this package that has ``close``."""

from __future__ import annotations

from typing import Self


class AsyncClosing:
    """Calls ``close`` at the end of an ``async with`` block."""

    async def close(self) -> None:
        """Free what the object holds. Idempotent."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Closing:
    """Calls ``close`` at the end of a ``with`` block."""

    def close(self) -> None:
        """Free what the object holds. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
