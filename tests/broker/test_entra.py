"""JSON Web Tokens: only a trusted issuer's key proves one, and it gives what the principal's roles say."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.api_jws import PyJWS
from jwt.utils import base64url_encode
from tests.storage.engines import Memory, MemoryEngine
from tests.support.clocks import SetClock

from tidegate.broker import UNKNOWN_PEER, Actor, Authorizer, Broker, Claim, Door, Peer, acting_as, attempts
from tidegate.broker.entra.issuers import Role, RoleAssignment, TokenIssuer, check_issuers
from tidegate.broker.entra.tokens import EntraTokens
from tidegate.model.audience import NAMESPACE, entity_path
from tidegate.model.errors import InvalidArgumentError, ServerBusyError, UnauthorizedError
from tidegate.model.sas import make_sas_token

_NOW: Final = datetime(2026, 11, 28, tzinfo=UTC)
_S: Final = int(_NOW.timestamp())
_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_OTHER: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_CURVE: Final = ec.generate_private_key(ec.SECP256R1())
_ISSUER: Final = TokenIssuer(
    "https://sts.example/tenant/",
    roles=(
        RoleAssignment(Role.SENDER, "writer", event_hub="Orders"),
        RoleAssignment(Role.RECEIVER, group="readers"),
        RoleAssignment(Role.OWNER, "owner"),
        RoleAssignment(Role.RECEIVER, app_role="Reader"),
    ),
)
_CLAIMS: Final = {
    "iss": _ISSUER.issuer,
    "aud": "https://eventhubs.azure.net/",
    "oid": "writer",
    "exp": _S + 600,
    "nbf": _S - 10,
}


def _public(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, key_id: str | None) -> dict[str, Any]:
    found: dict[str, Any]
    if isinstance(key, rsa.RSAPrivateKey):
        found = json.loads(RSAAlgorithm.to_jwk(key.public_key()))
        del found["key_ops"]
    else:
        found = json.loads(ECAlgorithm.to_jwk(key.public_key()))
    return found if key_id is None else found | {"kid": key_id}


def _tokens(*issuers: TokenIssuer, keys: Mapping[str, Any] | None = None) -> EntraTokens:
    found = EntraTokens(issuers or (_ISSUER,))
    for issuer in issuers or (_ISSUER,):
        found.set_keys(issuer.issuer, keys or {"keys": [_public(_KEY, "k1"), _public(_CURVE, "k2")]})
    return found


def _signed(key: Any = _KEY, algorithm: str = "RS256", key_id: str | None = "k1", **changed: Any) -> str:
    claims = {name: value for name, value in (_CLAIMS | changed).items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers=None if key_id is None else {"kid": key_id})


_TRUSTING: Final = _tokens()
_TOKEN: Final = _signed()


@pytest.mark.parametrize(
    ("changed", "hub", "expected"),
    [
        ({}, "orders", {Claim.SEND}),
        ({}, "ORDERS", {Claim.SEND}),
        ({}, "other", set()),
        ({}, "", set()),
        ({"groups": ["x", "readers"]}, "orders", {Claim.SEND, Claim.LISTEN}),
        ({"groups": ["x", "readers"]}, "other", {Claim.LISTEN}),
        ({"oid": "x", "sub": "readers"}, "orders", set()),
        ({"oid": "x", "groups": ["owner", "writer"]}, "orders", set()),
        ({"oid": "x", "sub": "owner"}, "", set(Claim)),
        ({"oid": None, "roles": ["Reader"]}, "", {Claim.LISTEN}),
        ({"oid": "Reader", "roles": ["owner", "readers", 1]}, "", set()),
        ({"oid": "nobody", "azp": "owner", "appid": "owner", "groups": "owner", "email": "owner"}, "", set()),
        ({"oid": "nobody", "roles": ["Azure Event Hubs Data Owner"]}, "", set()),
    ],
)
def test_roles_are_those_assigned_to_the_principal(
    changed: dict[str, Any], hub: str, expected: set[Claim]
) -> None:
    """By object id, subject, group or role; not by the application, and a token cannot assign its own."""
    principal = _tokens().verify(_signed(**changed), now_utc=_NOW)
    assert principal.claims_on(hub)[0] == expected


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"), [(_KEY, "RS256", "k1"), (_KEY, "PS512", "k1"), (_CURVE, "ES256", "k2")]
)
def test_asymmetric_signatures(key: Any, algorithm: str, key_id: str) -> None:
    """A key of an issuer that names no algorithm is used with its usual one alone."""
    token = _signed(key, algorithm, key_id)
    if algorithm == "PS512":
        with pytest.raises(UnauthorizedError, match="InvalidSignature"):
            _tokens().verify(token, now_utc=_NOW)
    else:
        assert _tokens().verify(token, now_utc=_NOW).name == "writer"


def _confused() -> str:
    """HS256 with the public key, as PEM, for the secret."""
    public = _KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(jwt.InvalidKeyError):
        jwt.encode(_CLAIMS, public, "HS256")
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode()
        for each in ({"alg": "HS256", "kid": "k1"}, _CLAIMS)
    ]
    signature = jwt.get_algorithm_by_name("HS256").sign(".".join(parts).encode(), public)
    return ".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=").decode()])


def _unsigned() -> str:
    return jwt.encode(_CLAIMS, "", "none", headers={"kid": "k1"})


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (_signed(_OTHER), "InvalidSignature: No trusted issuer"),
        (_signed(key_id="k3"), "InvalidSignature: No trusted issuer"),
        (_signed(key_id="k2"), "InvalidSignature: No trusted issuer"),
        (_signed(key_id=None), "InvalidSignature: No trusted issuer"),
        (_confused(), "InvalidSignature: .* algorithm"),
        (_unsigned(), "InvalidSignature: .* algorithm"),
        (_signed(iss="https://sts.example/another/"), "InvalidIssuer"),
        (_signed(iss=None), "InvalidIssuer"),
        (_signed(aud="https://storage.azure.com"), "InvalidAudience"),
        (_signed(aud=None), "InvalidAudience"),
        (_signed(aud=["x", "y"]), "InvalidAudience"),
        (_signed(exp=_S), "ExpiredToken"),
        (_signed(exp=None), "MalformedToken: .*exp"),
        (_signed(exp=1e300), "MalformedToken: .*exp"),
        (_signed(exp="soon"), "MalformedToken: .*exp"),
        (_signed(nbf=_S + 301), "InvalidToken: .*nbf"),
        (_signed(nbf="x"), "InvalidToken: .*nbf"),
        (_signed(padding="x" * 16_384), "MalformedToken: .* more than 16384"),
        ("e30.e30", "MalformedToken"),
        ("", "MalformedToken"),
        ("\udc80.\udc80.x", "MalformedToken"),
        (_signed()[:-2], "InvalidSignature|MalformedToken"),
    ],
)
def test_what_is_refused_by_name(token: str, message: str) -> None:
    """Each mistake in its own words, and without the token."""
    with pytest.raises(UnauthorizedError, match=message) as caught:
        _tokens().verify(token, now_utc=_NOW)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize("key_id", ["k1", "k2", "k3", None])
def test_a_forged_token_costs_no_more_than_its_signature(
    monkeypatch: pytest.MonkeyPatch, key_id: str | None
) -> None:
    """PyJWT goes through each character of what it is given, which is only what a trusted key has signed."""
    loaded: list[object] = []
    load = PyJWS._load

    def counted(self: PyJWS, token: str | bytes) -> Any:
        loaded.append(token)
        return load(self, token)

    monkeypatch.setattr(PyJWS, "_load", counted)
    with pytest.raises(UnauthorizedError, match="InvalidSignature: No trusted issuer"):
        _tokens().verify(_signed(_OTHER, key_id=key_id, padding="x" * 10_000), now_utc=_NOW)
    assert not loaded
    _tokens().verify(_TOKEN, now_utc=_NOW)
    assert loaded


def test_a_long_header_is_not_read() -> None:
    """Before a signature is checked, the header is all that is parsed."""
    header = jwt.encode(_CLAIMS, _KEY, "RS256", headers={"kid": "k1", "x5c": ["A" * 2_000]})
    with pytest.raises(UnauthorizedError, match="MalformedToken"):
        _tokens().verify(header, now_utc=_NOW)


@given(st.data())
@pytest.mark.slow
def test_a_changed_token_is_refused(data: st.DataObject) -> None:
    """Any character of header, claims or signature: an UnauthorizedError, never a principal."""
    # Not the last: it has bits that mean nothing.
    at = data.draw(st.integers(0, len(_TOKEN) - 2))
    other = data.draw(st.characters().filter(lambda each: each != _TOKEN[at]))
    with pytest.raises(UnauthorizedError):
        _TRUSTING.verify(_TOKEN[:at] + other + _TOKEN[at + 1 :], now_utc=_NOW)


def test_a_token_without_a_key_id_fits_an_issuers_only_key() -> None:
    """Small issuers have one key, and leave its id out."""
    single = _tokens(keys={"keys": [_public(_KEY, None)]})
    assert single.verify(_signed(key_id=None), now_utc=_NOW).name == "writer"


def test_issuers_that_share_their_keys_keep_their_own_roles() -> None:
    """The endpoints of one tenant, version 1 and 2: which one issued a token decides."""
    second = TokenIssuer("https://login.example/v2.0", roles=(RoleAssignment(Role.OWNER, "writer"),))
    tokens = _tokens(_ISSUER, second)
    assert tokens.verify(_signed(), now_utc=_NOW).claims_on("")[0] == set()
    assert tokens.verify(_signed(iss=second.issuer), now_utc=_NOW).claims_on("")[0] == set(Claim)


def test_an_unknown_key_is_asked_for() -> None:
    """The issuer may have a new one; a known one asks for nothing."""
    tokens = _tokens()
    asked: list[None] = []
    tokens.on_unknown_key = lambda: asked.append(None)
    tokens.verify(_signed(), now_utc=_NOW)
    assert not asked
    with pytest.raises(UnauthorizedError):
        tokens.verify(_signed(key_id="new"), now_utc=_NOW)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"keys": {}},
        {"keys": [1, {}, {"kty": "oct", "k": "AAAA", "kid": "k1"}]},
        {"keys": [_public(_KEY, "k1") | {"use": "enc"}]},
        {"keys": [_public(_KEY, "k1") | {"alg": "none"}]},
        {"keys": [_public(rsa.generate_private_key(public_exponent=65537, key_size=1024), "k1")]},
        {"keys": [_public(_KEY, "k1") | {"n": base64url_encode(b"\xff" * 513).decode()}]},
        {"keys": [_public(_KEY, "k1") | {"e": base64url_encode(b"\x01\x00\x00\x00\x01").decode()}]},
        {"keys": [json.loads(RSAAlgorithm.to_jwk(_KEY)) | {"kid": "k1"}]},
        {"keys": [json.loads(ECAlgorithm.to_jwk(_CURVE)) | {"kid": "k1"}]},
    ],
)
def test_key_sets_without_a_usable_key_change_nothing(keys: dict[str, Any]) -> None:
    """The earlier keys stay. A private key, which others may have read, took up to 22 s to load, and failed
    at each token; with long ones, a token cost 7 ms a key."""
    tokens = _tokens()
    with pytest.raises(InvalidArgumentError, match="no usable key"):
        tokens.set_keys(_ISSUER.issuer, keys)
    tokens.verify(_signed(), now_utc=_NOW)


def test_few_keys_of_an_id_are_tried() -> None:
    """Anyone can have them tried, with a forged token."""
    assert _tokens().set_keys(_ISSUER.issuer, {"keys": [_public(_OTHER, "k1")] * 100}) == 4
    others = [_public(_OTHER, f"{number}") for number in range(98)]
    tokens = _tokens(keys={"keys": [*others, _public(_OTHER, "k1"), _public(_KEY, "k1")]})
    tokens.verify(_signed(), now_utc=_NOW)


def test_a_token_may_name_its_roles_where_that_is_said() -> None:
    """On the namespace, or on an event hub; what only looks like a role is none."""
    own = TokenIssuer(_ISSUER.issuer, are_roles_in_tokens=True)
    roles = ["Azure Event Hubs Data Sender@orders", "Azure Event Hubs Data Receiver", "Data Owner", 1, "x@y"]
    roles += ["Azure Event Hubs Data Owner@", "Azure Event Hubs Data Owner "]
    principal = _tokens(own).verify(_signed(roles=roles), now_utc=_NOW)
    assert principal.claims_on("") == (frozenset({Claim.LISTEN}), "")
    assert principal.claims_on("orders") == (frozenset({Claim.LISTEN, Claim.SEND}), "orders")


def test_a_grant_reaches_what_the_role_reaches() -> None:
    """An event hub's role gives nothing outside it, whatever the audience; the namespace's gives all."""
    authorizer = Authorizer([])
    authorizer.entra = _tokens()
    grant = authorizer.authorize(_signed(), "sb://localhost/orders/Partitions/0", now_utc=_NOW)
    assert (grant.policy_name, grant.scope, grant.expiry) == (
        f"entra:writer@{_ISSUER.issuer}",
        "orders",
        _S + 600,
    )
    assert grant.permits(entity_path("orders", "Partitions", "0"), Claim.SEND, now_utc=_NOW)
    assert not grant.permits(NAMESPACE, Claim.SEND, now_utc=_NOW)
    assert not grant.permits(entity_path("other", "Partitions", "0"), Claim.SEND, now_utc=_NOW)
    assert authorizer.is_in_force(grant)
    for audience in ("sb://localhost/other", "sb://localhost/", "orders2"):
        with pytest.raises(UnauthorizedError, match="no role on"):
            authorizer.authorize(_signed(), audience, now_utc=_NOW)
    whole = authorizer.authorize(_signed(oid="owner"), "sb://localhost/", now_utc=_NOW)
    assert whole.permits(NAMESPACE, Claim.MANAGE, now_utc=_NOW)


def test_a_subject_passes_for_no_other_name() -> None:
    """The audit trail joins names with commas; what an issuer signs as a subject may be chosen by it."""
    authorizer = Authorizer([])
    authorizer.entra = _tokens(
        TokenIssuer(_ISSUER.issuer, roles=(RoleAssignment(Role.OWNER, app_role="Reader"),))
    )
    token = _signed(oid="system:x/y, RootManageSharedAccessKey@z", roles=["Reader"])
    grant = authorizer.authorize(token, "orders", now_utc=_NOW)
    name = f"entra:system:x/y%2C%20RootManageSharedAccessKey%40z@{_ISSUER.issuer}"
    assert Actor.of([grant], UNKNOWN_PEER).policy == name


@pytest.mark.parametrize(
    "oids",
    [
        ("alice", "alice\u200b", "ali\nce", "alice\ud800", "alice\udfff"),
        ("a" * 100, "a" * 101, "a" * 100 + "b", "a" * 100 + "\u200b"),
    ],
)
def test_no_two_subjects_have_one_name(oids: tuple[str, ...]) -> None:
    """Neither a character that is not shown nor a long beginning makes a principal pass for another."""
    authorizer = Authorizer([])
    authorizer.entra = _tokens(
        TokenIssuer(_ISSUER.issuer, roles=(RoleAssignment(Role.OWNER, app_role="Reader"),))
    )
    tokens = [_signed(oid=oid, roles=["Reader"]) for oid in oids]
    names = {authorizer.authorize(token, "orders", now_utc=_NOW).policy_name for token in tokens}
    assert len(names) == len(oids)
    assert all(name.isprintable() and len(name) < 300 for name in names)
    with pytest.raises(UnauthorizedError, match="has no role") as caught:
        authorizer.authorize(_signed(oid="ali\nce"), "orders", now_utc=_NOW)
    assert "\n" not in str(caught.value)


def test_signatures_are_checked_as_before_and_nothing_else_without_issuers() -> None:
    """A SharedAccessSignature never reaches the issuers; a JSON Web Token needs one."""
    authorizer = Authorizer([])
    with pytest.raises(UnauthorizedError, match="not a SharedAccessSignature"):
        authorizer.authorize(_signed(), "sb://localhost/orders", now_utc=_NOW)
    authorizer.entra = _tokens()
    sas = make_sas_token(audience="sb://localhost/orders", key_name="writer", key="k", expiry=_S + 60)
    with pytest.raises(UnauthorizedError, match="InvalidSignature: The token has an invalid signature"):
        authorizer.authorize(sas, "sb://localhost/orders", now_utc=_NOW)


@pytest.mark.parametrize(
    ("issuers", "message"),
    [
        ((_ISSUER, _ISSUER), "declared twice"),
        ((TokenIssuer("x"),), "No principal"),
        ((TokenIssuer("x", roles=(RoleAssignment(Role.OWNER),)),), "not one of"),
        ((TokenIssuer("x", roles=(RoleAssignment(Role.OWNER, "a", "b"),)),), "not one of"),
    ],
)
def test_declarations_that_cannot_be_meant(issuers: tuple[TokenIssuer, ...], message: str) -> None:
    """The same issuer twice, and one that nobody gets a right from."""
    with pytest.raises(InvalidArgumentError, match=message):
        check_issuers(issuers)


async def test_an_owner_of_one_hub_cannot_create_it(clock: SetClock) -> None:
    """Its role stays while the hub is deleted: the next of that name may be another tenant's."""
    broker = await Broker.open(MemoryEngine(Memory()), clock=clock)
    broker.authorizer.entra = _tokens(
        TokenIssuer(_ISSUER.issuer, roles=(RoleAssignment(Role.OWNER, "writer", event_hub="orders"),))
    )
    grant = broker.authorizer.authorize(_signed(), "orders", now_utc=_NOW)
    with acting_as(Actor.of([grant], UNKNOWN_PEER)), pytest.raises(UnauthorizedError, match="the namespace"):
        await broker.create_event_hub("orders", partition_count=1)
    await broker.create_event_hub("orders", partition_count=1)
    await broker.close()


async def test_wrong_keys_of_policies_hold_up_no_token_of_an_issuer(
    clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address with many wrong keys, of names made up: its keys are refused unchecked for a while."""
    monkeypatch.setattr(attempts, "FREE_FAILURES", 5)  # whatever other tests of the run have set
    broker = await Broker.open(MemoryEngine(Memory()), clock=clock)
    clock.now = _NOW
    broker.authorizer.entra = _tokens()
    peer = Peer(Door.HTTP, "192.0.2.1")
    for number in range(100):
        with pytest.raises((UnauthorizedError, ServerBusyError)):
            broker.authorize_key(f"made-up-{number}", "wrong", peer)
    with pytest.raises(ServerBusyError):
        broker.authorize_key("made-up", "wrong", peer)
    assert broker.authorize(_signed(), "orders", peer).claims == {Claim.SEND}
    failures = broker.key_guard.failures(Door.HTTP)
    with pytest.raises(UnauthorizedError):
        broker.authorize(_signed(_OTHER), "orders", peer)
    assert broker.key_guard.failures(Door.HTTP) == failures + 1
    await broker.close()
