"""The service's databases by the names that pages show; what one does not answer holds back no other's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from tidegate.model.errors import NotFoundError, TidegateError

if TYPE_CHECKING:
    from tidegate.console.frame.lazy_database import LazyDatabase

T = TypeVar("T")

Databases = Mapping[str, "LazyDatabase"]


def chosen(databases: Databases, name: str) -> Databases:
    """The database of that name; all if it is empty. Raises NotFoundError."""
    if not name:
        return databases
    if name not in databases:
        raise NotFoundError(
            f"The service's settings name no database {name[:80]!r}.",
            next_step=f"It has {', '.join(databases)}." if databases else "",
        )
    return {name: databases[name]}


async def ask_each(
    databases: Databases, question: Callable[[LazyDatabase], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, TidegateError]]:
    """The answers of the databases, and the errors of those that gave none, by their names."""
    found: dict[str, T] = {}
    problems: dict[str, TidegateError] = {}

    async def ask(name: str, database: LazyDatabase) -> None:
        try:
            found[name] = await question(database)
        except TidegateError as error:
            problems[name] = error

    await asyncio.gather(*(ask(*each) for each in databases.items()))
    return {name: found[name] for name in databases if name in found}, problems


def require_each(problems: Mapping[str, TidegateError]) -> None:
    """Raise the first of the errors, for what needs every database that it has asked."""
    for error in problems.values():
        raise error
