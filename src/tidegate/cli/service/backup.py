"""``tidegate backup``: copy a running service's data directory as it is at one moment."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import FILE
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.progress import ProgressBar, progress_bar
from tidegate.cli.shell.render import Output, attributes, columns_of, remark
from tidegate.model.errors import AlreadyExistsError, LogFailedError, NotFoundError, RemoteProtocolError

if TYPE_CHECKING:
    from tidegate.client import BackupProperties, EventHubAdministrator

_LOOK_EVERY_S: Final = 0.2
_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
"""Of a backup, as the service chooses it (``broker.backups``)."""

_ATTRIBUTES = columns_of("partitions=partition_count events=event_count bytes=bytes_total")


@click.command()
@click.argument(
    "destination",
    type=FILE,
    metavar="[DEST]",
    required=False,
    help="A new directory for the backup, on the service's machine. Default: it stays in the service's data "
    "directory.",
)
@with_service
@with_output()
def backup(output: Output, service: Service, destination: Path | None) -> None:
    """Copy a running service's data directory at one moment.

    The backup has all event hubs, policies and events that were acknowledged before the command. It is a data
    directory: check it with `tidegate check`, and start it with `tidegate serve --data-dir`. Requires Manage
    on the namespace. DEST also requires that the command runs on the service's machine, as the service's
    user. A backup is complete or not there; if the command is interrupted, what there is of it is deleted.

    Segments that are full are linked, not copied, where DEST is on the file system of the data directory. To
    survive the loss of the disk, DEST must be on another one.

    Examples:
      tidegate backup /mnt/backup/tidegate-monday
      tidegate backup --json
    """
    if destination is not None and destination.exists():
        raise AlreadyExistsError(f"{destination} exists already.", next_step="Name a new directory.")
    if destination is not None and not destination.absolute().parent.is_dir():
        raise NotFoundError(f"There is no directory {destination.absolute().parent}.")

    import asyncio  # takes long to import, for --help

    async def make(administrator: EventHubAdministrator) -> tuple[BackupProperties, Path]:
        begun = await administrator.create_backup()
        try:
            made = await _complete(administrator, begun)
            place = _place_of(made)
            if destination is not None:
                await asyncio.to_thread(_move, place, destination)
        except BaseException:
            with suppress(NotFoundError):
                await administrator.delete_backup(begun.name)
            raise
        if destination is not None and place.exists():
            await administrator.delete_backup(begun.name)
        return made, destination or place

    made, place = service.administer(make)
    output.record({"directory": str(place), **attributes(made, _ATTRIBUTES)})
    remark(f"Verify it with: tidegate check {shlex.quote(str(place))}")


def _place_of(made: BackupProperties) -> Path:
    """The backup's directory. Raises RemoteProtocolError for one that only another's service would name: it
    may be any of this machine's."""
    place = Path(made.place)
    is_in_backups = place.is_absolute() and place.parts[-2:] == ("backups", made.name)
    if not is_in_backups or not _NAME.fullmatch(made.name):
        raise RemoteProtocolError(
            f"The service names {made.place!r} as the directory of its backup {made.name!r}.",
            next_step="Do not trust this service: it must be `backups/NAME` of a data directory.",
        )
    return place


async def _complete(administrator: EventHubAdministrator, begun: BackupProperties) -> BackupProperties:
    """The backup once it is complete. Raises LogFailedError if it fails."""
    import asyncio

    with progress_bar("Backing up", begun.bytes_total or 0) as bar:
        while begun.state == "copying":
            bar(begun.bytes_copied or 0)
            await asyncio.sleep(_LOOK_EVERY_S)
            begun = await administrator.get_backup(begun.name)
    if begun.state != "complete":
        raise LogFailedError(f"The backup failed. {begun.failure}")
    return begun


def _move(place: Path, destination: Path) -> None:
    """Give the backup its final name, with the certificates of the service, durably. Raises NotFoundError."""
    try:
        is_here = place.is_dir()
    except PermissionError:
        is_here = False
    if not is_here:
        raise NotFoundError(
            f"The service's directory {place.parent} cannot be reached from here.",
            next_step="Run this command on the service's machine, as the service's user; or leave DEST out, "
            "and fetch the directory from there.",
        )
    certificates = place.parent.parent / "certificates"
    if certificates.is_dir():
        shutil.copytree(certificates, place / certificates.name, copy_function=_copy_file)
    try:
        os.rename(place, destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(place, destination)
    _sync(destination.parent)


def _copy(place: Path, destination: Path) -> None:
    """Copy to another file system; the directory gets its name when all of it is there."""
    new = destination.with_name(destination.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    total = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    try:
        with progress_bar("Copying", total) as bar:
            done = _Done(bar)
            shutil.copytree(place, new, copy_function=done.copy)
        for directory in (new, *(path for path in new.rglob("*") if path.is_dir())):
            _sync(directory)
        os.rename(new, destination)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


class _Done:
    """Counts what is copied."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._bytes = 0

    def copy(self, source: str, target: str) -> None:
        _copy_file(source, target)
        self._bytes += os.path.getsize(target)
        self._bar(self._bytes)


def _copy_file(source: str, target: str) -> None:
    shutil.copy2(source, target)
    _sync(Path(target))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
