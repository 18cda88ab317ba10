"""``tidegate token entra``: tokens for code that uses Microsoft Entra ID, without Entra ID.

A single token, or an endpoint that azure-identity's ``DefaultAzureCredential`` asks in every language: that
of managed identities in Azure App Service. Source: Azure "How to use managed identities for App Service and
Azure Functions", REST endpoint reference, api-version 2019-08-01 (2026-09).
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import click

from tidegate.cli.shell.completing import complete_hub
from tidegate.cli.shell.decorators import FILE, option
from tidegate.cli.shell.options import PORT, life_option, life_s, with_output
from tidegate.cli.shell.render import Output, remark
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.times import time_of

_ROLES: Final = {name: f"Azure Event Hubs Data {name}" for name in ("Sender", "Receiver", "Owner")}


@click.command()
@click.argument(
    "hub", required=False, shell_complete=complete_hub, help="The event hub. Default: the namespace."
)
@option(
    "--role",
    "ROLE",
    "Sender, Receiver or Owner; repeatable. Default: Owner.",
    click.Choice(tuple(_ROLES), case_sensitive=False),
    argument="roles",
    multiple=True,
)
@option("--principal", "ID", "Whom the token names, as the audit trail shows it.", default="developer")
@life_option
@option(
    "--data-dir",
    "DIR",
    "The service's data directory, which has the issuer's key. Default: that of this user's last service.",
    FILE,
)
@option(
    "--serve",
    "PORT",
    "Instead of one token, give a new one to every DefaultAzureCredential on this machine that asks at this "
    "port (0: any free one), until Ctrl-C.",
    PORT,
    argument="port",
)
@with_output()
def entra(
    output: Output,
    hub: str | None,
    roles: tuple[str, ...],
    principal: str,
    life: str,
    data_dir: Path | None,
    port: int | None,
) -> None:
    """Make a token as Microsoft Entra ID does.

    The service, on this machine, must run with --development-issuer, and over TLS where an SDK has no other
    way. The token has the roles on the event hub, or on the namespace, in its claim roles; nothing is sent to
    Azure. With --serve, the command prints the two variables that azure-identity looks for in every language.

    Examples:
      tidegate serve --development-issuer --amqps-port 5671 --http-port 5300
      curl -H "Authorization: Bearer $(tidegate token entra --role Sender)" -d hello \
http://127.0.0.1:5300/telemetry/messages
      tidegate token entra telemetry --role Receiver --serve 5600
    """
    from tidegate.server.development_issuer import DevelopmentIssuer
    from tidegate.server.ready import read_profile
    from tidegate.transport.clock import SystemClock

    if data_dir is None:
        profile = read_profile(os.environ)
        if profile is None:
            raise InvalidArgumentError(
                "This user's profile names no service.", next_step="Give its --data-dir."
            )
        data_dir = Path(profile.data_dir)
    issuer, clock = DevelopmentIssuer.open(data_dir), SystemClock()
    named = [f"{_ROLES[each]}@{hub}" if hub else _ROLES[each] for each in roles or ("Owner",)]
    seconds = life_s(life)

    def make(audience: str) -> tuple[str, int]:
        now = int(clock.now_utc().timestamp())
        return issuer.token(principal, named, now=now, life_s=seconds, audience=audience), now + seconds

    if port is not None:
        _serve(port, make, output)
        return
    token, expiry = make(issuer.trusted.audiences[0])
    if not output.is_table:
        output.record(
            {"token": token, "principal": principal, "roles": named, "expires_at": time_of(expiry * 1000)}
        )
        return
    output.line(token)
    remark(f"Roles: {', '.join(named)}. Valid for {life}. Treat it as a password.")


def _serve(port: int, make: Callable[[str], tuple[str, int]], output: Output) -> None:
    """Answer on loopback until interrupted."""
    secret = secrets.token_urlsafe(24)

    class Handler(BaseHTTPRequestHandler):
        """One request for a token."""

        def do_GET(self) -> None:
            """A token for the resource that is named, to who knows the secret."""
            asked = parse_qs(urlsplit(self.path).query).get("resource", [""])[0]
            if not hmac.compare_digest(self.headers.get("X-IDENTITY-HEADER", "").encode(), secret.encode()):
                self._answer(401, {"statusCode": 401, "message": "X-IDENTITY-HEADER is not IDENTITY_HEADER."})
            elif not asked:
                self._answer(400, {"statusCode": 400, "message": "The request names no resource."})
            else:
                token, expiry = make(asked)
                self._answer(
                    200,
                    {
                        "access_token": token,
                        "expires_on": str(expiry),
                        "resource": asked,
                        "token_type": "Bearer",
                    },
                )

        def _answer(self, status: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the printed lines are for `eval`."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InvalidArgumentError(
            f"Cannot listen on 127.0.0.1:{port}: {error.strerror}.", next_step="Use another port, or 0."
        ) from error
    with server:
        address = f"http://127.0.0.1:{server.server_address[1]}/msi/token"
        variables = {"IDENTITY_ENDPOINT": address, "IDENTITY_HEADER": secret}
        if output.is_table:
            for name, value in variables.items():
                output.line(f"export {name}={value}")
        else:
            output.record(variables)
        remark("Set these for your program. Ctrl-C ends this.")
        server.serve_forever()
