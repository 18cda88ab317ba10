"""Credentials give tokens that the service can check, and never show their secrets."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tidegate.client.credentials import (
    EntraCredential,
    SharedKeyCredential,
    SharedSignatureCredential,
    credential_from_connection_string,
    refresh_delay_s,
)
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import BrokenError, ConnectionStringError, UnauthorizedError
from tidegate.model.sas import SharedAccessSignature, make_sas_token

AUDIENCE = "sb://host/hub"


async def test_a_shared_key_signs_for_the_audience() -> None:
    """The token is signed with the key, for that audience, and ends when the credential says."""
    token = await SharedKeyCredential("policy", "secret", token_lifetime_s=60).token_for(AUDIENCE, now=1000.5)
    parsed = SharedAccessSignature.parse(token.value)
    assert (parsed.resource, parsed.key_name, parsed.expiry, token.expiry) == (AUDIENCE, "policy", 1060, 1060)
    assert parsed.is_signed_with("secret")
    assert token.token_type == "servicebus.windows.net:sastoken"


async def test_a_ready_made_signature_is_used_as_it_is() -> None:
    """The bytes of a signature are never re-made: the service verifies them exactly as they stand."""
    signature = make_sas_token(audience=AUDIENCE, key_name="p", key="k", expiry=77)
    token = await SharedSignatureCredential(signature).token_for("sb://host/hub/x", now=0)
    assert (token.value, token.expiry) == (signature, 77)
    with pytest.raises(UnauthorizedError):
        await SharedSignatureCredential("nonsense").token_for(AUDIENCE, now=0)


@dataclass
class _AccessToken:
    token: str
    expires_on: int


class _Identity:
    def __init__(self) -> None:
        self.scopes: tuple[str, ...] = ()

    async def get_token(self, *scopes: str) -> _AccessToken:
        self.scopes = scopes
        return _AccessToken("ey.a.b", 500)


async def test_an_entra_credential_asks_for_the_event_hubs_scope() -> None:
    """Any object with azure-identity's get_token works; its token goes out as type jwt."""
    identity = _Identity()
    token = await EntraCredential(identity).token_for(AUDIENCE, now=0)
    assert identity.scopes == ("https://eventhubs.azure.net//.default",)
    assert (token.value, token.token_type, token.expiry) == ("ey.a.b", "jwt", 500)


async def test_a_failing_entra_credential_is_one_of_our_errors() -> None:
    """Whatever azure-identity raises becomes a BrokenError that says so: worth a retry, never a hang."""

    class Broken:
        async def get_token(self, *scopes: str) -> _AccessToken:
            raise KeyError("no identity here")

    with pytest.raises(BrokenError, match=r"KeyError.*no identity here"):
        await EntraCredential(Broken()).token_for(AUDIENCE, now=0)


def test_a_connection_string_gives_its_kind_of_credential() -> None:
    """Key, signature or neither: each is told apart, and neither is a clear error."""
    by_key = ConnectionString.parse("Endpoint=sb://h/;SharedAccessKeyName=p;SharedAccessKey=k")
    assert credential_from_connection_string(by_key) == SharedKeyCredential("p", "k")
    by_signature = ConnectionString.parse("Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x")
    assert credential_from_connection_string(by_signature) == SharedSignatureCredential(
        "SharedAccessSignature sr=x"
    )
    with pytest.raises(ConnectionStringError, match="neither"):
        credential_from_connection_string(ConnectionString.parse("Endpoint=sb://h/"))


async def test_no_repr_shows_a_secret() -> None:
    """Credentials and tokens end up in logs; their secrets must not."""
    credential = SharedKeyCredential("policy", "the-key")
    token = await credential.token_for(AUDIENCE, now=0)
    shown = repr([credential, SharedSignatureCredential("the-signature"), token])
    assert "the-key" not in shown
    assert "the-signature" not in shown
    assert "sig=" not in shown


def test_a_token_is_refreshed_well_before_it_ends() -> None:
    """Four fifths of the remaining life, never less than a second even when it has ended already."""
    assert refresh_delay_s(4600, now=1000) == 2880
    assert refresh_delay_s(1000, now=1000) == 1.0
    assert refresh_delay_s(900, now=1000) == 1.0
