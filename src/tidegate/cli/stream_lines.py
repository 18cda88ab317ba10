"""Lines from a file descriptor, without making the event loop wait for whoever types or pipes them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError

_CHUNK_BYTES = 1 << 20
_CHUNKS_QUEUED_MAX = 4


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """The lines that lie ready, as lists, without their line ends; a last line needs none.

    Works for files, pipes and terminals alike. Cancellation: a read that waits for input is left to its
    thread, which does not keep the process from ending; bytes it reads afterwards are lost to this process.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_QUEUED_MAX)
    # os.read instead of a buffered file: a thread that holds a buffer's lock would abort the interpreter's
    # exit.
    threading.Thread(target=_pump, args=(descriptor, chunks, loop), daemon=True, name="read-lines").start()
    rest = b""
    while True:
        chunk = await chunks.get()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


def _pump(descriptor: int, chunks: asyncio.Queue[bytes | OSError], loop: asyncio.AbstractEventLoop) -> None:
    chunk: bytes | OSError = b"?"
    while chunk and not isinstance(chunk, OSError):
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except OSError as error:
            chunk = error
        try:
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
        except (RuntimeError, CancelledError):  # the loop has ended: nobody reads any more
            return
