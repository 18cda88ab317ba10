"""``tidegate capture``: write the events of an event hub to files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import flag, option
from tidegate.cli.shell.options import hub_argument, with_output
from tidegate.cli.shell.render import Output, remark
from tidegate.model import limits
from tidegate.model.capture import NAME_FORMAT_DEFAULT, CaptureSettings

if TYPE_CHECKING:
    from tidegate.client import EventHubAdministrator

capture_group = CommandGroup("capture", help="Capture events in Avro files, each event exactly once.")


@capture_group.command()
@hub_argument
@with_service
@with_output()
def show(output: Output, service: Service, hub: str) -> None:
    """Show the capture settings of an event hub. Without capture, destination is empty.

    Example:
      tidegate capture show telemetry
    """
    output.record(_record(hub, service.administer(lambda each: each.get_capture(hub))))


@capture_group.command("set")
@hub_argument
@click.argument(
    "destination",
    metavar="DIR|URL",
    help="An absolute directory on the service's machine, or a URL that fsspec supports, such as "
    "abfs://container@account.dfs.core.windows.net/folder.",
)
@option(
    "--size-window-bytes",
    "N",
    "Close a file after this many bytes of events, each counted as stored and 150 more.",
    click.IntRange(limits.CAPTURE_SIZE_WINDOW_BYTES_MIN, limits.CAPTURE_SIZE_WINDOW_BYTES_MAX),
    default=limits.CAPTURE_SIZE_WINDOW_BYTES_DEFAULT,
)
@option(
    "--time-window-s",
    "S",
    "Close a file after this many seconds.",
    click.IntRange(limits.CAPTURE_TIME_WINDOW_S_MIN, limits.CAPTURE_TIME_WINDOW_S_MAX),
    default=limits.CAPTURE_TIME_WINDOW_S_DEFAULT,
)
@flag("--skip-empty", "Write no file for a time window without events.")
@option(
    "--name-format", "FORMAT", "Format of file names; must contain every field.", default=NAME_FORMAT_DEFAULT
)
@flag("--paused", "Save the settings but write nothing until they are set again without --paused.")
@with_service
@with_output()
def set_capture(
    output: Output,
    service: Service,
    hub: str,
    destination: str,
    size_window_bytes: int,
    time_window_s: int,
    skip_empty: bool,
    name_format: str,
    paused: bool,
) -> None:
    """Turn on capture for an event hub. All its capture settings are replaced.

    Capture begins with the oldest retained event, or continues where it stopped.

    The service reads credentials for the destination from its environment (see docs/concepts/capture.md).

    Examples:
      tidegate capture set telemetry /var/lib/capture --time-window-s 60 --skip-empty
      tidegate capture set telemetry abfs://archive@account.dfs.core.windows.net/events
    """
    settings = CaptureSettings(
        destination,
        is_enabled=not paused,
        size_window_bytes=size_window_bytes,
        time_window_s=time_window_s,
        is_empty_skipped=skip_empty,
        name_format=name_format,
    )

    async def change(administrator: EventHubAdministrator) -> CaptureSettings | None:
        await administrator.set_capture(hub, settings)
        return await administrator.get_capture(hub)

    output.record(_record(hub, service.administer(change)))


@capture_group.command()
@hub_argument
@with_service
def off(service: Service, hub: str) -> None:
    """Turn off capture for an event hub. Existing files stay; turned on again, capture continues where it
    stopped.

    Example:
      tidegate capture off telemetry
    """
    service.administer(lambda each: each.set_capture(hub, None))
    remark(f"Turned off capture for {hub}.")


def _record(hub: str, settings: CaptureSettings | None) -> dict[str, object]:
    record: dict[str, object] = {"event_hub": hub, "destination": None}
    return record if settings is None else record | settings.to_mapping()
