"""``tidegate pipeline status`` and ``stop``: pipelines of this machine, seen from outside their processes."""

from __future__ import annotations

import os
import time
from typing import Final

import click

from tidegate.cli.shell.completing import complete_pipeline
from tidegate.cli.shell.decorators import option
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.render import Output, OutputFormat, attributes, columns_of, counted, remark
from tidegate.model.errors import OperationTimeoutError
from tidegate.model.pipeline_status import PipelineState, PipelineStatus
from tidegate.transport.status_files import PipelineFiles, ask_to_stop, is_there

_ATTRIBUTES: Final = columns_of(
    "pipeline=name state since=started_at batch=batch_id input_events_per_s processed_events_per_s batch_ms "
    "lag_events events=events_total dead_letters_open error"
)
_FIRST: Final = "pipeline state dead_letters_open lag_events since error events"
_POLL_S = 0.1


@click.command()
@click.argument(
    "name",
    required=False,
    shell_complete=complete_pipeline,
    help="The pipeline. Default: all that have run on this machine.",
)
@with_output()
def status(output: Output, name: str | None) -> None:
    """Show the pipelines that run on this machine, and how others ended.

    state is one of starting, running, stopping, stopped (on request), ended (all available events are
    processed), failed, and killed (the process is gone without reporting why). since is when it ended or,
    while it runs, when its process started; batch is the last micro-batch; the rates and lag_events are for
    that micro-batch, and events is counted since the process started. With a NAME, the lag of each partition
    and the other fields of the status file are shown, too.

    Examples:
      tidegate pipeline status
      tidegate pipeline status delays --json
    """
    files = PipelineFiles.of_user(os.environ)
    if name is None:
        found = files.read_all()
        records = (_summary(item) for item in found)
        output.records(records, columns=tuple(_ATTRIBUTES), title="Pipelines", first=_FIRST)
        return
    one = files.read(name)
    if output.format is OutputFormat.JSON or output.format is OutputFormat.NL:
        output.record(_details(one))
        return
    shown = {key: value for key, value in _details(one).items() if value is not None}
    if one.state.is_over:
        del shown["is_idle"]  # only meaningful while it runs
    output.record(shown, title=one.name)


@click.command()
@click.argument("name", shell_complete=complete_pipeline, help="The pipeline.")
@option("--timeout", "S", "Seconds to wait for it to stop.", click.FloatRange(min=0.1), default=60.0)
@with_output(OutputFormat.TABLE, OutputFormat.JSON)
def stop(output: Output, name: str, timeout: float) -> None:
    """Stop a running pipeline gracefully, and wait until it has stopped.

    It finishes its micro-batch, or abandons it safely. If it is not running, the command does nothing and
    exits with code 0.

    Example:
      tidegate pipeline stop delays
    """
    files = PipelineFiles.of_user(os.environ)
    found = files.read(name)
    if found.state.is_over:
        remark(f"{name} is not running: {_since(found)}.")
    else:
        found = _stop(files, found, timeout)
        remark(f"{name} has stopped after {counted(found.events_total, 'event')}.")
    if output.format is OutputFormat.JSON:
        output.record(_details(found))


def _stop(files: PipelineFiles, found: PipelineStatus, timeout_s: float) -> PipelineStatus:
    """Ask the process to stop, and wait until it has exited; returns its last status."""
    process = found.process
    if not ask_to_stop(found):
        return files.read(found.name)
    deadline = time.monotonic() + timeout_s
    while is_there(process):
        if time.monotonic() >= deadline:
            raise OperationTimeoutError(
                f"The pipeline {found.name} did not stop within {timeout_s:g} s.",
                next_step=f"Wait longer, or kill it with `kill -KILL {process.pid}`: what it has committed "
                "stays, and the next run repeats the rest.",
            )
        time.sleep(_POLL_S)
    return files.read(found.name)


def _summary(found: PipelineStatus) -> dict[str, object]:
    return attributes(found, _ATTRIBUTES) | {"since": found.ended_at or found.started_at}


def _details(found: PipelineStatus) -> dict[str, object]:
    values = found.to_values()
    if found.state is PipelineState.KILLED:
        values["error"] = f"Its process {found.process.pid} is gone without reporting why."
    return values


def _since(found: PipelineStatus) -> str:
    text = found.state.value
    return text if found.ended_at is None else f"{text} at {found.ended_at:%Y-%m-%d %H:%M:%S} UTC"
