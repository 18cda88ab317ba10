"""Opens a namespace on the file engine: the only place where broker and engine meet."""

from __future__ import annotations

from pathlib import Path

from tidegate.broker import Broker
from tidegate.model.clock import Clock
from tidegate.storage.files import Files
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions


async def open_broker(
    data_directory: Path,
    *,
    clock: Clock,
    options: LogOptions | None = None,
    files: Files | None = None,
    is_control_threaded: bool = True,
) -> Broker:
    """Open the namespace in ``data_directory`` (created if missing), and recover its logs.

    files, is_control_threaded: for tests, as for ``LogManager.open``.
    Raises DirectoryInUseError (another service uses it), and as ``Broker.open``.
    """
    engine = await LogManager.open(
        data_directory, options=options, files=files, is_control_threaded=is_control_threaded
    )
    return await Broker.open(engine, clock=clock)
