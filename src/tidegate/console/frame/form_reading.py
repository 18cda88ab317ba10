"""Reads the forms of requests from untrusted senders.

With ``Request.form``, one request could block the event loop: it decodes with any codec that the request
names (punycode takes hours for a few megabytes), decodes fields of any size at once, and parses a
``Content-Type`` of any length.
"""

from __future__ import annotations

import asyncio
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final
from urllib.parse import unquote_to_bytes

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from tidegate.console.frame.slices import in_slices
from tidegate.model.errors import InvalidArgumentError, ServerBusyError
from tidegate.transport.memory import MemoryBudget

_FIELDS_MAX: Final = 100
"""Maximum fields of a form (our choice: pages have about 20)."""

_FIELD_CHARACTERS_MAX: Final = 2 * 1024 * 1024
"""Of a field that is not a file (our choice: the largest event in base64 has 1.4 million)."""

_FILES_MAX: Final = 1

_CONTENT_TYPE_CHARACTERS_MAX: Final = 200
"""Browsers' boundaries have about 40 characters, at most 70 (RFC 2046 section 5.1.1)."""

_PART_HEAD_BYTES_MAX: Final = 1_024
"""Of the line that names a field and its file (our choice: names of files have 255 bytes at most)."""

_SLICE_BYTES: Final = 2_048
"""Decoded at once: less than a millisecond, whatever they are."""


async def read_form(request: Request, *, bytes_max: int) -> FormData:
    """The form of a request, in UTF-8; pages use ``sessions.form_of``. bytes_max: of all its fields.

    Raises InvalidArgumentError (invalid, too large), ServerBusyError (memory is exhausted, see ``counted``).
    """
    size = request.headers.get("content-length", "")
    if not size.isascii() or not size.isdigit() or int(size) > bytes_max:
        raise InvalidArgumentError(f"The form has more than {bytes_max:,} bytes, or does not say how many.")
    content_type = request.headers.get("content-type", "")
    if len(content_type) > _CONTENT_TYPE_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"The form's Content-Type has more than {_CONTENT_TYPE_CHARACTERS_MAX} characters."
        )
    kind, options = parse_options_header(content_type)
    if options.get(b"charset", b"utf-8").lower() != b"utf-8":
        raise InvalidArgumentError("The form is not in UTF-8.")
    try:
        if kind == b"multipart/form-data":
            async with aclosing(request.stream()) as stream:
                parser = _Parser(
                    request.headers,
                    stream,
                    max_files=_FILES_MAX,
                    max_fields=_FIELDS_MAX,
                    max_part_size=min(bytes_max, _FIELD_CHARACTERS_MAX),
                )
                return await parser.parse()
        if kind == b"application/x-www-form-urlencoded":
            fields = await _urlencoded(await request.body(), request)
            return FormData([*fields])
        return FormData()
    except MultiPartException as error:
        raise InvalidArgumentError(f"The form cannot be read: {error.message}.") from error
    except ClientDisconnect as error:
        # The client has disconnected, and the log should not report a failure of the service.
        raise InvalidArgumentError("The request ended before its form was complete.") from error


@contextmanager
def counted(receive: Receive, budget: MemoryBudget) -> Iterator[Receive]:
    """``receive`` of a request, with the bytes of its body counted until the block ends.

    Raises ServerBusyError if memory is exhausted and this request holds most.
    """
    loop = asyncio.get_running_loop()
    held, is_ended = 0, False
    waiting: asyncio.Timeout | None = None

    def end() -> None:
        nonlocal is_ended
        is_ended = True
        if waiting is not None:
            waiting.reschedule(loop.time())

    async def receive_counted() -> Message:
        nonlocal held, waiting
        try:
            if is_ended:
                raise TimeoutError
            async with asyncio.timeout(None) as waiting:
                message = await receive()
        except TimeoutError:
            budget.require_room()
            raise ServerBusyError(
                "The form was given up to free memory.", next_step="Send it again later."
            ) from None
        finally:
            waiting = None
        held += len(message.get("body", b""))
        account.update()
        return message

    account = budget.open_account(lambda: held, end=end)
    try:
        yield receive_counted
    finally:
        account.close()


class _Parser(MultiPartParser):
    """As Starlette's, but for parts with a long head: its parameters take time with the square of it."""

    def on_headers_finished(self) -> None:
        if len(self._current_part.content_disposition or b"") > _PART_HEAD_BYTES_MAX:
            raise MultiPartException(f"a part's head has more than {_PART_HEAD_BYTES_MAX:,} bytes")
        super().on_headers_finished()


async def _urlencoded(body: bytes, request: Request) -> list[tuple[str, str]]:
    if body.count(b"&") >= _FIELDS_MAX:
        raise InvalidArgumentError(f"The form has more than {_FIELDS_MAX} fields.")
    fields = [field.partition(b"=")[::2] for field in body.split(b"&") if field]
    encoded = [part for field in fields for part in field]
    pieces: list[list[str]] = [[] for _ in encoded]
    for index, piece in await in_slices(request, _decoded_pieces(encoded)):
        pieces[index].append(piece)
    decoded = ["".join(found) for found in pieces]
    if any(len(text) > _FIELD_CHARACTERS_MAX for text in decoded):
        raise InvalidArgumentError(
            f"A field of the form has more than {_FIELD_CHARACTERS_MAX:,} characters.",
            next_step="Send less at a time, or a file.",
        )
    return list(zip(decoded[::2], decoded[1::2], strict=True))


def _decoded_pieces(texts: Sequence[bytes]) -> Iterator[tuple[int, str]]:
    """The percent-decoded strings, in pieces, each with its string's index."""
    for index, text in enumerate(texts):
        start, characters = 0, getincrementaldecoder("utf-8")("replace")
        while start < len(text):
            end = start + _SLICE_BYTES
            # Not within a %XX.
            cut = text.find(b"%", end - 2, end)
            if cut >= 0 and end < len(text):
                end = cut
            piece = unquote_to_bytes(text[start:end].replace(b"+", b" "))
            yield index, characters.decode(piece, final=end >= len(text))
            start = end
