"""A declared pipeline refuses what contradicts itself, by name, and knows whose a checkpoint directory is."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from sqlalchemy import Column, Integer, MetaData, String, Table
from tests.spark.support import readings, score

from tidegate.cli.pipelines.declared import load_declared_pipeline
from tidegate.model.errors import (
    EventHubReplacedError,
    FencedError,
    InvalidArgumentError,
    PartitionStoppedError,
    TidegateError,
)
from tidegate.processor.policies import FailurePolicy
from tidegate.spark.pipelines.failures import PipelineFailedError, StepFailedError, error_of, may_pass
from tidegate.spark.pipelines.identity import FILE_NAME, PipelineIdentity, claim_checkpoint
from tidegate.spark.pipelines.pipeline import run_pipeline, sink_options
from tidegate.spark.pipelines.stream_pipeline import (
    FileSink,
    HubSink,
    HubSource,
    OnFailure,
    SqlBatchSink,
    SqlSink,
    StreamPipeline,
    declared_pipeline,
)
from tidegate.spark.source.journal import local_path
from tidegate.sql import Pipeline, TransactionalPipeline

counts = Table("counts", MetaData(), Column("parity", String(8), primary_key=True), Column("number", Integer))


def unchanged(rows: object) -> object:
    """A step."""
    return rows


def declare(**changes: object) -> StreamPipeline:
    """A pipeline that is in order, but for ``changes``."""
    values: dict[str, object] = {
        "name": "readings",
        "source": HubSource("readings"),
        "sink": SqlSink(readings, score),
    }
    return StreamPipeline(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        (lambda: declare(name="a/b"), "cannot be the name of a pipeline"),
        (lambda: declare(name=""), "cannot be the name of a pipeline"),
        (lambda: declare(source="readings"), "its source is a str.*HubSource"),
        (lambda: declare(sink=readings), "its sink is a Table.*SqlSink, SqlBatchSink, HubSink or FileSink"),
        (lambda: declare(trigger="5 seconds"), "its trigger is a str.*Trigger"),
        (lambda: declare(steps=unchanged), "its steps must be a list, got a function"),
        (lambda: declare(steps=[unchanged, "filter"]), "its step 2 is a str"),
        (lambda: declare(sink=SqlSink(readings)), "nothing makes rows"),
        (lambda: declare(on_failure="stop"), "on_failure is 'stop'.*OnFailure.STOP"),
        (lambda: declare(on_failure=OnFailure.STOP), "on_failure is stop.*no step sets it"),
        (
            lambda: declare(sink=FileSink("out"), on_failure=OnFailure.DEAD_LETTER),
            "a FileSink has no database for them",
        ),
        (
            lambda: declare(sink=SqlSink(readings, score, policy=FailurePolicy()), steps=[unchanged]),
            "SqlSink.policy is for its handler",
        ),
        (lambda: declare(sink=HubSink("Readings")), "which it reads: an endless loop"),
        (
            lambda: declare(source=HubSource("readings", options={"tasksMax": "3"})),
            r"HubSource.options \(tasksMax\) are not used by a SqlSink",
        ),
        (lambda: HubSource("readings", max_events_per_trigger=0), "max_events_per_trigger is 0"),
        (
            lambda: HubSource("readings", options={"EventHubs.ConsumerGroup": "g"}),
            "use HubSource.consumer_group",
        ),
        (lambda: HubSource(""), "event hub"),
        (lambda: SqlBatchSink(readings), "no primary key"),
        (lambda: SqlBatchSink({}), "has no table"),
        (lambda: FileSink("out", partition_by="day"), "must be a list of column names, got 'day'"),
        (lambda: declare(sink=SqlBatchSink(counts)).redrivable(), "it has no handler"),
    ],
)
def test_contradictions_are_refused(declaration: Callable[[], object], words: str) -> None:
    """Each when it is declared, with a sentence that names it."""
    with pytest.raises(InvalidArgumentError, match=f"(?s){words}"):
        declaration()


def test_failures_are_dead_letters_where_there_is_a_database() -> None:
    """What is not said follows from the sink."""
    assert declare().failure_policy is OnFailure.DEAD_LETTER
    assert declare(sink=HubSink("alarms")).failure_policy is OnFailure.STOP
    assert declare(sink=FileSink("out"), steps=[unchanged], on_failure=OnFailure.SKIP).failure_policy is (
        OnFailure.SKIP
    )


def test_dead_letters_of_a_declared_pipeline_can_be_redriven() -> None:
    """It knows the plain pipeline that its SqlSink stands for."""
    policy = FailurePolicy(dead_letters_per_minute=5)
    sink = SqlSink(readings, score, policy=policy)
    plain = Pipeline("readings", "readings", readings, score, "night", policy=policy)
    assert declare(source=HubSource("readings", "night"), sink=sink).redrivable() == plain
    assert declared_pipeline(plain).redrivable() == plain


def test_a_transactional_pipeline_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has no context: what its handler publishes would be lost. It names the hub sink."""
    monkeypatch.setenv("PYTHONPATH", "")  # loading a declaration adds to both
    monkeypatch.setattr(sys, "path", list(sys.path))
    pipeline: Any = writes_itself
    options: Any = {"connection_string": "", "database_url": "", "checkpoint_location": ""}
    for refused in (
        lambda: declared_pipeline(pipeline),
        lambda: run_pipeline(cast(Any, None), pipeline, **options),
        lambda: sink_options(pipeline, {}, "", is_transformed=False),
        lambda: load_declared_pipeline(f"{__name__}:writes_itself"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"is transactional.*HubSink"):
            refused()


writes_itself = TransactionalPipeline("alarms", "readings", lambda context, events: None)


def test_secrets_are_not_shown() -> None:
    """A connection string in a declaration does not come out in its repr."""
    assert "secret" not in repr(declare(sink=HubSink("alarms", "Endpoint=sb://h;SharedAccessKey=secret")))


@pytest.mark.slow
def test_declaring_needs_no_spark() -> None:
    """A file of declarations is imported by commands that do not start Spark."""
    program = "import sys; import tidegate.spark.pipelines.stream_pipeline; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert found.stdout == b"False\n"


# --- whose a checkpoint directory is ----------------------------------------------------------------------

IDENTITY = PipelineIdentity(
    pipeline="delays",
    event_hub="flights",
    event_hub_created_at_ms=1_700_000_000_000,
    consumer_group="$Default",
    sink="sql-batch",
    target="delays",
    namespace="localhost",
)


def test_a_directory_belongs_to_who_came_first(tmp_path: Path) -> None:
    """The same pipeline goes on; the service's address and the spelling of the hub may change."""
    claim_checkpoint(str(tmp_path / "new"), IDENTITY)
    written = (tmp_path / "new" / FILE_NAME).read_text()
    claim_checkpoint(str(tmp_path / "new"), replace(IDENTITY, namespace="elsewhere", event_hub="Flights"))
    assert (tmp_path / "new" / FILE_NAME).read_text() == written


@pytest.mark.parametrize("field", ["pipeline", "event_hub", "consumer_group", "sink", "target"])
def test_the_directory_of_another_is_refused(tmp_path: Path, field: str) -> None:
    """The error says whose it is, who asks, and what to do."""
    claim_checkpoint(str(tmp_path), IDENTITY)
    with pytest.raises(InvalidArgumentError, match=r"belongs to .*, but this is 'other'.*--checkpoint-dir"):
        claim_checkpoint(str(tmp_path), replace(IDENTITY, **{field: "other"}))  # type: ignore[arg-type]


def test_a_hub_made_anew_is_refused(tmp_path: Path) -> None:
    """Offsets of the hub that was deleted mean nothing in the one of the same name."""
    claim_checkpoint(str(tmp_path), IDENTITY)
    with pytest.raises(EventHubReplacedError, match=r"2023-11-14.*which was deleted"):
        claim_checkpoint(str(tmp_path), replace(IDENTITY, event_hub_created_at_ms=1_800_000_000_000))


@pytest.mark.parametrize("files", [{"metadata": "{}"}, {FILE_NAME: "{"}, {FILE_NAME: '{"version": 0}'}])
def test_a_directory_that_does_not_say_whose_it_is_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    """A query of a user's own, a damaged file, and one without a version that ever was."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidArgumentError, match="does not say which pipeline it belongs to"):
        claim_checkpoint(str(tmp_path), IDENTITY)


def test_a_directory_of_a_newer_version_says_so(tmp_path: Path) -> None:
    """The way back is the newer version: in a new directory the pipeline would begin again."""
    (tmp_path / FILE_NAME).write_text('{"version": 2, "pipelines": []}')
    with pytest.raises(InvalidArgumentError, match=r"tidegate-pipeline\.json of version 2.*or a later one"):
        claim_checkpoint(str(tmp_path), IDENTITY)


def test_locations_of_this_machine() -> None:
    """Paths and file addresses are read here, all others through Spark."""
    assert local_path("/data/checkpoint") == Path("/data/checkpoint")
    assert local_path("file:/data/a%20b") == Path("/data/a b")
    assert local_path("abfss://c@a.dfs.core.windows.net/x") is None


# --- why a query ended --------------------------------------------------------------------------------------

ENDED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
LOST_TASK = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 1.0 (TID 7) (192.0.2.2 executor driver): "
)
STREAM_FAILED = f"""{ENDED}{LOST_TASK}{{cause}}
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:1)
Filter CASE WHEN isnotnull(_error#1) THEN cast(raise_error(USER_RAISED_EXCEPTION, map(errorMessage,
concat(TIDEGATE_STOPPED , partition#1, : , _error#1)), NullType) as boolean) ELSE true END"""


@pytest.mark.parametrize(
    ("cause", "kind", "words"),
    [
        (
            "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] TIDEGATE_STOPPED partition 0 "
            "number 3: too cold: -300 SQLSTATE: P0001 (TID 3)",
            PartitionStoppedError,
            r"policy is to stop \(partition 0 number 3\): too cold: -300\. Fix",
        ),
        (
            "Traceback:\ntidegate.model.errors.FencedError: Another driver took over.",
            FencedError,
            r"^Another driver took over\.$",
        ),
        ("Traceback:\nZeroDivisionError: division by zero", PipelineFailedError, "division by zero"),
    ],
)
def test_what_ended_a_query_is_one_error_of_ours(cause: str, kind: type[TidegateError], words: str) -> None:
    """The error at the root, whatever Spark has wrapped around it; its class gives the exit code."""
    error = error_of(RuntimeError(STREAM_FAILED.format(cause=cause)))
    assert type(error) is kind
    assert re.search(words, str(error))


@pytest.mark.parametrize("socket_error", ["Broken pipe", "Connection reset", ""])
def test_a_planning_process_that_is_gone_restarts_a_query(socket_error: str) -> None:
    """Spark 4.3 says no more of it; it depends on what the process was doing."""
    assert may_pass(RuntimeError(f"{ENDED}{socket_error} SQLSTATE: XXKST"))


# As Spark has them, but for frames and hosts.
FOREACH_BATCH = (
    f"{ENDED}[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach "
    "batch sink. Reason: An exception was raised by the Python Proxy. Return Message: "
    'Traceback (most recent call last):\n  File "clientserver.py", line 644, in _call_proxy\n'
    "    return_value = f()\n                   ^^^\n"
)
CALLING = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling o212.save.\n: "
    "org.apache.spark.SparkException: "
)
CRASHED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider 'x'"
STOPPED = (
    "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] TIDEGATE_STOPPED partition 0 number 1: x"
)
IN_PYTHON = (
    "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
    '  File "steps.py", line 23, in raises\n'
)
WRITING = (
    "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x. "
    "SQLSTATE: 58030\n\tat org.apache.spark.X.f(X.scala:1)\nCaused by: "
)


AWAITING = (
    "Exception thrown in awaitResult: \n\tat org.apache.spark.X.f(X.scala:1)\n\t... 43 more\n"
    "Caused by: org.apache.spark.SparkException: "
)


@pytest.mark.parametrize("before", [ENDED, "", FOREACH_BATCH + CALLING, FOREACH_BATCH + CALLING + AWAITING])
@pytest.mark.parametrize("task", ["", LOST_TASK, LOST_TASK + WRITING])
def test_why_a_query_ended_is_in_sparks_own_clause(before: str, task: str) -> None:
    """Also where Python calls Spark, as in a ``foreachBatch``, and for Spark's files."""
    assert may_pass(RuntimeError(before + task + CRASHED))
    assert type(error_of(RuntimeError(before + task + STOPPED))) is PartitionStoppedError


@pytest.mark.parametrize(
    "words",
    [
        *(CRASHED, STOPPED, CRASHED.partition(": ")[2], STOPPED.partition(": ")[2]),
        *(f"terminated with exception: {words}" for words in ("Broken pipe", STOPPED)),
    ],
)
@pytest.mark.parametrize(
    "before",
    [
        ENDED + IN_PYTHON + "ValueError: invalid literal for int() with base 10: '",
        ENDED + IN_PYTHON + "ValueError: ",
        ENDED + IN_PYTHON + "ValueError: \n" + ENDED,
        ENDED
        + LOST_TASK
        + "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "
        '"steps.py"\nValueError: ',
        FOREACH_BATCH + "ValueError: ",
        FOREACH_BATCH + "ValueError: \n" + CALLING,
        ENDED + LOST_TASK + "org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value '",
        ENDED + "[CAST_INVALID_INPUT] The value '\n\tat x\nCaused by: ",
        ENDED + "[USER_RAISED_EXCEPTION] of a step: ",
    ],
)
def test_an_events_words_do_not_pass_for_sparks(before: str, words: str) -> None:
    """Which a step's error quotes: no restart would help, and the policy did not stop the pipeline."""
    error = RuntimeError(f"{before}{words}'")
    assert not may_pass(error)
    assert type(error_of(error)) is PipelineFailedError


@pytest.mark.parametrize(
    ("cause", "is_passing"),
    [
        ("Traceback:\ntidegate.model.errors.DatabaseUnavailableError: No connection.", True),
        ("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)", True),
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", True),
        ("Traceback:\ntidegate.model.errors.FencedError: Another driver took over.", False),
        ("Traceback:\nConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("Traceback:\nZeroDivisionError: division by zero", False),
        ("[USER_RAISED_EXCEPTION] TIDEGATE_STOPPED partition 0 number 1: ExecutorLostFailure", False),
    ],
)
def test_only_what_may_pass_restarts_a_query(cause: str, is_passing: bool) -> None:
    """The service, the database or a worker was away; not what is the user's to correct."""
    assert may_pass(RuntimeError(STREAM_FAILED.format(cause=cause))) is is_passing


def test_an_error_of_a_step_names_its_line(tmp_path: Path) -> None:
    """The last line of the step's own file, whatever library it was in by then and however it is wrapped."""
    file = tmp_path / "pipelines.py"
    file.write_text(
        "import json\n"
        "def helper(text):\n"
        "    return json.loads(text)\n"
        "def parsed(text, rows):\n"
        "    return helper(text)\n"
        "class Looked:\n"
        "    def __call__(self, rows):\n"
        "        return {}['colour']\n"
    )
    names: dict[str, Callable[..., Callable[..., object]]] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)

    def error_through(step: Callable[..., object]) -> TidegateError:
        try:
            step(None)
        except Exception as error:
            return error_of(error, steps=[len, step])  # type: ignore[list-item]
        raise AssertionError("it raises")

    wrapped = functools.wraps(names["parsed"])(lambda rows: names["parsed"]("{", rows))
    for step in (functools.partial(names["parsed"], "{"), wrapped):
        error = error_through(step)
        assert type(error) is StepFailedError
        assert re.fullmatch(
            rf"The pipeline's helper failed in {re.escape(str(file))}, line 3: JSONDecodeError: .*\)\. "
            r"Fix it, then start again\.",
            str(error),
        )
    assert "pipelines.py, line 8: KeyError: 'colour'. Fix" in str(error_through(names["Looked"]()))


def test_what_spark_says_in_a_step_is_a_sentence() -> None:
    """Spark's own refusal of a step has the line as well; what comes out of no step ends with a full stop."""

    def step(rows: object) -> object:
        raise AnalysisException("[UNRESOLVED_COLUMN] No column colour. SQLSTATE: 42703;\n'Project ['colour]")

    with pytest.raises(AnalysisException) as caught:
        step(None)
    error = error_of(caught.value, steps=[step])  # type: ignore[list-item]
    assert type(error) is StepFailedError
    assert "The pipeline's step failed in " in str(error)
    assert "[UNRESOLVED_COLUMN] No column colour. SQLSTATE: 42703. Fix" in str(error)
    outside = error_of(ConnectionError("Java is gone"), steps=[step])  # type: ignore[list-item]
    assert (type(outside), str(outside)) == (PipelineFailedError, "Java is gone.")
