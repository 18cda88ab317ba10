"""``tidegate pipeline run`` as a process, over a real service: progress, stop, restart, refusal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from examples.support.processes import session_members
from tests.cli.support import COMMAND, run_tidegate
from tests.spark.capture_support import captured_then_live
from tests.spark.support import assert_exact, outcome_of, publish

from tidegate.cli.pipelines.run import load_stream_pipeline
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.pipeline_status import PipelineState
from tidegate.testing.hub import HubService
from tidegate.transport.status_files import PipelineFiles

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import time
from pathlib import Path
from pyspark.sql.streaming.listener import StreamingQueryListener
from sqlalchemy import Column, MetaData, String, Table
from tests.spark.support import make_pipeline, readings, score
from tidegate.model.errors import BrokenError
from tidegate.spark import FileSink, HubSource, SqlSink, StreamPipeline

class SlowListener(StreamingQueryListener):
    def onQueryStarted(self, event): pass
    def onQueryIdle(self, event): pass
    def onQueryTerminated(self, event): pass
    def onQueryProgress(self, event): time.sleep(1)

def listen_slowly(rows):
    rows.sparkSession.streams.addListener(SlowListener())
    return rows.select("sequenceNumber")

def misspelt_step(rows):
    return rows.selectt("sequenceNumber")

def away_at_first(rows):
    tries = Path(__file__).with_name("tries")
    tries.touch()
    tries.write_text(tries.read_text() + "x")
    if len(tries.read_text()) <= 3:
        raise BrokenError("The service is away.")
    return rows.select("sequenceNumber")

quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
scored = StreamPipeline(
    "scored", HubSource(HUB, max_events_per_trigger=100), SqlSink(readings, score), spark_settings=quick
)
renamed = StreamPipeline("renamed", HubSource(HUB), SqlSink(readings, score), spark_settings=quick)
plain = make_pipeline(HUB, "plain")
slow_to_tell = StreamPipeline(
    "slow_to_tell",
    HubSource(HUB, max_events_per_trigger=100),
    FileSink(str(Path(__file__).parent / "files"), "parquet"),
    steps=[listen_slowly],
    spark_settings=quick,
)
restarted = StreamPipeline(
    "restarted",
    HubSource(HUB),
    FileSink(str(Path(__file__).parent / "files"), "parquet"),
    steps=[away_at_first],
    spark_settings=quick,
)
misspelt = StreamPipeline(
    "misspelt",
    HubSource(HUB),
    FileSink(str(Path(__file__).parent / "files"), "parquet"),
    steps=[misspelt_step],
    spark_settings=quick,
)
"""
EVENTS_PER_PART = 700


class Place:
    """A directory with a file of pipelines, a state directory, a database, and a hub."""

    def __init__(
        self, path: Path, service: HubService, environment: dict[str, str], hub: str | None = None
    ) -> None:
        self.service = service
        self.hub = hub or service.create_hub(partition_count=3)
        self.file = path / "pipelines.py"
        self.file.write_text(f"HUB = {self.hub!r}\n{PROGRAM}")
        self.files = PipelineFiles(path / "state")
        self.database_url = f"sqlite:///{path}/scored.db"
        self.environment = environment | {
            "TIDEGATE_STATE_DIR": str(path / "state"),
            "TIDEGATE_DATABASE": self.database_url,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        }
        self._published = 0

    def publish_part(self) -> int:
        """Send some more; how many there are now."""
        publish(self.service.connection_string, self.hub, EVENTS_PER_PART, first_value=self._published)
        self._published += EVENTS_PER_PART
        return self._published

    def words(self, name: str, *options: str) -> list[str]:
        """The command that runs a pipeline of the file."""
        return [*COMMAND, "pipeline", "run", f"{self.file}:{name}", "--nl", *options]

    @contextmanager
    def running(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """The pipeline ``scored`` as a process; killed at the end where it still runs."""
        with subprocess.Popen(
            self.words("scored", *options),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def place(tmp_path: Path, hub_service: HubService, environment: dict[str, str]) -> Place:
    """Everything that one test needs."""
    return Place(tmp_path, hub_service, environment)


def next_batch(process: subprocess.Popen[str]) -> dict[str, object]:
    """The next record of a running pipeline; fails with what it said where it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    record: dict[str, object] = json.loads(line)
    return record


@pytest.mark.programs
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_pipeline_is_run_stopped_killed_and_run_again(place: Place) -> None:
    """Whatever ends it, the next start goes on where it stood: every event once, and each end is told."""
    place.publish_part()
    with place.running("--metrics-port", "0") as process:
        first = next_batch(process)
        assert (first["pipeline"], first["events"], first["batch"]) == ("scored", 100, 0)
        while next_batch(process)["lag_events"]:
            pass
        # The file follows at most half a second behind; the test's own time limit is the deadline.
        while (status := place.files.read("scored")).events_total < EVENTS_PER_PART:
            time.sleep(0.05)
        assert (status.state, status.events_total) == (PipelineState.RUNNING, EVENTS_PER_PART)
        assert set(status.lag_by_partition) == {"0", "1", "2"}
        with urllib.request.urlopen(f"http://{status.metrics_address}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        assert f'tidegate_pipeline_events_total{{pipeline="scored"}} {EVENTS_PER_PART}.0' in metrics
        second = run_tidegate("pipeline", "run", f"{place.file}:scored", environment=place.environment)
        assert (second.code, f"runs already, as process {process.pid}" in second.err) == (1, True)
        # Some micro-batches of the second part run while it is being stopped, or all.
        place.publish_part()
        next_batch(process)
        stopped = run_tidegate("pipeline", "stop", "scored", environment=place.environment)
        assert (stopped.code, "scored has stopped after" in stopped.err) == (0, True)
        assert process.wait(60) == 0
    assert place.files.read("scored").state is PipelineState.STOPPED

    with place.running() as process:
        place.publish_part()
        next_batch(process)
        next_batch(process)
        process.send_signal(signal.SIGKILL)
    assert place.files.read("scored").state is PipelineState.KILLED

    event_count = place.publish_part()
    last = subprocess.run(
        place.words("scored", "--available-now"),
        env=place.environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (last.returncode, last.stderr.decode()[:6]) == (0, "Done: ")
    assert_exact(place.database_url, event_count)
    ended = place.files.read("scored")
    assert (ended.state, ended.lag_events) == (PipelineState.ENDED, 0)
    assert ended.dead_letters_open == outcome_of(place.database_url).dead_letters


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_what_spark_tells_late_is_heard_all_the_same(place: Place) -> None:
    """Its listeners hear of the last micro-batches seconds after the query has ended."""
    event_count = place.publish_part()
    ended = subprocess.run(
        place.words("slow_to_tell", "--available-now"),
        env=place.environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    status = place.files.read("slow_to_tell")
    assert (status.state, status.events_total, status.lag_events) == (PipelineState.ENDED, event_count, 0)


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_step_that_raises_is_named_by_its_line(place: Place) -> None:
    """With file and line, and without a pointer to Spark's log, which says nothing of it."""
    failed = run_tidegate("pipeline", "run", f"{place.file}:misspelt", environment=place.environment)
    line = place.file.read_text().splitlines().index('    return rows.selectt("sequenceNumber")') + 1
    where = f"The pipeline's misspelt_step failed in {place.file}, line {line}: "
    assert (failed.code, f"Error: {where}" in failed.err) == (1, True), failed.err
    assert failed.err.endswith(". Fix it, then start again.\n")
    assert "Restart" not in failed.err
    error = place.files.read("misspelt").error
    assert error is not None
    assert error.startswith(where)


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_is_restarted_after_an_error_that_may_pass(place: Place) -> None:
    """As often as the option says, with the error; a finished run keeps none."""
    event_count = place.publish_part()
    words = ("pipeline", "run", f"{place.file}:restarted", "--available-now")
    failed = run_tidegate(*words, "--restarts", "1", environment=place.environment)
    assert failed.code != 0
    assert "restarted  The service is away. Restart 1 of 1 in " in failed.err
    assert failed.err.endswith("Error: The service is away. Restarts without success: 1.\n")
    assert place.files.read("restarted").state is PipelineState.FAILED
    ended = run_tidegate(*words, environment=place.environment)
    assert ended.code == 0, ended.err
    assert "restarted  The service is away. Restart 1 of 5 in " in ended.err
    assert place.file.with_name("tries").read_text() == "x" * 4
    status = place.files.read("restarted")
    assert (status.state, status.events_total, status.error) == (PipelineState.ENDED, event_count, None)


@pytest.mark.programs
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_whose_planning_process_is_killed_is_restarted(place: Place) -> None:
    """Spark does not start that process again, as it does with those of tasks: it ends the query."""
    place.publish_part()
    with subprocess.Popen(
        place.words("scored"),
        env=place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while next_batch(process)["lag_events"]:
                pass
            (planner,) = (
                process_id
                for process_id in session_members(process.pid)
                if b"python_streaming_source_runner" in Path(f"/proc/{process_id}/cmdline").read_bytes()
            )
            os.kill(planner, signal.SIGKILL)
            event_count = place.publish_part()
            while next_batch(process)["lag_events"]:
                pass
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stderr is not None
            assert " Restart 1 of 5 in " in process.stderr.read()
        finally:
            process.kill()
    assert_exact(place.database_url, event_count)


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_signal_that_ends_java_first_is_heard(place: Place) -> None:
    """SIGTERM to the whole group, as a service manager sends it: exit code 0, no traceback, nothing lost.

    Java's end makes PySpark print tracebacks, which are not to be seen: here Java is gone at once.
    """
    event_count = place.publish_part()
    with subprocess.Popen(
        place.words("plain"),
        env=place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        next_batch(process)
        java = session_members(process.pid) - {process.pid}
        assert java
        # Java may not end by itself before it is killed, and Python is to have heard the signal before.
        for process_id in java:
            os.kill(process_id, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 2
        while place.files.read("plain").state is PipelineState.RUNNING and time.monotonic() < deadline:
            time.sleep(0.05)  # no longer: it may have asked Java something, which does not answer
        for process_id in java:
            os.kill(process_id, signal.SIGKILL)
        assert process.stderr is not None
        assert process.wait(60) == 0
        assert process.stderr.read().startswith("Stopped: ")
    assert place.files.read("plain").state is PipelineState.STOPPED
    assert outcome_of(place.database_url).position <= event_count


@pytest.mark.slow
def test_refusals_come_before_spark(place: Place) -> None:
    """Each in one sentence with what to do, and with its exit code, within the time of a small command."""
    claimed = place.files.checkpoint_dir("renamed")
    identity = {
        "version": 1,
        "pipeline": "scored",
        "event_hub": place.hub,
        "event_hub_created_at_ms": 1,
        "consumer_group": "$Default",
        "sink": "sql",
        "target": "readings",
        "namespace": "localhost",
    }
    claimed.mkdir(parents=True)
    (claimed / "tidegate-pipeline.json").write_text(json.dumps(identity))

    def refused(*words: str, code: int) -> str:
        found = run_tidegate("pipeline", "run", *words, environment=place.environment)
        assert (found.code, found.err.count("\n"), found.err[:7]) == (code, 1, "Error: "), found.err
        return found.err

    # The name was another hub's pipeline's before: its log is not to be seen by users of this hub.
    place.files.log_file("renamed").write_text("another tenant's events")
    assert "belongs to the pipeline 'scored', but this is 'renamed'" in refused(
        f"{place.file}:renamed", code=2
    )
    assert place.files.read("renamed").state is PipelineState.FAILED
    assert not place.files.log_file("renamed").exists()
    identity["pipeline"] = "renamed"
    (claimed / "tidegate-pipeline.json").write_text(json.dumps(identity))
    assert "which was deleted" in refused(f"{place.file}:renamed", code=1)
    place.environment.pop("TIDEGATE_DATABASE")
    assert "no database was given" in refused(f"{place.file}:scored", code=2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "pipelines.py:nothing",
            "Its pipelines are: scored, renamed, plain, slow_to_tell, restarted, misspelt",
        ),
        ("pipelines.py:readings", "is a Table, not a StreamPipeline or Pipeline"),
        ("missing.py:pipeline", "not found"),
        ("pipelines.py", "does not name a pipeline"),
    ],
)
def test_addresses_that_name_no_pipeline(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence says what the file has."""
    (tmp_path / "pipelines.py").write_text(f"HUB = 'readings'\n{PROGRAM}")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(InvalidArgumentError, match=words):
        load_stream_pipeline(f"{tmp_path}/{name}")


@pytest.mark.spark
@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.timeout(300)
def test_a_replay_begins_in_captured_files_and_goes_on_live(
    tmp_path: Path, hub_service: HubService, environment: dict[str, str]
) -> None:
    """The command over a real service whose log has lost what Capture has: every event once; then no more."""
    capture = tmp_path / "capture"
    place = Place(tmp_path, hub_service, environment, captured_then_live(hub_service, capture, 300, 100))
    words = ("pipeline", "replay", f"{place.file}:plain", "--capture", str(capture), "--available-now")
    first = run_tidegate(*words, "--json", environment=place.environment)
    assert first.code == 0, first.err
    assert_exact(place.database_url, 400)
    again = run_tidegate(*words, environment=place.environment)
    assert again.code == 0, again.err
    assert_exact(place.database_url, 400)
