"""A pipeline's status: its file, what a reader makes of it, and the commands status and stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.support import run_on_terminal, run_tidegate

from tidegate.model.errors import DirectoryInUseError, InvalidArgumentError, NotFoundError
from tidegate.model.pipeline_status import PipelineState, PipelineStatus, ProcessIdentity
from tidegate.spark.progress.batches import BatchProgress
from tidegate.spark.progress.listener import ProgressListener
from tidegate.spark.progress.metrics import PipelineCollector
from tidegate.spark.progress.report import PipelineReporter
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import PipelineFiles, is_there, process_start, this_process

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
STATUS = PipelineStatus(
    name="delays",
    state=PipelineState.RUNNING,
    process=ProcessIdentity("host", 1, "then"),
    event_hub="flights",
    consumer_group="$Default",
    namespace="localhost",
    sink="sql",
    target="delays",
    checkpoint="/data/checkpoint",
    started_at=NOON,
    updated_at=NOON,
)

_COUNTS = st.none() | st.integers(0, 2**62)
_RATES = st.none() | st.floats(0, 1e12)


@given(
    st.sampled_from(PipelineState),
    st.dictionaries(st.text(max_size=5), st.integers(0, 2**62), max_size=4),
    _COUNTS,
    _RATES,
    st.none() | st.text(),
    st.none() | st.datetimes(timezones=st.just(UTC)),
)
@pytest.mark.slow
def test_what_is_written_is_read(
    state: PipelineState,
    lags: dict[str, int],
    count: int | None,
    rate: float | None,
    error: str | None,
    time: datetime | None,
) -> None:
    """The JSON form keeps every field."""
    status = replace(
        STATUS,
        state=state,
        lag_by_partition=lags,
        lag_events=count,
        input_events_per_s=rate,
        error=error,
        watermark=time,
    )
    assert PipelineStatus.from_json(status.to_json()) == status


def test_fields_of_a_later_release_are_left_out() -> None:
    """A field may be added without a new version."""
    values = json.loads(STATUS.to_json()) | {"colour": "blue"}
    assert PipelineStatus.from_json(json.dumps(values)) == STATUS


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', '{"version": 1, "state": "odd"}', "7"])
def test_other_text_is_no_status(text: str) -> None:
    """Whatever it is, it is one kind of error."""
    with pytest.raises(InvalidArgumentError, match="not a pipeline status"):
        PipelineStatus.from_json(text)


def test_a_later_version_is_named() -> None:
    """The sentence says which."""
    values = json.loads(STATUS.to_json()) | {"version": 2}
    with pytest.raises(InvalidArgumentError, match="version 2"):
        PipelineStatus.from_json(json.dumps(values))


def test_who_is_gone_without_a_word_was_killed(tmp_path: Path) -> None:
    """A status outlives its process; its number alone, given to another one, does not bring it back."""
    files = PipelineFiles(tmp_path)
    files.write(replace(STATUS, process=this_process()))
    assert files.read("delays").state is PipelineState.RUNNING
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        start = process_start(child.pid)
        assert start
        gone = replace(this_process(), pid=child.pid, started=start)
        assert is_there(gone)
        child.kill()
    files.write(replace(STATUS, process=gone))
    assert files.read("delays").state is PipelineState.KILLED
    files.write(replace(STATUS, process=replace(this_process(), started="another start")))
    assert files.read("delays").state is PipelineState.KILLED
    files.write(replace(STATUS, process=gone, state=PipelineState.STOPPED))
    assert files.read("delays").state is PipelineState.STOPPED
    files.write(replace(STATUS, process=replace(gone, host="elsewhere")))
    assert files.read("delays").state is PipelineState.RUNNING


def test_a_terminal_of_80_columns_shows_dead_letters_and_errors(tmp_path: Path) -> None:
    """Rates drop out before what is wrong."""
    failed = replace(STATUS, state=PipelineState.FAILED, error="Nothing answers.", dead_letters_open=4_711)
    PipelineFiles(tmp_path).write(failed)
    environment = os.environ | {"TIDEGATE_STATE_DIR": str(tmp_path)}
    shown = run_on_terminal("pipeline", "status", environment=environment).out
    assert ("4711" in shown, "Nothing" in shown) == (True, True)


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path) -> None:
    """``status`` shows what can be read."""
    files = PipelineFiles(tmp_path)
    files.write(STATUS)
    (files.root / "broken").mkdir()
    (files.root / "broken" / "status.json").write_text("{")
    assert [item.name for item in files.read_all()] == ["delays"]
    with pytest.raises(InvalidArgumentError, match=r"status\.json.*Delete it"):
        files.read("broken")
    with pytest.raises(NotFoundError, match="Those that have: broken, delays"):
        files.read("other")


def test_a_pipeline_runs_once(tmp_path: Path) -> None:
    """A second process of the same name is refused, and free again once the first has gone."""
    files = PipelineFiles(tmp_path)
    with files.owned("delays"), pytest.raises(DirectoryInUseError, match="tidegate pipeline stop delays"):
        files.owned("delays").__enter__()
    with files.owned("delays"):
        pass


# --- from Spark's progress to the status --------------------------------------------------------------------


def progress(batch_id: int = 3, *, rows: int = 100, start: int | None = 0, end: int = 100) -> str:
    """Spark's progress of a micro-batch, as PySpark 4.3 gives it, cut to what is read."""

    def offset(number: int | None) -> object:
        if number is None:
            return None
        return {"version": 1, "eventHubCreatedAtMs": 5, "partitions": {"0": number, "1": 7}}

    return json.dumps(
        {
            "name": "delays",
            "timestamp": "2026-11-22T12:00:00.000Z",
            "batchId": batch_id,
            "batchDuration": 250,
            "numInputRows": rows,
            "inputRowsPerSecond": 200.0,
            "stateOperators": [{"numRowsTotal": 5, "memoryUsedBytes": 800}],
            "eventTime": {"watermark": "2026-11-22T11:59:00.000Z"},
            "sources": [
                {
                    "startOffset": offset(start),
                    "endOffset": offset(end),
                    "latestOffset": {
                        "version": 1,
                        "eventHubCreatedAtMs": 5,
                        "partitions": {"0": 140, "1": 7},
                    },
                }
            ],
            "sink": {"numOutputRows": -1},
        }
    )


def test_a_progress_becomes_the_status() -> None:
    """Rates, lag, state and watermark are those of the micro-batch; counts add up."""
    once = BatchProgress.parse(progress()).applied_to(STATUS)
    assert (once.batch_id, once.batches, once.events, once.batch_ms) == (3, 1, 100, 250)
    assert (once.input_events_per_s, once.processed_events_per_s) == (200.0, 400.0)
    assert (once.lag_events, once.lag_by_partition) == (40, {"0": 40, "1": 0})
    assert (once.rows, once.state_rows, once.state_bytes) == (None, 5, 800)
    assert once.watermark == datetime(2026, 11, 22, 11, 59, tzinfo=UTC)
    twice = BatchProgress.parse(progress(4, start=100, end=140, rows=40)).applied_to(once)
    assert (twice.batches, twice.events_total) == (2, 140)


def test_events_that_are_read_twice_count_once() -> None:
    """A sink that reads its micro-batch twice doubles Spark's row count and rate, not ours."""
    found = BatchProgress.parse(progress(rows=200)).applied_to(STATUS)
    assert (found.events, found.input_events_per_s) == (100, 100.0)


def test_events_that_were_done_before_do_not_count() -> None:
    """A restarted query's offsets span what SQL has already; it reads only the rest."""
    assert BatchProgress.parse(progress(rows=30)).events == 30
    assert BatchProgress.parse(progress(rows=30, start=None)).events == 30


def test_a_micro_batch_that_a_start_repeats_has_no_lag() -> None:
    """Spark asks for the hub's end as it plans one, and this one is planned already; the next has a lag."""
    values = json.loads(progress())
    values["sources"][0]["latestOffset"] = None
    repeated = BatchProgress.parse(json.dumps(values)).applied_to(STATUS)
    assert (repeated.events, repeated.lag_events, repeated.lag_by_partition) == (100, None, {})
    assert BatchProgress.parse(progress(4, start=100)).applied_to(repeated).lag_events == 40


def test_an_empty_micro_batch_only_moves_the_lag() -> None:
    """The rates of the last real one stay, and it counts as no batch."""
    once = BatchProgress.parse(progress()).applied_to(STATUS)
    found = BatchProgress.parse(progress(4, rows=0, start=100)).applied_to(once)
    assert found == replace(once, lag_events=40)


def test_the_reporter_survives_what_it_tells() -> None:
    """A full disk, a database that is gone and a terminal that breaks end no pipeline, nor lose its state."""
    seen: list[PipelineStatus] = []
    done = threading.Event()

    def watch(status: PipelineStatus, is_batch: bool) -> None:
        if is_batch:
            seen.append(status)
            done.set()
            raise BrokenPipeError

    def write(status: PipelineStatus) -> None:
        raise OSError(28, "No space left on device")

    def count() -> int:
        raise InvalidArgumentError("no database")

    reporter = PipelineReporter(
        STATUS, clock=SystemClock(), write=write, watch=watch, count_dead_letters=count
    )
    with reporter:
        reporter.report_restart("no answer")
        reporter.report_state(PipelineState.RUNNING)
        reporter.report_rows(3, 90)
        reporter.report_progress(progress())
        assert done.wait(30)
        reporter.report_state(PipelineState.FAILED, error="it broke")
        reporter.report_state(PipelineState.STOPPED)
    assert (seen[0].rows, seen[0].error) == (90, None)
    assert (reporter.status.state, reporter.status.error) == (PipelineState.FAILED, "it broke")
    assert reporter.status.ended_at is not None


class _Told(threading.Event):
    """The end of a query, before which Spark tells of so many micro-batches, each within the time."""

    def __init__(self, listener: ProgressListener, batches: int, *, is_end_told: bool) -> None:
        super().__init__()
        self._listener, self._batches, self._is_end_told = listener, batches, is_end_told

    def wait(self, timeout: float | None = None) -> bool:
        """Time passes."""
        if self._batches == 0:
            return self._is_end_told
        self._batches -= 1
        event: Any = SimpleNamespace(progress=SimpleNamespace(runId="another"))
        self._listener.onQueryProgress(event)
        return False


@pytest.mark.parametrize("is_end_told", [True, False])
def test_a_query_is_heard_out_as_long_as_spark_tells_of_it(is_end_told: bool) -> None:
    """However many reports are to come and however slowly; not where none comes any more."""
    reporter = PipelineReporter(STATUS, clock=SystemClock(), write=lambda _: None)
    listener = ProgressListener("delays", reporter)
    listener.is_over = _Told(listener, 5, is_end_told=is_end_told)
    assert listener.wait_over(silence_s=1.0) is is_end_told
    assert listener._heard_count == 5


def test_every_metric_has_its_number() -> None:
    """What is known is there with its labels, what is not known is left out."""
    status = BatchProgress.parse(progress()).applied_to(STATUS)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in PipelineCollector(lambda: status).collect()
        for sample in family.samples
    }
    assert samples["tidegate_pipeline_events_total", "delays"] == 100
    assert samples["tidegate_pipeline_lag_events", "delays", "0"] == 40
    assert samples["tidegate_pipeline_state", "delays", "running"] == 1
    assert samples["tidegate_pipeline_batch_seconds", "delays"] == 0.25
    assert ("tidegate_pipeline_rows_total", "delays") not in samples


# --- the commands, on files that a pipeline has left --------------------------------------------------------


def test_status_and_stop_of_what_does_not_run(tmp_path: Path) -> None:
    """Nothing here, one that was killed, and one that ended; stop leaves them as they are."""
    environment = dict(os.environ) | {"TIDEGATE_STATE_DIR": str(tmp_path)}
    assert run_tidegate("pipeline", "status", "--json", environment=environment).json() == []
    missing = run_tidegate("pipeline", "stop", "delays", environment=environment)
    assert (missing.code, "No pipeline named 'delays'" in missing.err) == (1, True)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        started = process_start(child.pid) or "before"
    gone = replace(this_process(), pid=child.pid, started=started)
    PipelineFiles(tmp_path).write(replace(STATUS, process=gone, lag_by_partition={"0": 3}))
    listed = run_tidegate("pipeline", "status", "--nl", environment=environment).json()
    assert isinstance(listed, dict)
    assert listed["state"] == "killed"
    one = run_tidegate("pipeline", "status", "delays", "--json", environment=environment).json()
    assert isinstance(one, dict)
    assert (one["lag_by_partition"], one["error"]) == (
        {"0": 3},
        f"Its process {child.pid} is gone without reporting why.",
    )
    stopped = run_tidegate("pipeline", "stop", "delays", environment=environment)
    assert (stopped.code, "delays is not running: killed" in stopped.err) == (0, True)


def test_whether_it_waits_is_said_of_one_that_runs(tmp_path: Path) -> None:
    """One that is over is not busy because it is not idle: people are not told, programs are told false."""
    environment = dict(os.environ) | {"TIDEGATE_STATE_DIR": str(tmp_path)}
    files = PipelineFiles(tmp_path)
    files.write(replace(STATUS, process=this_process(), is_idle=True))
    assert "is_idle" in run_tidegate("pipeline", "status", "delays", environment=environment).out
    reporter = PipelineReporter(
        replace(STATUS, process=this_process(), is_idle=True), clock=SystemClock(), write=files.write
    )
    with reporter:
        reporter.report_state(PipelineState.ENDED)
    assert "is_idle" not in run_tidegate("pipeline", "status", "delays", environment=environment).out
    one = run_tidegate("pipeline", "status", "delays", "--json", environment=environment).json()
    assert isinstance(one, dict)
    assert (one["state"], one["is_idle"]) == ("ended", False)


def test_stop_says_where_it_gave_up(tmp_path: Path) -> None:
    """A process that does not listen is named, with what to do."""
    environment = dict(os.environ) | {"TIDEGATE_STATE_DIR": str(tmp_path)}
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        identity = replace(this_process(), pid=deaf.pid, started=process_start(deaf.pid) or "")
        PipelineFiles(tmp_path).write(replace(STATUS, process=identity))
        found = run_tidegate("pipeline", "stop", "delays", "--timeout", "0.3", environment=environment)
        deaf.send_signal(signal.SIGKILL)
    assert (found.code, f"kill -KILL {deaf.pid}" in found.err) == (3, True)
