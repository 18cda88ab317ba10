"""``tidegate check``: verify every byte of a data directory, and repair it if asked."""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.shell.decorators import FILE, flag
from tidegate.cli.shell.exit_codes import CheckFailedError
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.progress import no_bar, progress_bar
from tidegate.cli.shell.render import Output, attributes, columns_of, remark
from tidegate.model.errors import NotFoundError

if TYPE_CHECKING:
    from tidegate.cli.service.check_catalog import CatalogReport
    from tidegate.storage.check import CheckReport
    from tidegate.storage.examination.findings import Damage

_CATALOG_ATTRIBUTES = columns_of("file=path position damage=description set_aside")
_ATTRIBUTES = columns_of("file=path position damage=description set_aside")
_COLUMNS = ("file", "position", "damage", "lost_from", "lost_until", "set_aside")


@click.command()
@click.argument(
    "directory",
    type=FILE,
    metavar="DIR",
    help="A service's data directory. The service must be stopped.",
)
@flag("--repair", "Make damaged logs usable again; no bytes are deleted.")
@with_output()
def check(output: Output, directory: Path, repair: bool) -> None:
    """Verify every checksum of a data directory: its catalog and logs.

    Damage is listed with the half-open range of sequence numbers that it affects. Exit code 4 if there is
    damage that was not repaired. The catalog is kept twice: it can be repaired from what its files hold
    together, and the command says which changes are lost. The command can be interrupted: a check changes
    nothing, and a repair continues when it is run again.

    Examples:
      tidegate check ./log
      tidegate check ./log --repair
    """
    report, catalog = check_directory(directory, repair=repair, is_shown=output.is_table)
    records = damage_records(report, catalog)
    if records or not output.is_table:
        output.records(records, columns=_COLUMNS, title="Damage")
    remark(summary(report, catalog))
    if not report.is_sound and not report.is_repaired:
        remedy = "A repair cannot help: the list says what is in the way."
        if any(damage.is_repairable for damage in report.damages):
            remedy = f"Run `tidegate check {directory} --repair` to repair it; intact events are kept."
        raise CheckFailedError(f"Found damage in {len(records)} places.", next_step=remedy)
    if not catalog.is_sound and not catalog.is_repaired:
        remedy = "Restore control.log and control.copy from one backup; the intact logs can stay."
        if not repair:
            remedy = f"Run `tidegate check {directory} --repair`. If that cannot: {remedy}"
        raise CheckFailedError(
            f"Found damage in {len(catalog.damages)} places of the catalog.", next_step=remedy
        )


def check_directory(
    directory: Path, *, repair: bool = False, is_shown: bool
) -> tuple[CheckReport, CatalogReport]:
    """The logs and the catalog of a data directory. is_shown: with a bar, if standard error is a terminal.

    Raises NotFoundError if it is not one, and as ``check_catalog`` and ``check_log_directory``.
    """
    from tidegate.cli.service.check_catalog import check_catalog

    try:
        # First: where a later version has written it, nothing is repaired.
        catalog = check_catalog(directory, repair=repair)
        return _check_logs(directory, repair=repair, is_shown=is_shown), catalog
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{directory} is not a service's data directory.",
            next_step="Use the directory given to `tidegate serve --data-dir`.",
        ) from error


def _check_logs(directory: Path, *, repair: bool, is_shown: bool) -> CheckReport:
    """``check_log_directory``, with a bar that counts bytes if is_shown and standard error is a terminal."""
    from tidegate.storage.check import check_log_directory

    is_watched = is_shown and sys.stderr.isatty()
    shown = progress_bar("Checking", segment_bytes(directory)) if is_watched else nullcontext(no_bar)
    try:
        with shown as bar:
            return check_log_directory(directory, repair=repair, on_progress=bar)
    except KeyboardInterrupt:
        left = (
            "Repairs made so far are kept; run the command again for the rest."
            if repair
            else "Nothing changed."
        )
        remark(f"Interrupted. {left}")
        raise


def segment_bytes(data_directory: Path) -> int:
    """Bytes of all segments of a data directory, without those that a service removes meanwhile."""
    from tidegate.storage.log_manager import LOGS_NAME
    from tidegate.storage.segments.segment import SEGMENT_SUFFIX

    total = 0
    for segment in (data_directory / LOGS_NAME).glob(f"*/*/*{SEGMENT_SUFFIX}"):
        with suppress(FileNotFoundError):
            total += segment.stat().st_size
    return total


def damage_records(report: CheckReport, catalog: CatalogReport) -> list[dict[str, object]]:
    """Each damage, those of the catalog first."""
    records = [attributes(damage, _CATALOG_ATTRIBUTES) for damage in catalog.damages]
    return records + [_record(damage) for damage in report.damages]


def _record(damage: Damage) -> dict[str, object]:
    lost_from, lost_until = damage.lost or (None, None)
    if damage.lost is not None and lost_until is None:
        return attributes(damage, _ATTRIBUTES) | {"lost_from": lost_from, "lost_until": "unknown"}
    return attributes(damage, _ATTRIBUTES) | {"lost_from": lost_from, "lost_until": lost_until}


def summary(report: CheckReport, catalog: CatalogReport) -> str:
    """What was read and found, in lines for people."""
    lines = [
        f"Read {report.bytes_read / 1e6:,.1f} MB: {report.events:,} events in {report.batches:,} batches, "
        f"{report.segments:,} segments, {report.partitions:,} partitions."
    ]
    lines += [
        f"{torn.path}: an incomplete write at {torn.position}. At most {torn.length:,} bytes may have been "
        "acknowledged, in the last second before the service stopped; the next start removes them."
        for torn in report.torn_tails
    ]
    lines += [f"{path}: {description}." for path, description in report.notes]
    if report.unproved:
        lines.append(
            f"{len(report.unproved):,} partitions were not closed: the service was killed, or the power "
            "failed. Nothing shows whether more was acknowledged in the last second before that. Their ends: "
            + ", ".join(f"{path.parent.name}/{path.name} {number}" for path, number in report.unproved[:20])
            + (", …" if len(report.unproved) > 20 else "")
            + "."
        )
    lines += [f"{path}: unexpected file in place of a directory; ignored." for path in report.strays]
    if catalog.lost:
        lines.append(f"The catalog: {catalog.lost}")
    repaired = len(report.damages) * report.is_repaired + len(catalog.damages) * catalog.is_repaired
    if repaired:
        lines.append(f"Repaired damage in {repaired} places.")
    elif report.is_sound and catalog.is_sound:
        lines.append("No damage found.")
    return "\n".join(lines)
