"""The two ends of a pipe: lines read from one, and whether the other still has a reader.

Neither blocks the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import stat
import threading
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from typing import TextIO

from tidegate.files import IS_WINDOWS
from tidegate.model.errors import InvalidArgumentError

_CHUNK_BYTES = 1 << 20
_CHUNKS_QUEUED_MAX = 4
_READER_LOOK_S = 0.25
"""Seconds between checks of whether a pipe still has a reader."""


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Lists of the lines available so far, without line ends; the last line needs none."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def unzipped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The contents of a gzip file. Raises InvalidArgumentError if it is none, or is cut off."""
    decoder = None
    async for chunk in chunks:
        while chunk:
            decoder = decoder or zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                yield decoder.decompress(chunk, _CHUNK_BYTES)
            except zlib.error as error:
                raise InvalidArgumentError(f"The file is not a valid gzip file: {error}.") from error
            chunk = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            decoder = None if decoder.eof else decoder
    if decoder is not None:
        yield decoder.flush()
        if not decoder.eof:
            raise InvalidArgumentError("The gzip file is cut off.", next_step="Its whole lines were read.")


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """The bytes available so far, until the end.

    Works for files, pipes and terminals. Cancellation: a read that waits for input is left to its thread,
    which does not keep the process from exiting; bytes that it reads afterwards are lost to this process.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_QUEUED_MAX)
    # os.read, not a buffered file: a thread that holds a buffer's lock would abort the interpreter's exit.
    threading.Thread(target=_pump, args=(descriptor, chunks, loop), daemon=True, name="read-lines").start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk


@asynccontextmanager
async def until_reader_goes(stream: TextIO) -> AsyncIterator[None]:
    """Run the body until the reader of ``stream`` has gone; then raise BrokenPipeError, as a write does.

    Without this, ``receive … | head -1`` would wait for the next event. Files and terminals have no reader.
    """
    if IS_WINDOWS or not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
        yield
        return
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch_reader(stream.fileno()))
            try:
                yield
            finally:
                watch.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _watch_reader(descriptor: int) -> None:
    # Polled: an event loop that watches a descriptor makes it non-blocking, but writes to the stream must
    # wait for a slow reader.
    poll = select.poll()
    poll.register(descriptor, 0)
    while not poll.poll(0):  # noqa: ASYNC110 - no one would set an event
        await asyncio.sleep(_READER_LOOK_S)
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _pump(descriptor: int, chunks: asyncio.Queue[bytes | OSError], loop: asyncio.AbstractEventLoop) -> None:
    chunk: bytes | OSError = b"?"
    while chunk and not isinstance(chunk, OSError):
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except OSError as error:
            chunk = error
        try:
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
        except (RuntimeError, CancelledError):  # the loop has ended: there is no reader
            return
