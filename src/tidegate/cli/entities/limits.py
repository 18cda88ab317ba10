"""``tidegate throughput`` and ``tidegate tier``: the limits of the namespace."""

from __future__ import annotations

from dataclasses import asdict

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.options import number_or_off, with_output
from tidegate.cli.shell.render import Output
from tidegate.model.limits import TIER_LIMITS, Tier

throughput_group = CommandGroup("throughput", help="Show or set the namespace's throughput units.")
tier_group = CommandGroup("tier", help="Show or set the Event Hubs tier whose limits apply.")


@throughput_group.command("show")
@with_service
@with_output()
def show_units(output: Output, service: Service) -> None:
    """Show the throughput units, and the traffic rejected and delayed. No value means no limit.

    Rejected and delayed traffic is counted since the service started.

    Example:
      tidegate throughput show
    """
    output.record(asdict(service.administer(lambda each: each.get_throughput())))


@throughput_group.command("set")
@click.argument("units", metavar="N|off", help="Throughput units; off: no limit.")
@with_service
@with_output()
def set_units(output: Output, service: Service, units: str) -> None:
    """Set the namespace's throughput units. Effective immediately and after restarts.

    A unit is 1 MB or 1,000 events per second in, and 2 MB or 4,096 events per second out. Above the limit,
    producers get a server-busy error (some SDKs retry automatically), and readers are slowed.

    Examples:
      tidegate throughput set 4
      tidegate throughput set off
    """
    number = number_or_off("The number of units", units)
    output.record(asdict(service.administer(lambda each: each.set_throughput_units(number))))


@tier_group.command("show")
@with_service
@with_output()
def show_tier(output: Output, service: Service) -> None:
    """Show the tier and its limits.

    Example:
      tidegate tier show
    """
    output.record(_tier_record(service.administer(lambda each: each.get_tier())))


@tier_group.command("set")
@click.argument(
    "tier",
    type=click.Choice([tier.value for tier in Tier], case_sensitive=False),
    metavar="TIER",
    help="The tier.",
)
@with_service
@with_output()
def set_tier(output: Output, service: Service, tier: str) -> None:
    """Apply another tier's limits. Effective immediately and after restarts. Existing entities are unchanged.

    Example:
      tidegate tier set Standard
    """
    output.record(_tier_record(service.administer(lambda each: each.set_tier(Tier(tier)))))


def _tier_record(tier: Tier) -> dict[str, object]:
    return {"tier": tier.value, **asdict(TIER_LIMITS[tier])}
