"""Tokens at ``$cbs``, and what they open."""

from __future__ import annotations

from functools import partial

from tests.interop.raw_amqp.codec import (
    TRANSFER,
    described_value,
    list_of,
    map_of,
    parse,
    text,
)
from tests.interop.raw_amqp.peer import Given, Peer, equal
from tests.interop.raw_amqp.run import Cases

SAS = "servicebus.windows.net:sastoken"


def ask_cbs(peer: Peer, properties: dict[str, str], token: bytes) -> tuple[int, str]:
    """The status and its words."""
    sender = peer.attach_sender("$cbs")
    peer.attached()
    receiver = peer.attach_receiver("$cbs")
    peer.attached()
    peer.grant(receiver, 10)
    named = {text(name): text(value) for name, value in properties.items()}
    peer.transfer(
        sender,
        described_value(b"\x53\x73", list_of(text("id"), b"\x40", b"\x40", b"\x40", text("raw")))
        + described_value(b"\x53\x74", map_of(named))
        + described_value(b"\x53\x77", token),
    )
    payload, at, answer = peer.read(TRANSFER).payload, 0, {}
    while at < len(payload):
        (section, value), at = parse(payload, at)
        answer[section] = value
    equal(answer[0x73][5], "id")
    return answer[0x74]["status-code"], answer[0x74]["status-description"]


def stranger(given: Given) -> Peer:
    """Connected without a token."""
    peer = Peer.anonymous(given)
    peer.open()
    peer.begin()
    return peer


def signature_gives(resource: str, audience: str, status: int, given: Given) -> None:
    """{sink}: the hub that is then sent to. Signed exactly as written here."""
    resource, audience = (each.format(sink=given.sink, full=given.full) for each in (resource, audience))
    peer = stranger(given)
    properties = {"operation": "put-token", "type": SAS, "name": audience}
    found, words = ask_cbs(peer, properties, text(given.signature(resource)))
    equal((found, words if found != status else ""), (status, ""))
    peer.attach_sender(f"{given.sink}/Partitions/0")
    if status == 202:
        peer.attached()
    else:
        equal(peer.refused().condition, "amqp:unauthorized-access")


def request_is_refused(change: dict[str, str | None], status: int, given: Given) -> None:
    """A request that is wrong in one way: None leaves a property out."""
    properties: dict[str, str | None] = {
        "operation": "put-token",
        "type": SAS,
        "name": f"sb://localhost/{given.sink}",
        **change,
    }
    kept = {name: value for name, value in properties.items() if value is not None}
    found, words = ask_cbs(stranger(given), kept, text(given.signature(f"sb://localhost/{given.sink}")))
    equal((found, bool(words)), (status, True))


def token_is_refused(token: str, words: str, given: Given) -> None:
    """{good}: a token that would do."""
    resource = f"sb://localhost/{given.sink}"
    signed = {
        "expired": given.signature(resource, seconds=-60),
        "wrong key": given.signature(resource, key="wrong"),
        "other policy": given.signature(resource).replace("skn=", "skn=Other"),
        "jwt": "eyJhbGciOiJub25lIn0.e30.",
        "cut off": given.signature(resource)[:60],
        "twice": given.signature(resource) + "&se=4102444800",
        "nothing": "",
    }[token]
    properties = {"operation": "put-token", "type": SAS, "name": resource}
    found, said = ask_cbs(stranger(given), properties, text(signed))
    equal((found // 100, words in said), (4, True))


def hub_must_exist(given: Given) -> None:
    """A genuine token for a hub that does not exist: 404, as the official clients expect it here."""
    resource = "sb://localhost/nothing"
    properties = {"operation": "put-token", "type": SAS, "name": resource}
    found, words = ask_cbs(stranger(given), properties, text(given.signature(resource)))
    equal((found, "could not be found" in words), (404, True))


def signature_as_jwt(given: Given) -> None:
    """Where an application could give its SDK nothing but a TokenCredential."""
    resource = f"sb://localhost/{given.sink}"
    properties = {"operation": "put-token", "type": "jwt", "name": resource}
    equal(ask_cbs(stranger(given), properties, text(given.signature(resource)))[0], 202)


_HUB = "sb://localhost/{sink}"

CASES: Cases = {
    **{
        f"token sr={resource} for {audience}": partial(signature_gives, resource, audience, 202)
        for resource, audience in {
            _HUB: _HUB,
            "sb://localhost": _HUB,
            "sb://localhost/": "sb://localhost/{sink}/Partitions/0",
            "sb://localhost:5671/{sink}": "amqps://localhost/{sink}",
            "amqps://localhost/{sink}": _HUB,
            "http://localhost/{sink}/": _HUB,
            "https://LOCALHOST/{sink}/": _HUB,
            "localhost": "amqps://localhost/{sink}",
            "localhost/{sink}": _HUB,
            "localhost/{sink}/Partitions/0": "sb://localhost/{sink}/Partitions/0",
        }.items()
    },
    **{
        f"token sr={resource} for {audience} refused": partial(signature_gives, resource, audience, 401)
        for resource, audience in {
            "sb://localhost/{full}": _HUB,
            "localhost/{full}": _HUB,
            "sb://localhost/{sink}/../{full}": _HUB,
            "sb://elsewhere.example/{sink}": _HUB,
            "elsewhere.example": _HUB,
        }.items()
    },
    "token expired": partial(token_is_refused, "expired", "ExpiredToken"),
    "token of a wrong key": partial(token_is_refused, "wrong key", "InvalidSignature"),
    "token of an unknown policy": partial(token_is_refused, "other policy", "InvalidSignature"),
    "token of Entra ID": partial(token_is_refused, "jwt", ""),
    "token cut off": partial(token_is_refused, "cut off", "MalformedToken"),
    "token with two expiries": partial(token_is_refused, "twice", "MalformedToken"),
    "token empty": partial(token_is_refused, "nothing", "no token"),
    "token as a jwt": signature_as_jwt,
    "token for an unknown hub": hub_must_exist,
    "token request without an operation": partial(request_is_refused, {"operation": None}, 400),
    "token request of another operation": partial(request_is_refused, {"operation": "get-token"}, 400),
    "token request without a name": partial(request_is_refused, {"name": None}, 400),
    "token request without a type": partial(request_is_refused, {"type": None}, 400),
}
