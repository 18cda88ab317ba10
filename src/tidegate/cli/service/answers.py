"""What the service of this user's profile answers over HTTP, without a token."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import RemoteProtocolError

if TYPE_CHECKING:
    from tidegate.server.ready import ReadyInformation

BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an answer (our choice: several times the metrics of ten thousand partitions)."""

PORT_TAKEN: Final = (
    "If another program has the port, stop it, or start the service on another: tidegate serve --help lists "
    "the options."
)
"""What to do where another program seems to answer."""
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
    """Body and Date of an answer; a redirect is not followed. Raises OSError without an answer, and
    RemoteProtocolError if another program answers, or with an error."""
    # The service that the profile names may have ended, and its port be another program's.
    import ssl
    from http.client import HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":
        context = ssl.create_default_context()
        if profile.ca_file is not None:
            context.load_verify_locations(profile.ca_file)
        connection: HTTPConnection = HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    else:
        connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
    with closing(connection):
        try:
            connection.request("GET", parts.path)
            with connection.getresponse() as answer:
                body = answer.read(BYTES_MAX + 1)
        except (ssl.SSLCertVerificationError, RemoteDisconnected):
            raise
        except (ssl.SSLError, HTTPException, ValueError) as error:
            raise not_tidegate(address, f"it does not speak {parts.scheme.upper()}") from error
    if answer.status != 200:
        raise not_tidegate(address, f"it answers with {answer.status}")
    if len(body) > BYTES_MAX:
        raise not_tidegate(address, f"its answer has more than {BYTES_MAX} bytes")
    return body, answer.headers.get("Date")


def not_tidegate(address: str, why: str) -> RemoteProtocolError:
    """The error for an answer that a service does not give."""
    return RemoteProtocolError(
        f"No working service answers at {address}: {why}.",
        next_step=PORT_TAKEN,
    )
