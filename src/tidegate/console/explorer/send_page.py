"""``/hubs/NAME/explorer/send``: send one event, or a set of them, repeatedly and at a rate. Needs Send.

Events are stored like those of any producer; a refusal (size, throughput, disk) is shown with its next step.
"""

from __future__ import annotations

import asyncio
import binascii
import string
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from tidegate.amqp.message import Header, Message, Properties
from tidegate.console.explorer.bodies import body_bytes
from tidegate.console.explorer.codec import unusual_parts
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.properties import (
    MESSAGE_NAMES,
    TYPE_NAMES,
    format_message,
    format_properties,
    parse_message,
    parse_properties,
    typed_properties,
)
from tidegate.console.explorer.sending import EventSender
from tidegate.console.explorer.values import (
    SEND_BYTES_MAX,
    SEND_EVENTS_MAX,
    SEND_LINES_MAX,
    SEND_RATE_MAX,
    EventDetail,
    ExploredEvent,
    RunState,
    SendPlan,
    SingleEvent,
    Target,
)
from tidegate.console.frame.errors import error_page, problem_page
from tidegate.console.frame.forms import digits_of
from tidegate.console.frame.pages import Pages, done, get, post, see_other
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import (
    form_of,
    require_listen,
    require_send,
    require_session,
    rights_of,
    session_of,
)
from tidegate.model.errors import InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.json_path import JsonPath
from tidegate.model.validation import utf8

_FORM_BYTES_MAX: Final = SEND_BYTES_MAX + 1024 * 1024
_PROPERTY_CHARACTERS_PER_BYTE: Final = 6
"""Maximum characters of a form for one byte of an event's property; longer input is refused unread."""
_BYTES_PER_PROPERTY_MIN: Final = 4
"""Of an event: a name of one character, and null."""
_FORM_CHARACTERS_MAX: Final = 1_200_000
"""Of the fields that a refused form is shown with again (our choice: more than the largest event has)."""
_KEY_PATH_CHARACTERS_MAX: Final = 1_000
_LINES_MAX: Final = 2 * SEND_LINES_MAX
"""Of a set, the empty ones included."""
_CHARACTERS_AT_ONCE: Final = 65_536
"""C code that works on a whole field would hold up the event loop from a thread as well."""
_LEFT_OUT_MAX: Final = 20
"""Things that a copy lacks which are named one by one. Our choice."""
_EMPTY: Final[Mapping[str, str]] = {
    "body": "",
    "encoding": "text",
    "content_type": "",
    "partition_key": "",
    "partition": "",
    "properties": "",
    "message": "",
    "lines": "",
    "key_path": "",
    "repeats": "1",
    "rate": "100",
}


@dataclass(eq=False)
class SendPages(Pages):
    """Sending events."""

    events: BrokerEvents
    sender: EventSender

    @get("/hubs/{hub}/explorer/send")
    async def ask(self, request: Request) -> Response:
        hub = request.path_params["hub"]
        if not rights_of(request).may_send(hub):
            require_listen(request, hub)  # users who may see events also see the form, and why it is disabled
        copied = request.query_params.get("copy")
        if not copied:
            return self._form(request, _EMPTY)
        require_listen(request, hub)
        async with self.events.whole_events.of(hub):
            require_session(request)  # a page may wait for others'
            detail = await self._find(hub, copied)
            fields, left_out = await asyncio.to_thread(_copy_of, detail)
            return self._form(request, {**_EMPTY, **fields}, copied=detail.event, left_out=left_out)

    @post("/hubs/{hub}/explorer/send")
    async def send(self, request: Request) -> Response:
        hub = request.path_params["hub"]
        require_send(request, hub)
        form = await form_of(request, bytes_max=_FORM_BYTES_MAX)
        bytes_max = self.events.broker.event_hub(hub).event_bytes_max
        try:
            partition_id, number = await self.sender.send(
                hub, partial(_event_of, form, bytes_max), may_go_on=self._may_send(request, hub)
            )
        except TidegateError as error:
            return await self._refused(request, form, error, is_single=True)
        where = f"events/{partition_id}/{number}" if rights_of(request).may_listen(hub) else "send"
        text = f"The event is stored: partition {partition_id}, sequence number {number}."
        return done(request, text, f"{_place(hub)}/{where}")

    def _may_send(self, request: Request, hub: str) -> Callable[[], bool]:
        """Whether the request's session still has Send on the hub: sending may wait, and take long."""
        session = session_of(request)

        def may_send() -> bool:
            rights = self.console.sessions.rights(session)
            return rights is not None and rights.may_send(hub)

        return may_send

    @post("/hubs/{hub}/explorer/sets")
    async def start(self, request: Request) -> Response:
        hub = request.path_params["hub"]
        require_send(request, hub)
        form = await form_of(request, bytes_max=_FORM_BYTES_MAX)
        try:
            bytes_max = self.events.broker.event_hub(hub).event_bytes_max
            run = await self.sender.start_run(
                hub, partial(_plan_of, form, bytes_max), may_go_on=self._may_send(request, hub)
            )
        except TidegateError as error:
            return await self._refused(request, form, error, is_single=False)
        finally:
            await form.close()
        return see_other(f"{_place(hub)}/sets/{run.run_id}")

    @get("/hubs/{hub}/explorer/sets/{run}")
    async def show_run(self, request: Request) -> Response:
        hub = request.path_params["hub"]
        require_send(request, hub)
        run = self.sender.run(hub, request.path_params["run"])
        return page(request, "explorer/set.html", hub=hub, run=run, is_sending=run.state is RunState.SENDING)

    @post("/hubs/{hub}/explorer/sets/{run}/stop")
    async def stop(self, request: Request) -> Response:
        hub, run_id = request.path_params["hub"], request.path_params["run"]
        require_send(request, hub)
        await form_of(request)
        self.sender.stop_run(hub, run_id)
        return see_other(f"{_place(hub)}/sets/{quote(run_id)}")

    @get("/console/live/hubs/{hub}/sets/{run}")
    async def stream(self, request: Request) -> Response:
        hub, run_id = request.path_params["hub"], request.path_params["run"]
        require_send(request, hub)
        self.sender.run(hub, run_id)

        async def context(request: Request) -> Mapping[str, Any]:
            run = self.sender.run(hub, run_id)
            return {"hub": hub, "run": run, "is_over": run.state is not RunState.SENDING}

        return self.live(request, context, {"progress": "explorer/progress.html"}, every_s=0.5)

    async def _refused(
        self, request: Request, form: FormData, problem: TidegateError, *, is_single: bool
    ) -> Response:
        fields = await asyncio.to_thread(_texts, form)
        return self._form(request, fields, problem=problem, is_single=is_single)

    def _form(
        self,
        request: Request,
        fields: Mapping[str, str],
        *,
        problem: TidegateError | None = None,
        is_single: bool = True,
        copied: ExploredEvent | None = None,
        left_out: Sequence[str] = (),
    ) -> Response:
        hub = request.path_params["hub"]
        if problem is not None and sum(map(len, fields.values())) > _FORM_CHARACTERS_MAX:
            return error_page(request, problem)
        return problem_page(
            request,
            "explorer/send.html",
            problem,
            hub=hub,
            fields=fields,
            is_single=is_single,
            copied=copied,
            left_out=left_out,
            type_names=TYPE_NAMES,
            message_names=MESSAGE_NAMES,
            may_send=rights_of(request).may_send(hub),
            partition_ids=self.events.broker.event_hub(hub).description.partition_ids,
            runs=self.sender.runs(hub) if rights_of(request).may_send(hub) else (),
            limits={
                "lines": SEND_LINES_MAX,
                "bytes": SEND_BYTES_MAX,
                "events": SEND_EVENTS_MAX,
                "rate": SEND_RATE_MAX,
            },
        )

    async def _find(self, hub: str, place: str) -> EventDetail:
        partition_id, _, number = place.partition(".")
        if (found := digits_of(number)) is None:
            raise NotFoundError(f"{place[:40]!r} is not an event.")
        return await self.events.event(hub, partition_id, found)


def _copy_of(detail: EventDetail) -> tuple[Mapping[str, str], Sequence[str]]:
    """The form fields that send an event again, escaped, and remarks on parts that they omit.

    Raises InvalidArgumentError if it is not a valid message.
    """
    contents, message = detail.event.contents, detail.message
    if contents is None:
        raise InvalidArgumentError("The event is not a message and cannot be sent again.")
    body, encoding = body_bytes(contents), "text"
    text = body.decode(errors="replace")
    if text.encode() != body or "\x00" in text or "\r" in text:
        text, encoding = b64encode(body).decode(), "base64"
    if message is None:
        message = Message(application_properties=typed_properties(contents.properties))
        left_out = [
            "its standard properties, its header, its annotations and the types of its properties, "
            "some of which are garbled"
        ]
    else:
        left_out = [*unusual_parts(message)]
    properties, no_lines = format_properties(message.application_properties)
    content_type, lines, of_other_types = format_message(
        message.properties or Properties(), message.header or Header()
    )
    left_out += [*no_lines, *of_other_types]
    key = contents.partition_key or ""
    if contents.partition_key == "" or not key.isprintable():
        left_out.append("its partition key, which no field can hold")
        key = ""
    fields = {
        "body": text,
        "encoding": encoding,
        "content_type": content_type,
        "partition_key": key,
        "partition": "" if key else detail.event.partition_id,
        "properties": properties,
        "message": lines,
    }
    more = len(left_out) - _LEFT_OUT_MAX
    fields = {name: _escaped(text) for name, text in fields.items()}
    return fields, [*left_out[:_LEFT_OUT_MAX], f"and {more:,} more"] if more > 0 else left_out


def _escaped(text: str) -> Markup:
    """In pieces: a megabyte takes 15 ms."""
    starts = range(0, len(text), _CHARACTERS_AT_ONCE)
    return Markup("".join(escape(text[start : start + _CHARACTERS_AT_ONCE]) for start in starts))


def _place(hub: str) -> str:
    return f"/hubs/{quote(hub, safe='')}/explorer"


def _event_of(form: FormData, event_bytes_max: int) -> SingleEvent:
    fields = _texts(form)
    return SingleEvent(_body(fields), _message(fields, event_bytes_max), _target(fields))


def _plan_of(form: FormData, event_bytes_max: int) -> SendPlan:
    fields = _texts(form)
    return SendPlan(
        _lines(_set_of(form, fields)),
        _target(fields),
        _message(fields, event_bytes_max),
        _number(fields["repeats"], "repeats"),
        _number(fields["rate"], "events per second"),
    )


def _texts(form: FormData) -> dict[str, str]:
    """The fields that are text, with line ends as files have them: browsers send CR LF."""
    given = {name: value for name, value in form.items() if isinstance(value, str)}
    return {name: _with_plain_ends(given.get(name, default)) for name, default in _EMPTY.items()}


def _with_plain_ends(text: str) -> str:
    """In pieces that end with a line: two megabytes of line ends take 20 ms."""
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = text.find("\n", start + _CHARACTERS_AT_ONCE) + 1 or len(text)
        pieces.append(text[start:end].replace("\r\n", "\n"))
        start = end
    return "".join(pieces)


def _body(fields: Mapping[str, str]) -> bytes:
    if fields["encoding"] != "base64":
        return utf8(fields["body"], "The body")
    try:
        # Not split and joined: two megabytes in short words take 90 ms of C code.
        encoded = fields["body"].encode("ascii").translate(None, string.whitespace.encode())
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgumentError(f"The body is not base64: {error}.") from error


def _message(fields: Mapping[str, str], event_bytes_max: int) -> Message:
    characters = len(fields["properties"]) + len(fields["message"]) + len(fields["content_type"])
    if characters > _PROPERTY_CHARACTERS_PER_BYTE * event_bytes_max:
        raise InvalidArgumentError(
            f"The properties have {characters:,} characters; no event of {event_bytes_max:,} bytes, the most "
            "allowed here, holds them.",
            next_step="Send fewer, or smaller ones.",
        )
    application = parse_properties(fields["properties"], count_max=event_bytes_max // _BYTES_PER_PROPERTY_MIN)
    standard, header = parse_message(fields["message"], fields["content_type"])
    return Message(header=header, properties=standard, application_properties=application)


def _target(fields: Mapping[str, str]) -> Target:
    chosen = {
        "partition_id": fields["partition"].strip(),
        "partition_key": fields["partition_key"],
        "key_path": fields["key_path"].strip(),
    }
    given = {name: value for name, value in chosen.items() if value}
    if len(given) > 1:
        raise InvalidArgumentError(
            "The partition, the partition key and the key's path exclude each other.",
            next_step="Fill in at most one of them; with none, events go to the partitions in turn.",
        )
    path = given.get("key_path")
    if path is not None and len(path) > _KEY_PATH_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"The key's path has {len(path):,} characters; {_KEY_PATH_CHARACTERS_MAX:,} are allowed."
        )
    return Target(
        given.get("partition_id"), given.get("partition_key"), None if path is None else JsonPath.parse(path)
    )


def _set_of(form: FormData, fields: Mapping[str, str]) -> bytes:
    """A set: the file where one was given, else the text."""
    file = form.get("file")
    if isinstance(file, UploadFile) and file.filename:
        return file.file.read(SEND_BYTES_MAX + 1)
    return utf8(fields["lines"], "The set")


def _lines(content: bytes) -> list[bytes]:
    """The events of a set, one a line; empty lines left out. Raises InvalidArgumentError for too many."""
    # One at a time: 16 MB may be as many lines, and C code that splits them lets no other thread run.
    found: list[bytes] = []
    for number, line in enumerate(BytesIO(content)):
        if number == _LINES_MAX:
            raise InvalidArgumentError(f"A set has at most {SEND_LINES_MAX:,} lines, and as many empty ones.")
        if event := line.removesuffix(b"\n").removesuffix(b"\r"):
            found.append(event)
    return found


def _number(text: str, what: str) -> int:
    if (found := digits_of(text.strip(), 12)) is None:
        raise InvalidArgumentError(
            f"{text[:20]!r} is not a number of {what}.", next_step="Enter digits only, such as 100."
        )
    return found
