"""``tidegate hub``: create, list, show, update and delete event hubs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.shell.completing import complete_hub
from tidegate.cli.shell.connection import Service, impatient_namespace, open_administrator, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import Decorator, adding_argument, all_of, option
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import OFF, number_or_off, with_output, yes_option
from tidegate.cli.shell.profiles import ServiceConnection
from tidegate.cli.shell.render import Output, remark
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.model.hub_settings import HUB_SETTINGS, PARTITION_COUNT_DEFAULT, HubChanges, HubSetting
from tidegate.model.limits import PARTITIONS_MAX, TIER_DEFAULT, TIER_LIMITS

if TYPE_CHECKING:
    from tidegate.client import EventHubProperties

hub_group = CommandGroup("hub", help="Create, list, show, update and delete event hubs.")

name_argument = click.argument("name", shell_complete=complete_hub, help="The event hub.")

_HUB_COLUMNS = ("name", "partitions", *(setting.name for setting in HUB_SETTINGS), "created_at")
_PARTITION_COLUMNS = (
    "partition",
    "events",
    "begin_sequence_number",
    "next_sequence_number",
    "last_enqueued_time",
)


def _with_hub_settings(*, is_change: bool) -> Decorator:
    """Give a command an option for each setting; it takes those given as its argument ``settings``.

    is_change: ``off`` removes a limit.
    """

    def make(_: click.Context, arguments: dict[str, Any]) -> HubChanges:
        given = {each: arguments.pop(each.name) for each in HUB_SETTINGS}
        return {  # type: ignore[return-value]  # the names are those of HubChanges
            each.name: number_or_off(_option_name(each), value) if is_change and each.has_off else value
            for each, value in given.items()
            if value is not None
        }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = (_option(setting, is_change) for setting in HUB_SETTINGS)
        return all_of(*options)(adding_argument(command, "settings", make))

    return decorate


def _option(setting: HubSetting, is_change: bool) -> Decorator:
    text = setting.sentence + (f"; {setting.note}." if setting.note else ".")
    metavar = {"hours": "H"}.get(setting.unit, "N") if setting.kind is int else "TEXT"
    kind = click.IntRange(min=setting.minimum) if setting.kind is int else click.STRING
    if not is_change:
        text += f" Default: {_default_text(setting)}."
    elif setting.has_off:
        text += f" {OFF}: {setting.default}."
        metavar, kind = f"{metavar}|{OFF}", click.STRING
    elif setting.kind is str:
        text += f' "": {setting.default}.'
    return option(_option_name(setting), metavar, text, kind)


def _default_text(setting: HubSetting) -> str:
    if setting.default_value is None:
        return setting.default
    return f"{setting.default_value(TIER_LIMITS[TIER_DEFAULT])}, or what the tier allows"


def _option_name(setting: HubSetting) -> str:
    return f"--{setting.name.replace('_', '-')}"


@hub_group.command()
@name_argument
@option(
    "--partitions",
    "N",
    "Number of partitions; it can only grow later.",
    click.IntRange(1, PARTITIONS_MAX),
    default=PARTITION_COUNT_DEFAULT,
)
@_with_hub_settings(is_change=False)
@with_service
@with_output()
def create(output: Output, service: Service, name: str, partitions: int, settings: HubChanges) -> None:
    """Create an event hub.

    Example:
      tidegate hub create telemetry --partitions 8 --retention-hours 24
    """
    hub = service.administer(lambda each: each.create_event_hub(name, partition_count=partitions, **settings))
    output.record(_hub_record(hub))


@hub_group.command()
@name_argument
@option(
    "--partitions",
    "N",
    "Number of partitions: as now, or more.",
    click.IntRange(1, PARTITIONS_MAX),
)
@_with_hub_settings(is_change=True)
@yes_option
@with_service
@with_output()
def update(
    output: Output, service: Service, name: str, partitions: int | None, settings: HubChanges, yes: bool
) -> None:
    """Update the given settings of an event hub.

    Partitions can be added in the tiers Premium and Dedicated, and never removed. Keys then map to other
    partitions than before, so the earlier and the later events of a key may be in two partitions, without an
    order between them. Readers, hosts, Capture and Spark streams read added partitions from their beginning.

    Examples:
      tidegate hub update telemetry --retention-hours 48
      tidegate hub update telemetry --retention-bytes 10000000000 --event-bytes-max off
      tidegate hub update telemetry --partitions 8 --yes
    """
    if partitions is None and not settings:
        raise InvalidArgumentError("No setting to change was given.", next_step="See --help.")
    if partitions is not None and not yes and sys.stdin.isatty():
        click.confirm(
            f"Give {name} {partitions} partitions? They cannot be removed again, and if there are more than "
            "now, keys map to other partitions than before.",
            abort=True,
            err=True,
        )
    hub = service.administer(lambda each: each.update_event_hub(name, partition_count=partitions, **settings))
    output.record(_hub_record(hub))


@hub_group.command("list")
@with_service
@with_output()
def list_hubs(output: Output, service: Service) -> None:
    """List the event hubs.

    Example:
      tidegate hub list --json
    """
    hubs = service.administer(lambda each: each.list_event_hubs())
    output.records(map(_hub_record, hubs), columns=_HUB_COLUMNS)


@hub_group.command()
@name_argument
@with_service
@with_output()
def show(output: Output, service: Service, name: str) -> None:
    """Show an event hub's partitions and their contents.

    Prints a warning if the number of throughput units differs from the number of partitions: Azure's
    documentation recommends as many of one as of the other.

    Example:
      tidegate hub show telemetry
    """
    records, units = run_interruptible(_read(service.connection(), name))
    output.records(records, columns=_PARTITION_COLUMNS, title=f"Event hub {name}", first="partition events")
    if units not in (None, len(records)):
        remark(
            f"Warning: the hub has {len(records)} partitions and the namespace {units} throughput units. "
            f"Azure recommends as many units as partitions: `tidegate throughput set {len(records)}`."
        )


@hub_group.command()
@name_argument
@yes_option
@with_service
def delete(service: Service, name: str, yes: bool) -> None:
    """Permanently delete an event hub and all its events.

    Example:
      tidegate hub delete telemetry --yes
    """
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete the event hub {name} and all its events?", abort=True, err=True)
    service.administer(lambda each: each.delete_event_hub(name))
    remark(f"Deleted the event hub {name}.")


async def _read(connection: ServiceConnection, name: str) -> tuple[list[dict[str, object]], int | None]:
    """The rows of a hub's partitions, and the throughput units; None: no limit, or unknown."""
    from tidegate.client import EventHubConsumer

    records: list[dict[str, object]] = []
    async with EventHubConsumer(impatient_namespace(connection), name) as consumer:
        for partition in await consumer.get_all_partition_properties():
            # Azure may report -1 for both ends of an empty partition; Tidegate reports its next event.
            begin = max(partition.begin_sequence_number, 0)
            until = partition.next_sequence_number
            records.append(
                {
                    "partition": partition.partition_id,
                    "events": 0 if partition.is_empty else until - begin,
                    "begin_sequence_number": begin,
                    "next_sequence_number": until,
                    "last_enqueued_time": partition.last_enqueued_time,
                }
            )
    try:
        async with open_administrator(connection) as administrator:
            return records, (await administrator.get_throughput()).units
    except TidegateError:
        return records, None  # a policy without Manage, or a service that is not Tidegate


def _hub_record(hub: EventHubProperties) -> dict[str, object]:
    return {
        "name": hub.name,
        "partitions": len(hub.partition_ids),
        **hub.settings(),
        "created_at": hub.created_at,
    }
