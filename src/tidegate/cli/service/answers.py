"""What the service of this user's profile answers over HTTP, without a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.model.connection_string import ConnectionString

if TYPE_CHECKING:
    from tidegate.server.ready import ReadyInformation

_TIMEOUT_S: Final = 10.0


def address_of(profile: ReadyInformation, path: str) -> str | None:
    """The URL of a path: HTTP if it is served, else HTTPS; None: neither is."""
    # Connection strings name a host that clients can reach, and that is in the certificate.
    is_plain = profile.http is not None
    text = (profile.connection_string_plain if is_plain else None) or profile.connection_string
    listens = profile.http if is_plain else profile.https
    if listens is None:
        return None
    place = ConnectionString(ConnectionString.parse(text).host, int(listens.rpartition(":")[2]))
    return f"{'http' if is_plain else 'https'}://{place.authority}{path}"


def get(address: str, profile: ReadyInformation) -> tuple[bytes, str | None]:
    """Body and Date of an answer. Raises OSError."""
    import ssl
    import urllib.request

    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if address.startswith("https:"):
        context = ssl.create_default_context()
        if profile.ca_file is not None:
            context.load_verify_locations(profile.ca_file)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(address, timeout=_TIMEOUT_S) as response:
        return response.read(), response.headers.get("Date")
