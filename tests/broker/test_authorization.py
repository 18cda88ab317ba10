"""SAS authorization: who holds a key is let in, to what the token names, until it expires; nobody else is."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import pytest
from azure.eventhub import EventHubSharedKeyCredential
from hypothesis import given
from hypothesis import strategies as st
from tests.support.calls import calls_of

from tidegate.broker import (
    ROOT_POLICY_NAME,
    Authorizer,
    Broker,
    Claim,
    Grant,
    SharedAccessPolicy,
)
from tidegate.model.audience import NAMESPACE, Audience, entity_path, lies_in
from tidegate.model.errors import InvalidKeyError, UnauthorizedError
from tidegate.model.hosts import HostNames
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


@pytest.mark.parametrize("token", [_token(key="other"), _token(name="nobody"), _token()[:-1]])
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
    assert grant.permits(entity_path("hub", "Partitions", "0"), Claim.LISTEN, now_utc=_NOW)
    assert not grant.permits(entity_path("hub"), Claim.SEND, now_utc=_NOW)
    assert not grant.permits(entity_path("other"), Claim.LISTEN, now_utc=_NOW)
    later = _NOW + timedelta(hours=1)
    assert not grant.permits(entity_path("hub"), Claim.LISTEN, now_utc=later)
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
        ("sb://Host:5671/Hub/", Audience("host", entity_path("hub"))),
        ("amqps://host/a//b", Audience("host", entity_path("a", "b"))),
        ("/Hub/Partitions/0", Audience("", entity_path("hub", "partitions", "0"))),
        (
            "sb://host/hub/Publishers/Device%201",
            Audience("host", entity_path("hub", "publishers", "device 1")),
        ),
        ("sb://host/hub/Publishers/Gerät", Audience("host", entity_path("hub", "publishers", "gerät"))),
        (
            "sb://host/hub/ConsumerGroups/%24Default",
            Audience("host", entity_path("hub", "consumergroups", "$default")),
        ),
        ("sb://host", Audience("host", NAMESPACE)),
        ("/", Audience("", NAMESPACE)),
        ("own/hub", Audience("own", entity_path("hub"))),
        ("OWN:5671", Audience("own", NAMESPACE)),
        ("[::1]:5672/hub", Audience("::1", entity_path("hub"))),
        ("other/hub", Audience("", entity_path("other", "hub"))),
    ],
)
def test_audiences_are_normalised(text: str, expected: Audience) -> None:
    """Host and path are what counts; without a scheme there is a host only where it is the service's own."""
    assert Audience.parse(text, is_own_host=("own", "::1").__contains__) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("://", "://hub", "sb:///hub", "1:hub", "a b://host/hub", "sb://user@host/hub", "sb://host:x/hub"),
        *("other:5671/hub", "own:x/hub", "own@own/hub", "[::1/hub", "sb://[evil]/hub", "sb://a b/hub"),
        *("hub?x", "hub#x", "sb://host?x/hub", "sb://host#/hub", "sb://host/hub?x", "sb://host/hub/x?y"),
        *(
            "hub%3Fx",
            "hu%62",
            "sb://host/hu%62",
            "hub%2Fother",
            "hub%00",
            "hub\\other",
            " hub",
            "hub ",
            "hu\tb",
        ),
        *("hu\0b", "hub\n", "sb://host/hub/a\x7fb", "sb://host/hub/a%0Ab", "sb://host/hub/a\x85b"),
        *(".", "..", "./hub", "hub/../other", "hub/%2e%2e/other", "hub/./x", "sb://host/../hub"),
        *("hub/Publishers/a%2Fb", "hub/Publishers/a%5Cb", "hub/Publishers/a%3Fb", "hub/Publishers/a%23b"),
        *("hub/Publishers/a%2561", "hub/Publishers/a%25", "hub/Publishers/%zz", "hub/Publishers/%ff"),
        *("hub-\u212a", "ſub", "hüb", "hub\u200b", "hub/Publishers/a\u2028b"),
        "hub/" + "x" * 2050,
        "sb://host" + "/a" * 17,
    ],
)
@pytest.mark.slow
def test_audiences_that_could_mean_two_things_are_refused(text: str) -> None:
    """Nothing is cut off or decoded twice, and an event hub's name is in plain ASCII: else the policy that is
    chosen could be one event hub's and the entity that is reached another's.
    """
    with pytest.raises(UnauthorizedError, match=r"InvalidAudience: "):
        Audience.parse(text, is_own_host=("own", "::1").__contains__)


def test_an_audience_has_sixteen_parts_at_most() -> None:
    """Anyone may put a token for one, and each part costs several times: decoded, and looked for."""
    assert Audience.parse("sb://host" + "/a" * 16).path.count("/") == 15


@pytest.mark.parametrize("resource", ["", "other", "hub2", "hub", "hub/publishers/p"])
def test_a_grant_of_a_hubs_policy_permits_nothing_outside_the_hub(resource: str) -> None:
    """Whatever a faulty door made its token be for: the last line of defence is the grant itself."""
    audience = Audience("", entity_path(*resource.split("/")) if resource else NAMESPACE)
    grant = Grant("p", audience, frozenset(Claim), _EXPIRY, scope="hub", key="k")
    outside = (NAMESPACE, entity_path("other"), entity_path("hub2"), entity_path("other", "hub"))
    for path in (*outside, entity_path("$management"), entity_path("hub/x"), entity_path("")):
        assert not any(grant.permits(path, claim, now_utc=_NOW) for claim in Claim)
    within = entity_path("HUB", "Publishers", "P")
    assert grant.permits(within, Claim.SEND, now_utc=_NOW) == (resource in ("", "hub", "hub/publishers/p"))


async def test_a_host_without_a_scheme_counts_while_no_hub_has_its_name(broker: Broker) -> None:
    """Judged each time: before, while and after an event hub has the name of the service; grants follow.

    While there is one, such a token is for neither: a token for the hub would open the namespace later.
    """
    broker.authorizer.set_host_names(HostNames.of(["Gate.example"]))
    policy = broker.authorizer.policies[0]
    heard: list[bool] = []

    def grant_for(audience: str, wanted: str = "") -> Grant:
        token = make_sas_token(audience=audience, key_name=policy.name, key=policy.key, expiry=_EXPIRY)
        path = Audience("", entity_path(*wanted.split("/")) if wanted else NAMESPACE)
        return broker.authorizer.authorize(token, path, now_utc=_NOW)

    with pytest.raises(UnauthorizedError, match="InvalidAudience"):
        grant_for("elsewhere.example")
    grants = [grant_for("gate.EXAMPLE"), grant_for("GATE.example:5671/hub", "hub/Partitions/0")]
    grants += [grant_for("localhost/hub", "hub"), grant_for("127.0.0.1"), grant_for("sb://gate.example")]
    broker.authorizer.add_change_listener(lambda: heard.extend(map(broker.authorizer.is_in_force, grants)))
    await broker.create_event_hub("other", partition_count=1)
    assert heard == []
    await broker.create_event_hub("gate.example", partition_count=1)
    assert heard == [False, False, True, True, True]
    for wanted in ("", "hub", "gate.example"):
        for audience in ("gate.example", "GATE.example:5671/", "gate.example/hub"):
            with pytest.raises(UnauthorizedError, match="both the service and an event hub"):
                grant_for(audience, wanted)
    of_hub = [grant_for(text, "gate.example") for text in ("sb://any/gate.example", "/gate.example")]
    await broker.delete_event_hub("GATE.example")
    grant = grant_for("gate.example")
    assert grant.resource == Audience("gate.example", NAMESPACE)
    assert not any(each.permits(NAMESPACE, Claim.SEND, now_utc=_NOW) for each in of_hub)
    heard.clear()
    broker.authorizer.add_change_listener(lambda: heard.append(broker.authorizer.is_in_force(grant)))
    broker.authorizer.set_host_names(HostNames())
    assert heard[-1] is False


@pytest.mark.parametrize("length", [44, 1025])
def test_a_wrong_key_is_compared_with_none(length: int) -> None:
    """A stranger's key was compared with those of each hub that has policies: 9 ms for 10,000 hubs."""
    authorizer = Authorizer([_POLICY])
    for number in range(200):
        authorizer.set_policies([SharedAccessPolicy.generate("p", Claim)], event_hub=f"hub{number}")

    def guess() -> None:
        with pytest.raises(InvalidKeyError):
            authorizer.authorize_key("p", "x" * length)

    assert calls_of(guess) < 100


@pytest.mark.parametrize("count", [0, 1, 12])
def test_as_many_keys_are_tried_whatever_policies_a_hub_has(count: int) -> None:
    """A text of 12 KB is signed with each: the time of a refusal would say whether there is such a hub."""
    authorizer, tried = Authorizer([_POLICY]), list[str]()
    authorizer.set_policies(
        [SharedAccessPolicy.generate(f"p{number}", Claim) for number in range(count)], event_hub="hub"
    )

    def is_signed_with(key: str) -> bool:
        tried.append(key)
        return False

    with pytest.raises(InvalidKeyError):
        authorizer.authorize_signature([None, "hub"], is_signed_with)
    assert len(tried) == 2 * (1 + 12)


def test_a_change_parses_no_audience_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may have 2,500 tokens for audiences of 2,000 characters, which are checked in one step."""
    policy = SharedAccessPolicy.generate("p", Claim)
    authorizer = Authorizer([policy])
    token = make_sas_token(audience="hub/" + "x" * 1900, key_name="p", key=policy.key, expiry=_EXPIRY)
    grant = authorizer.authorize(token, Audience("", entity_path("hub", "x" * 1900)), now_utc=_NOW)
    parsed: list[str] = []
    monkeypatch.setattr(authorizer, "audience", parsed.append)
    authorizer.set_policies([policy])
    assert authorizer.is_in_force(grant)
    authorizer.set_host_names(HostNames.of(["other"]))
    assert authorizer.is_in_force(grant)
    authorizer.set_host_names(HostNames.of(["hub"]))
    assert not authorizer.is_in_force(grant)
    assert parsed == []


_NAMES = st.lists(
    st.text(alphabet=st.sampled_from("aAkK\u212a/%?#.$ 2fé\\"), min_size=1, max_size=4), max_size=3
)


@given(_NAMES, _NAMES)
@pytest.mark.slow
def test_paths_are_equal_for_equal_names_only(names: list[str], others: list[str]) -> None:
    """Whatever is in names: none gets out of its part of a path, so that none reaches another entity."""
    lower, others_lower = ([name.lower() for name in each] for each in (names, others))
    path, other = entity_path(*names), entity_path(*others)
    assert (path == other) == (lower == others_lower)
    assert lies_in(other, path) == (others_lower[: len(lower)] == lower)


@given(st.text(alphabet=st.sampled_from("ab:/@%25?#.[]\\$ \t\0é2f"), max_size=12), st.booleans())
def test_an_audience_has_one_meaning(text: str, is_host: bool) -> None:
    """What is not refused keeps its meaning when it is written plainly, and when it is read once more."""
    try:
        audience = Audience.parse(text, is_own_host=lambda host: is_host)
    except UnauthorizedError:
        return
    assert Audience.parse(f"sb://host/{audience.path}") == Audience("host", audience.path)
    first = audience.path.partition("/")[0]
    assert unquote(first) == first
    assert not set("?#\\") & set(text)
