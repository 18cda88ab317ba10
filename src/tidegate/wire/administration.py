"""Administration over ``$management``: **Tidegate's extension**, beside what ``wire.management`` has.

Each needs a Manage claim, on the hub that it names, else on the namespace. In a body, a value that is left
out stays as it is, and null takes it back to its default (a limit: off).

    operation   type                     properties        body                          answer
    UPDATE      com.microsoft:eventhub   name              model.hub_settings            the hub's map
    QUERY       tidegate:policy          [name]                                          maps without keys
    READ        tidegate:policy          [name] policy                                   map
    CREATE      tidegate:policy          [name] policy     claims                        map, 201
    DELETE      tidegate:policy          [name] policy
    REGENERATE  tidegate:policy          [name] policy     is_secondary                  map
    QUERY       tidegate:publisher       name                                            names of revoked ones
    REVOKE      tidegate:publisher       name publisher
    RESTORE     tidegate:publisher       name publisher
    READ        tidegate:throughput                                                      map
    UPDATE      tidegate:throughput                        units                         map
    READ        tidegate:tier                                                            {tier: text}
    UPDATE      tidegate:tier                              tier                          {tier: text}
    READ        tidegate:capture         name                                            {capture: map | null}
    UPDATE      tidegate:capture         name              CaptureSettings, all of it    {capture: map}
    DELETE      tidegate:capture         name

``name`` is the event hub; in brackets: without it the namespace is meant. Errors are those of
``wire.conditions``, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final

from tidegate.amqp.message import NO_VALUE, Message, MessageId
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.model.hub_settings import HUB_SETTINGS
from tidegate.wire.names import EVENT_HUB_ENTITY
from tidegate.wire.request_response import Request, Response, encode_response, make_request

POLICY_ENTITY: Final = "tidegate:policy"
PUBLISHER_ENTITY: Final = "tidegate:publisher"
THROUGHPUT_ENTITY: Final = "tidegate:throughput"
TIER_ENTITY: Final = "tidegate:tier"
CAPTURE_ENTITY: Final = "tidegate:capture"
"""Entity types of our own in ``$management`` requests."""


class HubPart(Enum):
    """Whether a request names an event hub."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    """Without one the namespace is meant."""
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Form:
    """What a request of one kind looks like."""

    operation: str
    entity: str
    hub: HubPart
    name_property: str | None = None
    """The property that names what is in the hub or namespace; None: nothing does."""
    values: tuple[str, ...] = ()
    """Names that its body may have."""
    status_code: int = 200
    is_of_namespace: bool = False
    """True: takes a policy of the namespace, for it reaches beyond the hub that it is about."""


class Administration(Enum):
    """What can be asked for: the table above."""

    UPDATE_EVENT_HUB = Form(
        "UPDATE",
        EVENT_HUB_ENTITY,
        HubPart.REQUIRED,
        values=tuple(setting.name for setting in HUB_SETTINGS),
    )
    QUERY_POLICIES = Form("QUERY", POLICY_ENTITY, HubPart.OPTIONAL)
    READ_POLICY = Form("READ", POLICY_ENTITY, HubPart.OPTIONAL, "policy")
    CREATE_POLICY = Form("CREATE", POLICY_ENTITY, HubPart.OPTIONAL, "policy", ("claims",), 201)
    DELETE_POLICY = Form("DELETE", POLICY_ENTITY, HubPart.OPTIONAL, "policy")
    REGENERATE_KEY = Form("REGENERATE", POLICY_ENTITY, HubPart.OPTIONAL, "policy", ("is_secondary",))
    QUERY_REVOKED_PUBLISHERS = Form("QUERY", PUBLISHER_ENTITY, HubPart.REQUIRED)
    REVOKE_PUBLISHER = Form("REVOKE", PUBLISHER_ENTITY, HubPart.REQUIRED, "publisher")
    RESTORE_PUBLISHER = Form("RESTORE", PUBLISHER_ENTITY, HubPart.REQUIRED, "publisher")
    READ_THROUGHPUT = Form("READ", THROUGHPUT_ENTITY, HubPart.ABSENT)
    UPDATE_THROUGHPUT = Form("UPDATE", THROUGHPUT_ENTITY, HubPart.ABSENT, values=("units",))
    READ_TIER = Form("READ", TIER_ENTITY, HubPart.ABSENT)
    UPDATE_TIER = Form("UPDATE", TIER_ENTITY, HubPart.ABSENT, values=("tier",))
    READ_CAPTURE = Form("READ", CAPTURE_ENTITY, HubPart.REQUIRED)
    UPDATE_CAPTURE = Form(
        "UPDATE",
        CAPTURE_ENTITY,
        HubPart.REQUIRED,
        values=tuple(setting.name for setting in fields(CaptureSettings)),
        # The destination is written to as the service's own user, whatever path or account it names.
        is_of_namespace=True,
    )
    DELETE_CAPTURE = Form("DELETE", CAPTURE_ENTITY, HubPart.REQUIRED)


_BY_WORDS: Final = {(each.value.operation, each.value.entity): each for each in Administration}


@dataclass(frozen=True, slots=True)
class AdministrationRequest:
    """A request of this table."""

    operation: Administration
    event_hub: str = ""
    """Empty: the namespace."""
    name: str = ""
    """The policy or publisher; empty where the operation is about none."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Plain values by name: whole numbers, texts, booleans, lists of texts, None."""
    security_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_request(cls, request: Request) -> AdministrationRequest | None:
        """The request, or None where it is none of this table (``wire.management`` may know it).

        Raises InvalidArgumentError when it lacks a part, or its body has what it may not have.
        """
        operation = _BY_WORDS.get((request.operation.upper(), request.optional_text("type") or ""))
        if operation is None:
            return None
        form = operation.value
        event_hub = ""
        if form.hub is HubPart.REQUIRED:
            event_hub = request.text("name")
        elif form.hub is HubPart.OPTIONAL:
            event_hub = request.optional_text("name") or ""
        return cls(
            operation,
            event_hub,
            "" if form.name_property is None else request.text(form.name_property),
            _values_in(request, form),
            request.optional_text("security_token"),
        )

    def to_message(self) -> Message:
        """The request; whoever sends it sets message-id and reply-to."""
        form = self.operation.value
        properties: dict[str, object] = {"type": form.entity}
        if self.event_hub:
            properties["name"] = self.event_hub
        if form.name_property is not None:
            properties[form.name_property] = self.name
        if self.security_token is not None:
            properties["security_token"] = self.security_token
        value = dict(self.values) if self.values else NO_VALUE
        return make_request(form.operation, properties, value)

    # -- values, checked

    def integer(self, name: str) -> int | None:
        """A whole number of the body; None for null. Raises InvalidArgumentError for anything else."""
        value = self.values[name]
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgumentError(f"{name} is a {type(value).__name__}, not a whole number.")
        return int(value)

    def boolean(self, name: str) -> bool:
        """True or false; false where it was left out. Raises InvalidArgumentError for anything else."""
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name} is a {type(value).__name__}, not true or false.")
        return value

    def text(self, name: str) -> str:
        """A text. Raises InvalidArgumentError for anything else, and where it was left out."""
        value = self.values.get(name)
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{name} is a {type(value).__name__}, not a text.")
        return str(value)

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty where it was left out. Raises InvalidArgumentError for anything else."""
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidArgumentError(f"{name} is not a list of texts.")
        return [str(item) for item in value]


def encode_administration_response(
    message_id: MessageId | None, operation: Administration, body: object
) -> bytes:
    """The answer to a request that succeeded. body: plain values, as in ``AdministrationRequest.values``."""
    status_code = operation.value.status_code
    return encode_response(
        correlation_id=message_id,
        status_code=status_code,
        status_description="Created" if status_code == 201 else "OK",
        value=body,
    )


def map_in(message: Message) -> dict[str, object]:
    """The map that was answered.

    Raises what an unsuccessful response means, RemoteProtocolError when the body is no map.
    """
    return _as_map(_body(message))


def maps_in(message: Message) -> list[dict[str, object]]:
    """The maps that were answered. Raises as ``map_in``."""
    return [_as_map(item) for item in _list(message)]


def names_in(message: Message) -> list[str]:
    """The texts that were answered. Raises as ``map_in``."""
    return [str(item) for item in _list(message)]


def _body(message: Message) -> object:
    response = Response.from_message(message)
    response.raise_for_status()
    return response.value


def _list(message: Message) -> list[object]:
    value = _body(message)
    if not isinstance(value, list):
        raise RemoteProtocolError(f"The answer of $management is a {type(value).__name__}, not a list.")
    return value


def _as_map(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"The answer of $management is a {type(value).__name__}, not a map.")
    return {str(name): item for name, item in value.items()}


def _values_in(request: Request, form: Form) -> dict[str, object]:
    if not isinstance(request.value, dict):
        return {}
    values = {str(name): value for name, value in request.value.items()}
    if unknown := sorted(set(values) - set(form.values)):
        raise InvalidArgumentError(
            f"{form.operation} of {form.entity!r} knows no {unknown[0][:80]!r}.",
            next_step=f"Known: {', '.join(form.values) or 'nothing'}.",
        )
    return values
