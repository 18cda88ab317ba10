"""Floods of the storage account of the attackers' event hub, with a signature of their policy."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import count
from typing import Final

from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from bench.floods.attack import HUB, Attack, Flood, Line, Program, exchange, source_of
from tidegate.broker.blobs.accounts import account_key, account_name

_ACCOUNT: Final = account_name(HUB)
_EXPIRY: Final = datetime(2090, 1, 1, tzinfo=UTC)
_CONTENT: Final = bytes(4096)
_METADATA: Final = b"x-ms-meta-a: " + b"<" * 4000 + b"\r\n"
"""The most that a blob may have, nearly; a list escapes each character."""


def _signature(key: str) -> bytes:
    return generate_account_sas(
        _ACCOUNT,
        account_key(key),
        ResourceTypes(container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
        _EXPIRY,
    ).encode()


def _request(method: bytes, target: bytes, signature: bytes, content: bytes = b"") -> bytes:
    joined = b"&" if b"?" in target else b"?"
    fields = b"x-ms-blob-type: BlockBlob\r\n" + _METADATA if content else b""
    return (
        b"%b /%b/store%b%b%b HTTP/1.1\r\nHost: localhost\r\nx-ms-version: 2021-12-02\r\n%b"
        b"Content-Length: %d\r\n\r\n%b"
        % (method, _ACCOUNT.encode(), target, joined, signature, fields, len(content), content)
    )


def _put(signature: bytes, name: object) -> bytes:
    return _request(b"PUT", f"/group/checkpoint/{name}".encode(), signature, _CONTENT)


def _changing(connections: int, *, names: int) -> Program:
    """Connections that write blobs as fast as they are answered. names: of blobs; 0: always new ones."""

    async def flood(attack: Attack) -> None:
        signature, numbers = _signature(attack.target.key), count()

        async def change(number: int) -> None:
            async with attack.connected(attack.target.http, source=source_of(0)) as line:
                await exchange(attack, line, _request(b"PUT", b"?restype=container", signature))
                while True:
                    place = next(numbers)
                    await exchange(attack, line, _put(signature, place % names if names else place))

        await attack.repeat(connections, change)

    return flood


async def _list(attack: Attack) -> None:
    """First 2,000 blobs are written, of which a page has some dozens."""
    signature, numbers = _signature(attack.target.key), count()
    listing = _request(b"GET", b"?restype=container&comp=list&include=metadata", signature)

    async def write_and_list(number: int) -> None:
        async with attack.connected(attack.target.http, source=source_of(0)) as line:
            await exchange(attack, line, _request(b"PUT", b"?restype=container", signature))
            while (place := next(numbers)) < 2_000:
                await exchange(attack, line, _put(signature, place))
            await _repeat(attack, line, listing)

    await attack.repeat(20, write_and_list)


async def _guess(attack: Attack) -> None:
    request = _request(b"GET", b"?restype=container", _signature(attack.target.key[::-1]))

    async def guess(number: int) -> None:
        async with attack.connected(attack.target.http, source=source_of(0)) as line:
            await _repeat(attack, line, request)

    await attack.repeat(8, guess)


async def _repeat(attack: Attack, line: Line, request: bytes) -> None:
    while True:
        await exchange(attack, line, request)
        await asyncio.sleep(0)


FLOODS: Final = (
    Flood(
        "checkpoints",
        7,
        "64 connections that each write further blobs, as large as they may be",
        _changing(64, names=0),
    ),
    Flood("one-checkpoint", 7, "300 connections that write one blob", _changing(300, names=1)),
    Flood("list-checkpoints", 7, "20 connections that list 2,000 blobs with their metadata", _list),
    Flood("guess-blobs", 9, "wrong signatures for the account, as fast as they are answered", _guess),
)
