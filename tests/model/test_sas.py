"""SAS tokens: ours are accepted by the rules, the SDK's are accepted by us, and altered ones are not."""

from __future__ import annotations

import pytest
from azure.eventhub import EventHubSharedKeyCredential
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import UnauthorizedError
from tidegate.model.sas import SharedAccessSignature, key_name_in, make_sas_token


@given(audience=st.text(min_size=1), key_name=st.text(min_size=1), key=st.text(min_size=1))
@pytest.mark.slow
def test_a_token_of_ours_parses_and_verifies(audience: str, key_name: str, key: str) -> None:
    """Any audience, policy name and key survive the percent-encoding."""
    token = make_sas_token(audience=audience, key_name=key_name, key=key, expiry=1_900_000_000)
    parsed = SharedAccessSignature.parse(token)
    assert (parsed.resource, parsed.key_name, parsed.expiry) == (audience, key_name, 1_900_000_000)
    assert parsed.is_signed_with(key)
    assert not parsed.is_signed_with(key + "x")


def test_a_token_of_the_official_sdk_verifies() -> None:
    """azure-eventhub 5.15.1 encodes the audience its own way; the signature covers it as it stands."""
    token = EventHubSharedKeyCredential("policy", "S+ecret/=").get_token("sb://localhost:5672/hub").token
    parsed = SharedAccessSignature.parse(token)
    assert (parsed.resource.lower(), parsed.key_name) == ("sb://localhost:5672/hub", "policy")
    assert parsed.is_signed_with("S+ecret/=")


@pytest.mark.parametrize("field", ["sr", "se"])
def test_an_altered_field_breaks_the_signature(field: str) -> None:
    """Neither the audience nor the expiry can be changed by the one who holds the token."""
    token = make_sas_token(audience="sb://host/hub", key_name="p", key="k", expiry=1_900_000_000)
    altered = {
        "sr": token.replace("hub", "bub"),
        "se": token.replace("se=1900000000", "se=1900000001"),
    }[field]
    assert altered != token
    assert not SharedAccessSignature.parse(altered).is_signed_with("k")


@pytest.mark.parametrize(
    "token",
    [
        "",
        "Bearer x",
        "SharedAccessSignature sr=a&sig=b&se=1",
        "SharedAccessSignature sr=a&sig=TOP&se=x&skn=p",
        "SharedAccessSignature sr=a&sig=TOP&skn=p&se=" + "9" * 5000,
        *(f"SharedAccessSignature sr=a&sig=TOP&skn=p&se=1&{twice}=b" for twice in ("sr", "sig", "se", "skn")),
        *(
            f"SharedAccessSignature sr=sb%3A%2F%2Fh%2F{name}&sig=TOP&skn={name}&se=1"
            for name in ("%FF", "%FE")
        ),
        "SharedAccessSignature sr=" + "%41" * 3000 + "&sig=TOP&skn=p&se=1",
        "SharedAccessSignature sr=a&sig=TOP&skn=p&se=1" + "".join(f"&{number}=" for number in range(20)),
    ],
)
def test_a_malformed_token_is_refused_without_being_repeated(token: str) -> None:
    """The error is for logs: the token is not."""
    assert key_name_in(token) == ""
    with pytest.raises(UnauthorizedError) as caught:
        SharedAccessSignature.parse(token)
    assert "TOP" not in str(caught.value)
