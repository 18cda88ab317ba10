"""``tidegate tier``: whose limits the namespace keeps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidegate.cli.shell.administering import administer
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, with_output
from tidegate.cli.shell.render import Output
from tidegate.model.limits import TIER_LIMITS, Tier

tier_app = typer.Typer(help="Show or set the Event Hubs tier whose limits apply.", no_args_is_help=True)


@tier_app.command("show")
@with_output()
def show(
    output: Output, connection_string: ConnectionStringOption = None, ca_file: CaFileOption = None
) -> None:
    """Show the tier and its limits.

    \b
    Example:
      tidegate tier show
    """
    output.record(_record(administer(lambda each: each.get_tier(), connection_string, ca_file)))


@tier_app.command("set")
@with_output()
def set_tier(
    output: Output,
    tier: Annotated[Tier, typer.Argument(metavar="TIER", case_sensitive=False, help="The tier.")],
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Apply another tier's limits. Effective immediately and after restarts. Existing entities are unchanged.

    \b
    Example:
      tidegate tier set Standard
    """
    output.record(_record(administer(lambda each: each.set_tier(tier), connection_string, ca_file)))


def _record(tier: Tier) -> dict[str, object]:
    return {"tier": tier.value, **asdict(TIER_LIMITS[tier])}
