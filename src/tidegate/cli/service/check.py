"""``tidegate check``: verify every byte of a data directory, and repair it if asked."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.shell.exit_codes import CheckFailedError
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.progress import NO_BAR, progress_bar
from tidegate.cli.shell.render import Output
from tidegate.model.errors import NotFoundError

if TYPE_CHECKING:
    from tidegate.broker.catalog_check import CatalogDamage
    from tidegate.storage.check import CheckReport, Damage

_COLUMNS = ("file", "position", "damage", "lost_from", "lost_until", "set_aside")


@with_output()
def check(
    output: Output,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A service's data directory; no service may run on it.")
    ],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Make damaged logs usable again; damaged files are set aside, not deleted."
        ),
    ] = False,
) -> None:
    """Verify every checksum of a data directory: its catalog and logs.

    Each damage is listed with the half-open range of sequence numbers that it costs. Exit code 4 if there is
    damage and it was not repaired. A damaged catalog cannot be repaired: it comes back from a backup.
    It may be interrupted: a check changes nothing, and a repair goes on where it is run again.

    \b
    Examples:
      tidegate check ./log
      tidegate check ./log --repair
    """
    from tidegate.broker.catalog_check import check_catalog

    try:
        report = _check_logs(directory, repair=repair, is_shown=output.is_table)
        catalog_damages = check_catalog(directory)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{directory} holds no service's data.",
            next_step="Name the directory that `tidegate serve --data-dir` uses.",
        ) from error
    records = [*map(_catalog_record, catalog_damages), *map(_record, report.damages)]
    if records or not output.is_table:
        output.records(records, columns=_COLUMNS, title="Damage")
    sys.stderr.write(_summary(report, is_catalog_sound=not catalog_damages))
    if not report.is_sound and not report.is_repaired:
        raise CheckFailedError(
            f"{len(records)} damages found.",
            next_step=f"`tidegate check {directory} --repair` keeps everything that is intact.",
        )
    if catalog_damages:
        raise CheckFailedError(
            f"{len(catalog_damages)} damages of the catalog found.",
            next_step="Restore catalog.json from a backup; intact logs need nothing.",
        )


def _check_logs(directory: Path, *, repair: bool, is_shown: bool) -> CheckReport:
    """``check_log_directory``, with a bar that counts bytes where is_shown and somebody watches."""
    from tidegate.cli.service.check_files import CountedFiles, segment_bytes
    from tidegate.storage.check import check_log_directory

    is_watched = is_shown and sys.stderr.isatty()  # else nobody needs the total
    shown = progress_bar("Checking", segment_bytes(directory)) if is_watched else nullcontext(NO_BAR)
    try:
        with shown as bar:
            return check_log_directory(directory, repair=repair, files=CountedFiles(bar))
    except KeyboardInterrupt:
        left = "What is repaired stays; run it again for the rest." if repair else "Nothing was changed."
        sys.stderr.write(f"Interrupted. {left}\n")
        raise


def _catalog_record(damage: CatalogDamage) -> dict[str, object]:
    return {"file": str(damage.path), "damage": damage.description}


def _record(damage: Damage) -> dict[str, object]:
    lost_from, lost_until = damage.lost if damage.lost is not None else (None, None)
    return {
        "file": str(damage.path),
        "position": damage.position,
        "damage": damage.description,
        "lost_from": lost_from,
        "lost_until": lost_until,
        "set_aside": None if damage.set_aside is None else str(damage.set_aside),
    }


def _summary(report: CheckReport, *, is_catalog_sound: bool) -> str:
    lines = [
        f"Read {report.bytes_read / 1e6:,.1f} MB: {report.events:,} events in {report.batches:,} batches, "
        f"{report.segments:,} segments, {report.partitions:,} partitions."
    ]
    lines += [
        f"{path}: a write was cut short at {position}; nothing acknowledged is in it, and the next start "
        "cuts it off."
        for path, position in report.torn_tails
    ]
    lines += [f"{path}: a file where a directory belongs; nobody reads it." for path in report.strays]
    if report.is_repaired:
        lines.append(f"Repaired {len(report.damages)} damages.")
    elif report.is_sound and is_catalog_sound:
        lines.append("All of it is sound.")
    return "\n".join(lines) + "\n"
