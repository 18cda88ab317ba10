"""The cases of the access matrix, and what the answer must be: computed from who signed, and for what.

Nothing of the service is asked here, so that its mistakes are not repeated: an entity is a tuple of names in
lower case, an audience is a text with the entity that it means beside it, or None where it must be refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from tests.access.support import quote_all

Entity = tuple[str, ...]

ALPHA, BETA, GONE = "alpha-k", "beta", "gone"
"""Two event hubs, and one that was deleted."""

OWN_NAME = "gate.example"
"""A name of the service, by its setting ``host_names``."""

SCOPES = ("", ALPHA, BETA)
"""Of policies; empty: the namespace."""

RIGHTS = {
    "sender": frozenset({"Send"}),
    "listener": frozenset({"Listen"}),
    "manager": frozenset({"Send", "Listen", "Manage"}),
}
"""The policies of each scope: the same names everywhere, each with a key of its own."""

ENTITIES: tuple[Entity, ...] = (
    (),
    (ALPHA,),
    (BETA,),
    (GONE,),
    (ALPHA, "partitions", "0"),
    (BETA, "partitions", "0"),
    (ALPHA, "publishers", "dev-1"),
    (ALPHA, "publishers", "dev 2"),
    (ALPHA, "consumergroups", "$default"),
    (ALPHA, "messages"),
    (ALPHA, "$management"),
)


@dataclass(frozen=True)
class Audience:
    """A text as clients write it, before it is encoded for ``sr``."""

    text: str
    meaning: Entity | None
    """None: it means nothing, or more than one thing."""


@dataclass(frozen=True)
class Signer:
    """Whose key signs."""

    scope: str
    policy: str
    is_genuine: bool = True
    """False: the key is somebody's guess."""

    @property
    def key(self) -> str:
        """The key, which is the policy's if the signer is genuine."""
        return f"key-of-{self.policy}-of-{self.scope or 'namespace'}-32-bytes-or-more-{self.is_genuine}"


SIGNERS = (
    *(Signer(scope, policy) for scope in SCOPES for policy in RIGHTS),
    *(Signer(scope, "manager", False) for scope in SCOPES),
)


@dataclass(frozen=True)
class Endpoint:
    """Something that can be asked for."""

    method: str
    """Of HTTP; over AMQP what is done: ``send``, ``receive`` or ``manage``."""
    target: str
    entity: Entity
    """What a right must be for."""
    rights: frozenset[str]
    """Any of them is enough."""
    body: str = ""


@dataclass(frozen=True)
class Case:
    """One request; everything that the service is told is in it."""

    door: str
    signer: Signer
    audience: Audience
    encoded: str
    """The audience as ``sr`` spells it."""
    endpoint: Endpoint
    host: str = "localhost"
    """The header; over AMQP nothing."""

    @property
    def is_allowed(self) -> bool:
        """Whether the token gives a right that is enough, on what is asked for."""
        meaning, entity, scope = self.audience.meaning, self.endpoint.entity, self.signer.scope
        return (
            meaning is not None
            and self.signer.is_genuine
            and bool(RIGHTS[self.signer.policy] & self.endpoint.rights)
            and entity[: len(meaning)] == meaning
            and scope in ("", *meaning[:1])
        )


def audiences() -> list[Audience]:
    """Every entity in every spelling, right and wrong."""
    found = [
        Audience(write("/".join(entity)), entity)
        for entity in ENTITIES
        for write in _SPELLINGS
        if entity or write is not _plain
    ]
    # Azure's Go SDK makes tokens with the host alone (azeventhubs 2.0.2, internal/sas).
    found += [Audience(text, ()) for text in ("localhost", "LOCALHOST:5671", "[::1]:5672", OWN_NAME, "/")]
    for entity in ENTITIES:
        path = "/".join(entity)
        names = "/".join([*entity[:1], *map(quote_all, entity[1:])])
        found.append(Audience(f"sb://localhost/{names}", entity))
        found.append(Audience(f"elsewhere.example/{path}", ("elsewhere.example", *entity)))
        found.append(Audience(f"{GONE}/{path}", (GONE, *entity)))
        found.append(Audience(f"{ALPHA}/{path}", (ALPHA, *entity)))
        found += [Audience(text, None) for text in _wrong(entity, path)]
    return list(dict.fromkeys(found))


def _plain(path: str) -> str:
    return path


_SPELLINGS: tuple[Callable[[str], str], ...] = (
    _plain,
    lambda path: f"/{path}/",
    lambda path: f"sb://localhost/{path}",
    lambda path: f"amqps://LOCALHOST:5671/{path.upper()}/",
    lambda path: f"http://elsewhere.example/{path}",
    lambda path: f"https://localhost:443/{path}?api-version=2014-01",
    lambda path: f"https://[::1]:443//{path}",
    lambda path: f"localhost/{path}",
    lambda path: f"127.0.0.1:5672/{path}",
    lambda path: f"{OWN_NAME.upper()}/{path}",
)


def _wrong(entity: Entity, path: str) -> Iterator[str]:
    for before in ("sb://localhost/", "", "localhost/"):
        for after in (
            "?x",
            "#x",
            "?",
            "?api-version=2014-01&x",
            "?api-version=2014-01/x",
            "?api-version=x",
            "?api-version=2014-01?api-version=2014-01",
            f"/../{BETA}",
            "/..",
            f"/%2e%2e/{BETA}",
            "\\",
            "%00",
            "\t",
            "/./x",
            "/%zz",
        ):
            yield f"{before}{path}{after}"
        yield f"{before} {path}"
    for authority in ("u@localhost", "", "a b", "localhost:x", f"{ALPHA}?x", f"{ALPHA}%2f", "localhost\\x"):
        yield f"sb://{authority}/{path}"
    yield f"elsewhere.example:80/{path}"
    if entity:
        encoded = quote_all(path[0]) + path[1:]
        yield from (encoded, f"sb://localhost/{encoded}", f"localhost/{quote(quote_all(path[0]))}{path[1:]}")
        yield from (path.replace("a", "\uff41"), f"{entity[0]}%2F{BETA}", f"{entity[0]}%252F{BETA}")
    if "k" in path:
        yield path.replace("k", "\u212a")


def encodings(text: str) -> list[str]:
    """Ways to write a text in ``sr``: each is decoded once."""
    encoded = quote(text, safe="")
    found = [
        encoded,
        quote(text, safe=":/$"),
        quote_all(text),
        encoded.replace("%2F", "%2f").replace("%3A", "%3a"),
    ]
    if text.isascii() and text.isprintable() and not set("%&+= ") & set(text):
        found.append(text)
    return found


def hosts(audience: Audience) -> list[str]:
    """What may stand in a Host header, made to fit the audience or not."""
    first = audience.text.partition("://")[2].partition("/")[0] or audience.text.partition("/")[0]
    names = [ALPHA, ALPHA.upper(), f"{ALPHA}:80", f"{ALPHA}?x", f"{ALPHA}#x", BETA, GONE, "elsewhere.example"]
    names += ["localhost", "127.0.0.1:5300", "[::1]:80", f"{ALPHA}/{BETA}", f"x@{ALPHA}", "localhost\t", "*"]
    names += [f"{ALPHA}/console/static/x?", "a/api/v1/namespace?", "%61lpha-k"]
    return (
        names + [first] * 8 if first.isascii() and first.isprintable() and first == first.strip() else names
    )


def drawn_cases(door: str, endpoints: Sequence[Endpoint], draw: random.Random, count: int) -> list[Case]:
    """So many of all the cases that there are."""
    found = audiences()
    return [
        _case(door, draw.choice(SIGNERS), draw.choice(found), draw.choice(endpoints), draw)
        for _ in range(count)
    ]


def disguised_cases(
    door: str, endpoints: Sequence[Endpoint], draw: random.Random, count: int
) -> Iterator[Case]:
    """Tokens of an event hub's policies used outside it, with a Host header that repeats their audience."""
    signers = [signer for signer in SIGNERS if signer.scope and signer.is_genuine]
    for _ in range(count):
        signer = draw.choice(signers)
        hub = signer.scope
        first = draw.choice(
            [hub, f"{hub}?x", f"{hub}?", f"{hub}#x", quote_all(hub[0]) + hub[1:], quote_all(hub), f"{hub}\\"]
        )
        outside = [each for each in endpoints if each.entity[:1] != (hub,)]
        endpoint = draw.choice(outside)
        path = draw.choice(["", "/", f"/{'/'.join(endpoint.entity)}"])
        meaning = tuple(name for name in (hub, *path.split("/")) if name) if first == hub else None
        case = _case(door, signer, Audience(first + path, meaning), endpoint, draw)
        yield replace(case, host=draw.choice([first, first.upper(), f"{first}:5300"]))


def cases_of_tokens(
    door: str, endpoints: Sequence[Endpoint], draw: random.Random, count: int
) -> Iterator[list[Case]]:
    """So many tokens, each tried at every endpoint."""
    found = audiences()
    for _ in range(count):
        first = _case(door, draw.choice(SIGNERS), draw.choice(found), endpoints[0], draw)
        yield [replace(first, endpoint=endpoint) for endpoint in endpoints]


def plain_cases(door: str, endpoints: Sequence[Endpoint], draw: random.Random) -> list[Case]:
    """Every signer at every endpoint, with tokens for the namespace and for each event hub."""
    return [
        _case(door, signer, audience, endpoint, draw)
        for audience in PLAIN_AUDIENCES
        for signer in SIGNERS
        for endpoint in endpoints
    ]


def _case(door: str, signer: Signer, audience: Audience, endpoint: Endpoint, draw: random.Random) -> Case:
    encoded, host = draw.choice(encodings(audience.text)), draw.choice(hosts(audience))
    return Case(door, signer, audience, encoded, endpoint, host)


PLAIN_AUDIENCES = tuple(
    Audience(f"sb://localhost/{'/'.join(entity)}", entity) for entity in ((), (ALPHA,), (BETA,))
)
