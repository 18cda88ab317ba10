"""``tidegate token sas``: which key signs, for what, and how long."""

from __future__ import annotations

import time

import pytest
from tests.cli.support import run_tidegate

from tidegate.model.sas import SharedAccessSignature
from tidegate.testing.hub import HubService


def test_the_connection_strings_own_key_signs_without_a_service(lonely: dict[str, str]) -> None:
    """Alone on standard output, for `$(…)`; for the entity and as long as asked for."""
    own = "Endpoint=sb://nobody.example/;SharedAccessKeyName=mine;SharedAccessKey=k"
    environment = lonely | {"TIDEGATE_CONNECTION_STRING": own}
    words = ("token", "sas", "telemetry", "--publisher", "a1", "--life", "2h")
    found = run_tidegate(*words, environment=environment)
    assert found.code == 0, found.err
    token = SharedAccessSignature.parse(found.out.removesuffix("\n"))
    assert (token.resource, token.key_name) == ("sb://nobody.example/telemetry/publishers/a1", "mine")
    assert token.is_signed_with("k")
    assert abs(token.expiry - time.time() - 7200) < 300  # noqa: TID251 - the service's clock is the machine's
    record = run_tidegate(*words, "--json", environment=environment).json()
    assert isinstance(record, dict)
    assert (record["entity"], record["policy"]) == ("telemetry/publishers/a1", "mine")


def test_the_narrowest_policy_signs(hub_service: HubService, environment: dict[str, str]) -> None:
    """With --claim, of the hub before the namespace; a named one; and a policy that does not exist."""
    hub = hub_service.create_hub()
    for name, claims in (("both", ("Send", "Listen")), ("sender", ("Send",))):
        options = [word for claim in claims for word in ("--claim", claim)]
        made = run_tidegate("policy", "create", name, "--hub", hub, *options, environment=environment)
        assert made.code == 0, made.err
    for options, policy in (
        (["--claim", "Send"], "sender"),
        (["--claim", "listen"], "both"),
        (["--claim", "Manage"], "RootManageSharedAccessKey"),
        (["--policy", "both"], "both"),
    ):
        record = run_tidegate("token", "sas", hub, *options, "--json", environment=environment).json()
        assert isinstance(record, dict)
        assert record["policy"] == policy
    missing = run_tidegate("token", "sas", hub, "--policy", "nobody", environment=environment)
    assert (missing.code, "No policy named nobody" in missing.err) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ("--publisher", "a"),
        ("h", "--publisher", "a", "--claim", "listen"),
        ("h", "--life", "soon"),
        ("h", "--life", "2026-01-01"),
        ("h", "--life", "0s"),
    ],
)
def test_what_makes_no_token(words: tuple[str, ...], environment: dict[str, str]) -> None:
    """Invalid usage."""
    assert run_tidegate("token", "sas", *words, environment=environment).code == 2
