"""A service inside a command, for commands that read a data directory's log without a running service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.model.errors import NotFoundError

if TYPE_CHECKING:
    from tidegate.server.app import TidegateServer
    from tidegate.server.ready import ReadyInformation


@contextmanager
def embedded_service(data_dir: Path) -> Iterator[ReadyInformation]:
    """Serve ``data_dir`` on a free port of loopback until the block ends, on the clients' background loop.

    Raises NotFoundError for a directory without a service's data (which is not created),
    DirectoryInUseError if a service has it open, and as starting a service does.
    """
    from tidegate.client.background import run_blocking

    if not (data_dir / "catalog.json").is_file():
        raise NotFoundError(
            f"{data_dir} is not a service's data directory.",
            next_step="Use the directory that `tidegate serve --data-dir` or an example used.",
        )
    server = run_blocking(_start(data_dir))
    try:
        yield server.ready
    finally:
        run_blocking(server.close())


async def _start(data_dir: Path) -> TidegateServer:
    from tidegate.server.app import TidegateServer
    from tidegate.server.settings import ServerSettings

    server = TidegateServer(ServerSettings(data_dir=data_dir, amqp_port=0, http_port=None))
    await server.start()
    return server
