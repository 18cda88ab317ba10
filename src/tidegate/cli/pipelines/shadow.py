"""``tidegate pipeline diff``, ``swap`` and ``drop``: the next version of a pipeline, before it goes live."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.pipelines.declared import load_declared_pipeline, pipeline_argument, require_spark
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import Decorator, option
from tidegate.cli.shell.exit_codes import CheckFailedError
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import database_alone, database_option, with_output
from tidegate.cli.shell.progress import progress_bar
from tidegate.cli.shell.render import Output, OutputFormat, counted, remark
from tidegate.cli.shell.stores import open_database
from tidegate.model.errors import InvalidArgumentError, NotFoundError
from tidegate.transport.status_files import PipelineFiles

if TYPE_CHECKING:
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline
    from tidegate.sql import Database, Pipeline
    from tidegate.sql.shadows.comparing import Comparison, RowValues
    from tidegate.sql.shadows.difference import ShadowDifference
    from tidegate.sql.shadows.shadow import Shadow

_COUNTS: Final = ("same", "changed", "only_live", "only_shadow")
_LETTER: Final = (("partition", "sequence_number"), ("error_type", "reason"))
"""Key and columns of a dead letter."""
_COLUMNS: Final = ("difference", "key", "column", "live", "shadow")


def shadow_option(text: str, *, is_required: bool = False) -> Decorator:
    """The option that names a shadow. text: the help."""
    return option("--shadow", "NAME", text, required=is_required)


_named = shadow_option("The shadow, as named in `pipeline replay`.", is_required=True)


@click.command()
@pipeline_argument
@_named
@database_option
@option("--ignore", "COLUMN", "A column not to compare; repeatable.", argument="ignored", multiple=True)
@option("--limit", "N", "Differing rows and dead letters to list.", click.IntRange(min=0), default=20)
@with_service
@with_output()
def diff(
    output: Output,
    service: Service,
    pipeline: str,
    shadow: str,
    database: str | None,
    ignored: tuple[str, ...],
    limit: int,
) -> None:
    """Compare a shadow with its live pipeline.

    Rows are compared by their primary key, and open dead letters by their event. Both are compared at the
    same position in each partition, while the live one runs on: a snapshot of the database shows its rows at
    its checkpoints, and the shadow is first replayed up to these. A pipeline of steps, which needs Spark, is
    not replayed here: run `pipeline replay` before, and stop the live one. Exit code 4 if they differ.

    Examples:
      tidegate pipeline diff delays_v2.py:pipeline --shadow v2 --database sqlite:///delays.db
      tidegate pipeline diff delays_v2.py:pipeline --shadow v2 --ignore scored_at --json
    """
    from tidegate.sql.shadows.difference import compare_shadow
    from tidegate.sql.shadows.shadow import live_positions, reading_snapshot
    from tidegate.sql.stores.checkpoints import CheckpointReader

    declared = load_declared_pipeline(pipeline)
    made = shadow_of(declared, shadow)
    with open_database(database) as opened, ExitStack() as stack:
        if not CheckpointReader(opened).read(made.consumer):
            raise NotFoundError(
                f"The pipeline {declared.name} has no shadow {shadow}.",
                next_step="Run `tidegate pipeline replay` first.",
            )
        live = stack.enter_context(reading_snapshot(opened))
        handled = handled_pipeline(declared)
        if handled is not None:
            _catch_up(opened, made, handled, service, live_positions(live, made))
        own = stack.enter_context(reading_snapshot(opened))
        found = compare_shadow(made, live, own, limit=limit, ignored=ignored)
    _write(output, found)
    remark(_summary(found))
    if not found.is_equal:
        raise CheckFailedError(
            f"The shadow {shadow} differs from the live pipeline {declared.name}.",
            next_step="Run `tidegate pipeline swap` if that is intended, `tidegate pipeline drop` if not.",
        )


@click.command()
@pipeline_argument
@_named
@database_alone
def swap(pipeline: str, shadow: str, database: str | None) -> None:
    """Make a shadow live, and the live pipeline the shadow.

    The two exchange their rows and dead letters. Stop the live pipeline, and run `pipeline replay` once more,
    which catches up. Both must have processed the same events; then the next version continues at the
    checkpoint: no event is skipped or processed twice. The former rows stay as the shadow: to go back, replay
    with the former version of the file, and swap again. If the command is interrupted, either nothing has
    changed, or running it again completes it.

    Example:
      tidegate pipeline swap delays_v2.py:pipeline --shadow v2 --database sqlite:///delays.db
    """
    from tidegate.sql.shadows.swap import swap_shadow

    declared = load_declared_pipeline(pipeline)
    made = shadow_of(declared, shadow)
    with _not_running(declared.name, made.query_name), open_database(database) as opened:
        swap_shadow(opened, made)
    remark(f"{made.table.name} has the rows of the shadow {shadow}, and {made.table_name} the former ones.")


@click.command()
@pipeline_argument
@_named
@database_alone
def drop(pipeline: str, shadow: str, database: str | None) -> None:
    """Delete a shadow: its table, checkpoints and dead letters.

    Example:
      tidegate pipeline drop delays_v2.py:pipeline --shadow v2 --database sqlite:///delays.db
    """
    from tidegate.sql.shadows.swap import drop_shadow

    made = shadow_of(load_declared_pipeline(pipeline), shadow)
    with _not_running(made.query_name), open_database(database) as opened:
        is_dropped = drop_shadow(opened, made)
        # Spark's own directory would continue where the dropped shadow was.
        directory = PipelineFiles.of_user(os.environ).checkpoint_dir(made.query_name)
        shutil.rmtree(directory, ignore_errors=True)
    if is_dropped:
        remark(f"Dropped the shadow {shadow} of {made.pipeline_name}.")
    else:
        remark(f"{made.pipeline_name} has no shadow {shadow}: nothing was dropped.")


def shadow_of(declared: StreamPipeline, name: str) -> Shadow:
    """A pipeline's shadow. Raises InvalidArgumentError if it has none."""
    from tidegate.spark.pipelines.stream_pipeline import SqlSink
    from tidegate.sql.shadows.shadow import Shadow

    if not isinstance(declared.sink, SqlSink):
        raise InvalidArgumentError(
            f"The pipeline {declared.name} does not write to SQL per hub partition, so it has no shadow.",
            next_step="Use a tidegate.sql.Pipeline, or a StreamPipeline with a SqlSink.",
        )
    return Shadow(name, declared.name, declared.consumer, declared.sink.table)


def handled_pipeline(declared: StreamPipeline) -> Pipeline | None:
    """The pipeline that needs no Spark; None: it has steps."""
    return None if declared.steps else declared.redrivable()


def on_spark(declared: StreamPipeline, made: Shadow) -> StreamPipeline:
    """The pipeline that writes to the shadow, for Spark. Raises NotFoundError if that is not installed."""
    from tidegate.spark.pipelines.stream_pipeline import SqlSink

    require_spark()
    assert isinstance(declared.sink, SqlSink)
    return replace(
        declared,
        name=made.query_name,
        source=replace(declared.source, consumer_group=made.consumer.consumer_group),
        sink=replace(declared.sink, table=made.shadow_table()),
    )


def begin_replay(
    database: Database, made: Shadow, declared: StreamPipeline, service: Service, *, has_capture: bool
) -> bool:
    """Create the shadow and replay the log into it; False: Spark has to replay."""
    from tidegate.sql.shadows.replaying import prepare_shadow
    from tidegate.sql.shadows.shadow import live_positions, reading_snapshot

    with reading_snapshot(database) as connection:
        until = live_positions(connection, made)
    prepare_shadow(database, made)
    handled = handled_pipeline(declared)
    if handled is None or has_capture:
        return False
    count = _catch_up(database, made, handled, service, until)
    remark(f"Replayed {counted(count, 'event')} into {made.table_name}, up to the live checkpoint.")
    return True


def _catch_up(
    database: Database, made: Shadow, handled: Pipeline, service: Service, until: Mapping[str, int]
) -> int:
    """Replay the log up to these positions; returns how many events that were."""
    from tidegate.client import EventHubConsumer
    from tidegate.sql.shadows.replaying import replay_into_shadow
    from tidegate.sql.stores.checkpoints import CheckpointReader

    connection = service.connection()
    done = CheckpointReader(database).read(made.consumer)
    total = sum(
        max(0, number - (((found := done.get(key)) and found.next_sequence_number) or 0))
        for key, number in until.items()
    )
    count = 0

    async def work() -> dict[str, int]:
        async with EventHubConsumer.from_connection_string(
            connection.connection_string,
            handled.event_hub,
            consumer_group=handled.consumer_group,
            ca_file=connection.ca_file,
        ) as consumer:
            return await replay_into_shadow(database, made, handled, consumer, until, progress=progress)

    with progress_bar("Replaying", total) as show:

        def progress(events: int) -> None:
            nonlocal count
            count += events
            show(count)

        late = run_interruptible(work())
    for partition_id, begin in late.items():
        remark(
            f"Partition {partition_id}: the log begins at {begin}, and earlier events are not replayed. If "
            "Capture has them, drop the shadow and replay with --capture."
        )
    return count


@contextmanager
def _not_running(*names: str) -> Iterator[None]:
    """Keep pipelines of these names from running on this machine. Raises DirectoryInUseError if one runs."""
    files = PipelineFiles.of_user(os.environ)
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(files.owned(name))
        yield


def _write(output: Output, found: ShadowDifference) -> None:
    if output.format is OutputFormat.JSON:
        output.record(
            {
                "positions": [
                    {"partition": each.partition_id, "live": each.live, "shadow": each.shadow}
                    for each in found.positions
                ],
                "columns": {"only_live": found.only_live, "only_shadow": found.only_shadow},
                "rows": _json(found.key, found.columns, found.rows),
                "dead_letters": _json(*_LETTER, found.dead_letters),
            }
        )
        return
    lines = [
        *_lines("row", found.key, found.columns, found.rows),
        *_lines("dead letter", *_LETTER, found.dead_letters),
    ]
    if lines or not output.is_table:
        output.records(lines, columns=_COLUMNS, title="Differences", is_whole=True)


def _json(key: Sequence[str], columns: Sequence[str], rows: Comparison) -> dict[str, object]:
    def named(names: Sequence[str], values: RowValues | None) -> dict[str, object] | None:
        return None if values is None else dict(zip(names, values, strict=True))

    counts = {name: getattr(rows, name) for name in _COUNTS}
    first = [
        {
            "key": named(key, each.key),
            "live": named(columns, each.live),
            "shadow": named(columns, each.shadow),
        }
        for each in rows.first
    ]
    return {**counts, "first": first}


def _lines(
    noun: str, key: Sequence[str], columns: Sequence[str], rows: Comparison
) -> Iterator[dict[str, object]]:
    """A line for each value that differs, or for a row that one side lacks."""
    from tidegate.sql.shadows.comparing import is_same

    for each in rows.first:
        names = ", ".join(f"{name}={value}" for name, value in zip(key, each.key, strict=True))
        start = {"difference": f"{noun} {each.kind}", "key": names}
        if each.live is None or each.shadow is None:
            values = [
                None
                if row is None
                else ", ".join(f"{name}={value}" for name, value in zip(columns, row, strict=True))
                for row in (each.live, each.shadow)
            ]
            yield start | {"live": values[0], "shadow": values[1]}
            continue
        for name, old, new in zip(columns, each.live, each.shadow, strict=True):
            if not is_same(old, new):
                # As text: a cell would round numbers, and perhaps to the same.
                yield start | {"column": name, "live": _text(old), "shadow": _text(new)}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _summary(found: ShadowDifference) -> str:
    lines = [f"Compared at the same position in {counted(len(found.positions), 'partition')}."]
    for noun, rows in (("Rows", found.rows), ("Open dead letters", found.dead_letters)):
        counts = ", ".join(f"{getattr(rows, name):,} {name.replace('_', ' ')}" for name in _COUNTS)
        lines.append(f"{noun}: {counts}.")
    for side, names in (("live", found.only_live), ("shadow", found.only_shadow)):
        if names:
            lines.append(f"Columns that only the {side} table has, not compared: {', '.join(names)}.")
    return "\n".join(lines)
