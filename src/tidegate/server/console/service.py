"""The namespace, as the console asks for it."""

from __future__ import annotations

from typing import Self

from tidegate.server.console.parts import ConsoleParts


class BrokerService:
    """``console.backend.ServiceView`` of a running service."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass
