"""A service inside a command, for commands that read a data directory's log without a running service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.model.errors import NotFoundError

if TYPE_CHECKING:
    from tidegate.server.ready import ReadyInformation
    from tidegate.server.settings import ServerSettings


@contextmanager
def embedded_service(data_dir: Path) -> Iterator[ReadyInformation]:
    """Serve ``data_dir`` on a free port of loopback, in a thread, until the block ends.

    Raises NotFoundError for a directory without a service's data (which is not created),
    DirectoryInUseError if a service has it open, and as starting a service does.
    """
    from tidegate.server.settings import ServerSettings

    if not (data_dir / "catalog.json").is_file():
        raise NotFoundError(
            f"{data_dir} is not a service's data directory.",
            next_step="Use the directory that `tidegate serve --data-dir` or an example used.",
        )
    thread = _ServiceThread(ServerSettings(data_dir=data_dir, amqp_port=0, http_port=None))
    thread.start()
    try:
        yield thread.ready.result()
    finally:
        thread.stop()


class _ServiceThread(threading.Thread):
    """Runs a service on an event loop of its own."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(name="embedded-service", daemon=True)
        self.ready: Future[ReadyInformation] = Future()
        """Where it listens, or the error that kept it from starting."""
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Run the service until ``stop``."""
        from tidegate.server.event_loop import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self._serve())
            except asyncio.CancelledError:
                pass
            except BaseException as error:
                if self.ready.done():
                    raise
                self.ready.set_exception(error)

    def stop(self) -> None:
        """Stop the service in order, and wait until it has stopped."""
        # Wait for a start in progress: a partly started service cannot be stopped in order.
        wait([self.ready])
        if self.ready.exception() is None:
            assert self._loop is not None
            assert self._serving is not None
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self.join()

    async def _serve(self) -> None:
        from tidegate.server.app import run_server

        self._serving = asyncio.current_task()
        await run_server(self._settings, on_ready=self.ready.set_result)
