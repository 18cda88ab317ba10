"""What is seen of a running pipeline: a line that is redrawn on a terminal, lines elsewhere, records."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from tests.cli.test_pipeline_status import STATUS

from tidegate.cli.pipelines.screen import PipelineScreen, ending, progress_line
from tidegate.cli.shell.render import Output, OutputFormat
from tidegate.model.pipeline_status import PipelineState

BATCH = replace(
    STATUS,
    batch_id=41,
    batches=3,
    events=1200,
    events_total=3600,
    input_events_per_s=1000.4,
    processed_events_per_s=2400.6,
    batch_ms=500,
    lag_events=17,
    dead_letters_open=2,
)
LINE = "delays  batch 41 · 1,200 events · 1,000/s in · 2,401/s done · 500 ms · lag 17 · 2 dead letters"


class Terminal(io.StringIO):
    """Somebody watches."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def shown(output_format: OutputFormat, errors: io.StringIO) -> str:
    """What standard output has after a run of one micro-batch and an idle moment."""
    stream = io.StringIO()
    screen = PipelineScreen(Output(output_format, stream=stream), errors=errors)
    screen.watch(replace(STATUS, state=PipelineState.RUNNING), False)
    screen.watch(BATCH, True)
    screen.watch(replace(BATCH, is_idle=True, input_events_per_s=0.0, processed_events_per_s=0.0), False)
    screen.close(replace(BATCH, state=PipelineState.STOPPED))
    return stream.getvalue()


def test_a_terminal_has_one_line_that_is_redrawn() -> None:
    """Each change clears the line and writes it anew; at the end stands how it ended."""
    errors = Terminal()
    assert shown(OutputFormat.TABLE, errors) == ""
    frames = errors.getvalue().split("\r\x1b[2K")
    assert frames[1:3] == ["delays  waiting for events …", LINE]
    assert frames[3] == "delays  batch 41 · idle · 500 ms · lag 17 · 2 dead letters"
    assert frames[4] == (
        "Stopped: 3,600 events in 3 micro-batches, 17 events behind, 2 dead letters open. "
        "The next run continues from there.\n"
    )


def test_records_on_a_terminal_have_it_for_themselves() -> None:
    """A line that is redrawn would begin the record's line."""
    stream, errors = Terminal(), Terminal()
    screen = PipelineScreen(Output(OutputFormat.NL, stream=stream), errors=errors)
    screen.watch(BATCH, True)
    screen.close(replace(BATCH, state=PipelineState.STOPPED))
    assert json.loads(stream.getvalue())["batch"] == 41
    assert errors.getvalue().startswith("Stopped: ")


def test_one_is_not_many() -> None:
    """One event, row, dead letter and micro-batch are singular, none and more are plural."""
    one = replace(BATCH, events=1, events_total=1, batches=1, rows=1, dead_letters_open=1)
    assert progress_line(one).startswith("delays  batch 41 · 1 event · ")
    assert progress_line(one).endswith(" · 1 row · 1 dead letter")
    assert ending(one) == (
        "Stopped: 1 event in 1 micro-batch, 17 events behind, 1 dead letter open. The next "
        "run continues from there."
    )
    none = ending(replace(one, events_total=0, batches=0))
    assert none.startswith("Stopped: 0 events in 0 micro-batches, ")


def test_elsewhere_a_micro_batch_is_a_line() -> None:
    """A log gets no control characters and nothing of idle moments."""
    errors = io.StringIO()
    assert shown(OutputFormat.TABLE, errors) == ""
    assert errors.getvalue().splitlines()[0] == LINE
    assert len(errors.getvalue().splitlines()) == 2


@pytest.mark.parametrize("output_format", [OutputFormat.TABLE, OutputFormat.NL])
def test_a_restart_is_a_line_with_its_reason(output_format: OutputFormat) -> None:
    """Also for programs, on standard error."""
    errors = io.StringIO()
    screen = PipelineScreen(Output(output_format, stream=io.StringIO()), errors=errors)
    screen.watch(replace(BATCH, state=PipelineState.STARTING, error="No database. Restart 1 of 5."), False)
    screen.watch(replace(BATCH, state=PipelineState.RUNNING, error="No database. Restart 1 of 5."), False)
    assert errors.getvalue() == "delays  No database. Restart 1 of 5.\n"


def test_an_error_does_not_control_the_terminal() -> None:
    """It may quote an event."""
    starting = replace(BATCH, state=PipelineState.STARTING, error="bad event \x1b[2J\n\u202e")
    assert progress_line(starting) == "delays  bad event \\x1b[2J\\n\\u202e"


def test_programs_get_records() -> None:
    """One per micro-batch; --json is one whole array at the end, --nl a line each."""
    for output_format in (OutputFormat.JSON, OutputFormat.NL):
        found = json.loads(shown(output_format, io.StringIO()))
        record = found[0] if output_format is OutputFormat.JSON else found
        assert (record["batch"], record["events"], record["lag_events"]) == (41, 1200, 17)


def test_a_state_without_a_micro_batch_has_words() -> None:
    """Spark's start takes seconds in which people want to see something."""
    assert progress_line(replace(STATUS, state=PipelineState.STARTING)) == "delays  starting Spark …"
    assert progress_line(replace(BATCH, state=PipelineState.STOPPING)).endswith("stopping …")
