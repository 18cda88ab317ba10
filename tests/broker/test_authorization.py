"""SAS authorization: who holds a key is let in, to what the token names, until it expires; nobody else is."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from azure.eventhub import EventHubSharedKeyCredential

from tidegate.broker import ROOT_POLICY_NAME, Authorizer, Broker, Claim, SharedAccessPolicy
from tidegate.model.audience import Audience
from tidegate.model.errors import UnauthorizedError
from tidegate.model.sas import make_sas_token

_NOW = datetime(2026, 11, 20, tzinfo=UTC)
_EXPIRY = int((_NOW + timedelta(hours=1)).timestamp())
_POLICY = SharedAccessPolicy("listener", "kEy+/=", frozenset({Claim.LISTEN}))


def _token(audience: str = "sb://localhost/hub", *, key: str = "kEy+/=", name: str = "listener") -> str:
    return make_sas_token(audience=audience, key_name=name, key=key, expiry=_EXPIRY)


@pytest.mark.parametrize(
    ("resource", "audience"),
    [
        ("sb://localhost/hub", "sb://localhost/hub"),
        ("sb://localhost/hub", "amqps://LOCALHOST:5671/Hub/"),
        ("http://localhost/hub/", "sb://localhost/hub/ConsumerGroups/$Default/Partitions/0"),
        ("sb://localhost:5672/hub", "sb://localhost:5672/hub/$management"),
        ("sb://localhost", "sb://localhost/any/Partitions/3"),
        ("amqp://[::1]:5672/hub", "sb://[::1]/hub"),
        ("sb://localhost/hub/consumergroups/$default", "sb://localhost/hub/consumergroups/$default"),
    ],
)
def test_a_token_authorises_its_resource_and_what_lies_beneath(resource: str, audience: str) -> None:
    """The forms of the official clients: scheme, port, letter case and slashes do not matter."""
    grant = Authorizer([_POLICY]).authorize(_token(resource), audience, now_utc=_NOW)
    assert (grant.policy_name, grant.expiry) == ("listener", _EXPIRY)
    assert grant.claims == {Claim.LISTEN}


@pytest.mark.parametrize(
    ("resource", "audience"),
    [
        ("sb://localhost/hub", "sb://localhost/hub2"),
        ("sb://localhost/hub", "sb://elsewhere/hub"),
        ("sb://localhost/hub/Partitions/0", "sb://localhost/hub"),
        ("sb://localhost/hub", "sb://localhost"),
    ],
)
def test_a_token_for_something_else_is_refused(resource: str, audience: str) -> None:
    """A neighbour, another host, a parent: InvalidAudience, in the service's words."""
    with pytest.raises(UnauthorizedError, match=r"InvalidAudience: .*wrong audience"):
        Authorizer([_POLICY]).authorize(_token(resource), audience, now_utc=_NOW)


@pytest.mark.parametrize("token", [_token(key="other"), _token(name="nobody"), _token() + "&sig=AAAA"])
def test_a_wrong_key_or_policy_is_an_invalid_signature(token: str) -> None:
    """The two are not told apart, and the message holds neither token nor key."""
    with pytest.raises(
        UnauthorizedError, match="InvalidSignature: The token has an invalid signature"
    ) as caught:
        Authorizer([_POLICY]).authorize(token, "sb://localhost/hub", now_utc=_NOW)
    assert "sig=" not in str(caught.value)
    assert _POLICY.key not in str(caught.value)


def test_an_expired_token_is_refused() -> None:
    """To the second, by the clock that is passed in; a grant ends then, too."""
    authorizer = Authorizer([_POLICY])
    grant = authorizer.authorize(_token(), "sb://localhost/hub", now_utc=_NOW)
    assert grant.permits("hub/Partitions/0", Claim.LISTEN, now_utc=_NOW)
    assert not grant.permits("hub", Claim.SEND, now_utc=_NOW)
    assert not grant.permits("other", Claim.LISTEN, now_utc=_NOW)
    later = _NOW + timedelta(hours=1)
    assert not grant.permits("hub", Claim.LISTEN, now_utc=later)
    with pytest.raises(UnauthorizedError, match="ExpiredToken"):
        authorizer.authorize(_token(), "sb://localhost/hub", now_utc=later)


def test_an_expiry_beyond_any_calendar_is_no_crash() -> None:
    """A token with a huge expiry is good as long as it can be a time at all, and refused beyond."""

    def token(expiry: int) -> str:
        return make_sas_token(audience="sb://h/hub", key_name="listener", key="kEy+/=", expiry=expiry)

    authorizer = Authorizer([_POLICY])
    assert authorizer.authorize(token(10**15), "sb://h/hub", now_utc=_NOW).expiry == 10**15
    with pytest.raises(UnauthorizedError, match="MalformedToken"):
        authorizer.authorize(token(10**30), "sb://h/hub", now_utc=_NOW)


def test_a_token_of_the_official_sdk_is_accepted(broker: Broker) -> None:
    """azure-eventhub 5.15.1 signs with the key of the first start's policy."""
    policy = broker.authorizer.policy(ROOT_POLICY_NAME)
    assert policy is not None
    token = EventHubSharedKeyCredential(policy.name, policy.key).get_token("sb://localhost/hub").token
    grant = Authorizer([policy]).authorize(
        token, "sb://localhost/hub", now_utc=datetime(2000, 1, 1, tzinfo=UTC)
    )
    assert grant.claims == set(Claim)


def test_the_first_start_makes_a_root_policy_with_a_random_key(broker: Broker) -> None:
    """32 random bytes, all claims, and no repr shows the key."""
    (policy,) = broker.authorizer.policies
    assert policy.name == ROOT_POLICY_NAME
    assert policy.claims == set(Claim)
    assert len(base64.b64decode(policy.key)) == 32
    assert SharedAccessPolicy.generate("x", ()).key != policy.key
    assert policy.key not in repr(policy)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sb://Host:5671/Hub/", Audience("host", "hub")),
        ("amqps://user@host/a//b?c", Audience("host", "a/b")),
        ("/Hub/Partitions/0", Audience("", "hub/partitions/0")),
        ("sb://host", Audience("host", "")),
        ("", Audience("", "")),
        ("://", Audience("", "")),
    ],
)
def test_audiences_are_normalised(text: str, expected: Audience) -> None:
    """Host and path are what counts; nothing raises."""
    assert Audience.parse(text) == expected
