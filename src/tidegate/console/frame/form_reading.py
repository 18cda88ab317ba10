"""Reads the forms of requests from untrusted senders.

With ``Request.form``, one request could block the event loop: it decodes with any codec that the request
names (punycode takes hours for a few megabytes), decodes fields of any size at once, and parses a
``Content-Type`` of any length.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from sys import getsizeof
from typing import Final
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from tidegate.console.frame.slices import in_slices
from tidegate.model.errors import InvalidArgumentError
from tidegate.transport.counted_body import CountedBody

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
"""Decoded or parsed at once: less than a millisecond, whatever they are; some, of a multipart form."""

_CALLBACKS: Final = (
    *("on_part_begin", "on_part_data", "on_part_end", "on_header_field", "on_header_value", "on_header_end"),
    *("on_headers_finished", "on_end"),
)


async def read_form(request: Request, *, bytes_max: int) -> FormData:
    """The form of a request, in UTF-8; pages use ``sessions.form_of``. bytes_max: of all its fields.

    Raises InvalidArgumentError (invalid, too large), ServerBusyError (memory is exhausted).
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
                part_bytes_max = min(bytes_max, _FIELD_CHARACTERS_MAX)
                return await _Parser(request, stream, part_bytes_max=part_bytes_max).parse()
        if kind == b"application/x-www-form-urlencoded":
            fields = await _urlencoded(await request.body(), request)
            return FormData([*fields])
        return FormData()
    except MultiPartException as error:
        raise InvalidArgumentError(f"The form cannot be read: {error.message}.") from error
    except ClientDisconnect as error:
        # The client has disconnected, and the log should not report a failure of the service.
        raise InvalidArgumentError("The request ended before its form was complete.") from error


class _Parser(MultiPartParser):
    """As Starlette's, but it works in slices, counts what it decodes, and refuses parts with a long head:
    parameters there take time with the square of it.
    """

    def __init__(self, request: Request, stream: AsyncGenerator[bytes, None], *, part_bytes_max: int) -> None:
        super().__init__(
            request.headers,
            stream,
            max_files=_FILES_MAX,
            max_fields=_FIELDS_MAX,
            max_part_size=part_bytes_max,
        )
        self._request = request
        self._charset = "utf-8"

    async def parse(self) -> FormData:
        """The form. Raises MultiPartException."""
        _, options = parse_options_header(self.headers["Content-Type"])
        if not options.get(b"boundary"):
            raise MultiPartException("it names no boundary")
        try:
            parser = MultipartParser(
                options[b"boundary"],
                {name: getattr(self, name) for name in _CALLBACKS},  # type: ignore[arg-type]
            )
            async for chunk in self.stream:
                # 300 KB at once, of what looks like boundaries, took the parser half a second.
                starts = range(0, len(chunk), _SLICE_BYTES)
                pieces = (chunk[start : start + _SLICE_BYTES] for start in starts)
                await in_slices(self._request, map(parser.write, pieces))
                if self._file_parts_to_write:  # all are of the only file
                    part, _ = self._file_parts_to_write[0]
                    assert part.file is not None
                    await part.file.write(b"".join(data for _, data in self._file_parts_to_write))
                for part in self._file_parts_to_finish:
                    assert part.file is not None
                    await part.file.seek(0)
                self._file_parts_to_write.clear()
                self._file_parts_to_finish.clear()
        except BaseException as error:
            for file in self._files_to_close_on_error:
                file.close()
            if isinstance(error, FormParserError):
                raise MultiPartException("Invalid multipart data.") from error
            raise
        return FormData(self.items)

    def on_headers_finished(self) -> None:
        if len(self._current_part.content_disposition or b"") > _PART_HEAD_BYTES_MAX:
            raise MultiPartException(f"a part's head has more than {_PART_HEAD_BYTES_MAX:,} bytes")
        super().on_headers_finished()

    def on_part_end(self) -> None:
        super().on_part_end()
        _, found = self.items[-1]
        if isinstance(found, str):
            _count(self._request, found)


def _count(request: Request, text: str) -> None:
    """Count what was made of a form. Raises ServerBusyError as ``CountedBody``."""
    if isinstance(request.receive, CountedBody):
        request.receive.add(getsizeof(text))


async def _urlencoded(body: bytes, request: Request) -> list[tuple[str, str]]:
    if body.count(b"&") >= _FIELDS_MAX:
        raise InvalidArgumentError(f"The form has more than {_FIELDS_MAX} fields.")
    fields = [field.partition(b"=")[::2] for field in body.split(b"&") if field]
    encoded = [part for field in fields for part in field]
    decoded = await in_slices(request, _decoded(encoded, request))
    return list(zip(decoded[::2], decoded[1::2], strict=True))


def _decoded(texts: Sequence[bytes], request: Request) -> Iterator[str | None]:
    """The percent-decoded strings; None after each piece of one. Raises InvalidArgumentError and
    ServerBusyError."""
    for text in texts:
        pieces: list[str] = []
        start = size = 0
        characters = getincrementaldecoder("utf-8")("replace")
        while start < len(text):
            end = start + _SLICE_BYTES
            # Not within a %XX.
            cut = text.find(b"%", end - 2, end)
            if cut >= 0 and end < len(text):
                end = cut
            piece = unquote_to_bytes(text[start:end].replace(b"+", b" "))
            pieces.append(characters.decode(piece, final=end >= len(text)))
            size += len(pieces[-1])
            if size > _FIELD_CHARACTERS_MAX:
                raise InvalidArgumentError(
                    f"A field of the form has more than {_FIELD_CHARACTERS_MAX:,} characters.",
                    next_step="Send less at a time, or a file.",
                )
            # A character may take four bytes, and the form held five to ten times what was counted.
            _count(request, pieces[-1])
            yield None
            start = end
        yield "".join(pieces)
