"""The proxy misbehaves exactly as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tidegate.testing.proxy import CuttingProxy


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def echo_port() -> AsyncIterator[int]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _exchange(proxy: CuttingProxy, sizes: list[int]) -> int:
    """Send pieces and wait for each echo; how many came back before the line was cut."""
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    answered = 0
    try:
        for size in sizes:
            writer.write(b"x" * size)
            await asyncio.wait_for(reader.readexactly(size), 30)
            answered += 1
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.transport.abort()
    return answered


async def test_bytes_pass_unchanged_until_cut_now(echo_port: int) -> None:
    """Without limits it is a plain proxy; cut_now ends every line with a reset."""
    async with CuttingProxy("127.0.0.1", echo_port) as proxy:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert proxy.cut_now() == 1
        with pytest.raises(OSError, match="reset"):
            await reader.read()
        writer.close()
        assert await _exchange(proxy, [10, 10]) == 2


async def test_the_seed_decides_where_lines_are_cut(echo_port: int) -> None:
    """The same seed cuts at the same bytes, so a failure can be played again."""
    runs = []
    for seed in (3, 3, 4):
        async with CuttingProxy("127.0.0.1", echo_port, seed=seed, cut_after_bytes=(100, 2000)) as proxy:
            runs.append([await _exchange(proxy, [10] * 200) for _ in range(5)])
    assert runs[0] == runs[1] != runs[2]
    assert all(0 < answered < 200 for answered in runs[0])


async def test_refused_and_held_lines(echo_port: int) -> None:
    """refuse ends new connections at once; hold lets nothing through and closes nothing."""
    async with CuttingProxy("127.0.0.1", echo_port) as proxy:
        proxy.refuse()
        assert await _exchange(proxy, [1]) == 0
        proxy.refuse(False)
        proxy.hold()
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(4), 0.02)
        proxy.hold(False)
        assert await asyncio.wait_for(reader.readexactly(4), 30) == b"late"
        writer.close()


async def test_a_line_is_cut_where_a_marker_passes() -> None:
    """cut_at takes that line alone; over seeds the request is lost sometimes, and its answer other times."""
    received: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                received.append(data)
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    has_arrived = set()
    async with server:
        for seed in range(8):
            received.clear()
            async with CuttingProxy("127.0.0.1", server.sockets[0].getsockname()[1], seed=seed) as proxy:
                other = await asyncio.open_connection(proxy.host, proxy.port)
                reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
                proxy.cut_at(b"COMMIT")
                writer.write(b"INSERT")
                assert await reader.readexactly(6) == b"INSERT"
                writer.write(b"COMMIT")
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await asyncio.wait_for(reader.readexactly(6), 30)
                other[1].write(b"COMMIT")
                assert await asyncio.wait_for(other[0].readexactly(6), 30) == b"COMMIT"
                assert proxy.cut_count == 1
                has_arrived.add(received.count(b"COMMIT") == 2)
                writer.close()
                other[1].close()
    assert has_arrived == {True, False}
