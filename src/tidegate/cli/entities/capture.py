"""``tidegate capture``: have the events of an event hub written to files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.shell.administering import administer
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, HubArgument, with_output
from tidegate.cli.shell.render import Output
from tidegate.model.capture import NAME_FORMAT_DEFAULT, CaptureSettings
from tidegate.model.limits import (
    CAPTURE_SIZE_WINDOW_BYTES_DEFAULT,
    CAPTURE_SIZE_WINDOW_BYTES_MAX,
    CAPTURE_SIZE_WINDOW_BYTES_MIN,
    CAPTURE_TIME_WINDOW_S_DEFAULT,
    CAPTURE_TIME_WINDOW_S_MAX,
    CAPTURE_TIME_WINDOW_S_MIN,
)

if TYPE_CHECKING:
    from tidegate.client import EventHubAdministrator

capture_app = typer.Typer(help="Capture events in Avro files, each event exactly once.", no_args_is_help=True)


@capture_app.command("show")
@with_output()
def show(
    output: Output,
    hub: HubArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show the capture settings of an event hub. Without capture, destination is empty.

    \b
    Example:
      tidegate capture show telemetry
    """
    settings = administer(lambda each: each.get_capture(hub), connection_string, ca_file)
    output.record(_record(hub, settings))


@capture_app.command("set")
@with_output()
def set_capture(
    output: Output,
    hub: HubArgument,
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="An absolute directory on the service's machine, or a URL that fsspec supports, such as "
            "abfs://container@account.dfs.core.windows.net/folder.",
        ),
    ],
    size_window_bytes: Annotated[
        int,
        typer.Option(
            min=CAPTURE_SIZE_WINDOW_BYTES_MIN,
            max=CAPTURE_SIZE_WINDOW_BYTES_MAX,
            metavar="N",
            help="Close a file after this many bytes of events.",
        ),
    ] = CAPTURE_SIZE_WINDOW_BYTES_DEFAULT,
    time_window_s: Annotated[
        int,
        typer.Option(
            min=CAPTURE_TIME_WINDOW_S_MIN,
            max=CAPTURE_TIME_WINDOW_S_MAX,
            metavar="S",
            help="Close a file after this many seconds.",
        ),
    ] = CAPTURE_TIME_WINDOW_S_DEFAULT,
    skip_empty: Annotated[
        bool, typer.Option("--skip-empty", help="Write no file for a time window without events.")
    ] = False,
    name_format: Annotated[
        str, typer.Option(metavar="FORMAT", help="Format of file names; must contain every field.")
    ] = NAME_FORMAT_DEFAULT,
    paused: Annotated[
        bool,
        typer.Option(
            "--paused", help="Save the settings but write nothing until they are set again without --paused."
        ),
    ] = False,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Turn on capture for an event hub. All its capture settings are replaced.

    Capture begins with the oldest retained event, or continues where it stopped.

    The service reads credentials for the destination from its environment (see docs/concepts/capture.md).

    \b
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

    output.record(_record(hub, administer(change, connection_string, ca_file)))


@capture_app.command("off")
def off(
    hub: HubArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Turn off capture for an event hub. Existing files stay; turned on again, capture continues where it
    stopped.

    \b
    Example:
      tidegate capture off telemetry
    """
    administer(lambda each: each.set_capture(hub, None), connection_string, ca_file)
    sys.stderr.write(f"Turned off capture for {hub}.\n")


def _record(hub: str, settings: CaptureSettings | None) -> dict[str, object]:
    record: dict[str, object] = {"event_hub": hub, "destination": None}
    return record if settings is None else record | settings.to_mapping()
