"""A query's failure policy: what happens to rows for which a step set the column ``_error``."""

from __future__ import annotations

import functools
import inspect
import re
import traceback
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.model.errors import PartitionStoppedError, TidegateError
from tidegate.spark.pipelines.stream_pipeline import OnFailure, Step
from tidegate.spark.runtime.errors import error_in, explain
from tidegate.sql.handlers.batches import (
    ERROR_COLUMN,
    PARTITION_COLUMN,
    SEQUENCE_NUMBER_COLUMN,
    SKIP_COLUMN,
)

# Spark's own words before the clause that says why a query ended, from their first character on: an event's
# words may be in that clause, and in a Python traceback of a step, and must not pass for Spark's. So the
# first of these words counts: without the look ahead, later ones on the same line would, too.
_ENDED = (
    r"\A(?:\[STREAM_FAILED\] Query (?:(?!terminated with exception:)[^\n])*terminated with exception:\s+)?"
)
_IN_FOREACH_BATCH = (
    r"(?:\[FOREACH_BATCH_USER_FUNCTION_ERROR\] [^\n]*?Traceback \(most recent call last\):\n(?: .*\n)+)?"
    r"(?:(?:py4j|pyspark)\.[\w.]+: )?(?:An error occurred while calling \S+\n: )?"
)
_SPARK_CLASS = r"(?:org\.apache\.spark\.[\w.$]+: )?"
_WRAPPED = (
    rf"(?:{_SPARK_CLASS}(?:Exception thrown in awaitResult: |\[TASK_WRITE_FAILED\] .*)\n"
    r"(?:\t.*\n)+Caused by: )?"
)
_LAST_ATTEMPT = (
    r"(?:Job aborted due to stage failure: Task \S+ in stage \S+ failed \d+ times, most recent failure: "
    r"Lost task \S+ in stage \S+ \(TID \d+\) \(\S+ executor \S+\): )?"
)
_CAUSE = _ENDED + _IN_FOREACH_BATCH + 2 * (_WRAPPED + _SPARK_CLASS + _LAST_ATTEMPT)

_MARK = "TIDEGATE_STOPPED"
_STOPPED = re.compile(
    rf"{_CAUSE}\[USER_RAISED_EXCEPTION\] {_MARK} (?P<where>[^:]*): (?P<reason>.*?)(?: SQLSTATE: |$)",
    re.MULTILINE,
)

_LOST_WORKER = re.compile(
    rf"{_CAUSE}(?:ExecutorLostFailure|Python worker (?:exited unexpectedly|failed to connect back))"
    rf"|{_ENDED}(?:Broken pipe|Connection reset|(?:null)? *SQLSTATE)"
)
"""Spark's words where a task's attempts are used up because its process was gone; and, seen with 4.3, where
the Python process that plans micro-batches is: Java's error of its socket, of which one has no message."""


def apply_policy(rows: DataFrame, policy: OnFailure, *, is_per_partition: bool = False) -> DataFrame:
    """Apply the policy to rows on their way to the sink; unchanged if there is no column ``_error``.

    is_per_partition: the sink must see every event, so skipped ones are marked with ``_skip`` instead of
    filtered out.
    """
    if ERROR_COLUMN not in rows.columns or policy is OnFailure.DEAD_LETTER:
        return rows
    is_bad = F.col(ERROR_COLUMN).isNotNull()
    if policy is OnFailure.STOP:
        # In a filter, which the optimizer does not prune.
        stop = F.raise_error(F.concat(F.lit(f"{_MARK} "), _where(rows), F.lit(": "), _text(ERROR_COLUMN)))
        return rows.where(F.when(is_bad, stop.cast("boolean")).otherwise(F.lit(True))).drop(ERROR_COLUMN)
    if is_per_partition:
        is_skipped = (
            F.coalesce(F.col(SKIP_COLUMN), F.lit(False)) if SKIP_COLUMN in rows.columns else F.lit(False)
        )
        return rows.withColumn(SKIP_COLUMN, is_bad | is_skipped).drop(ERROR_COLUMN)
    return rows.where(~is_bad).drop(ERROR_COLUMN)


def _where(rows: DataFrame) -> Column:
    """Names the event, as far as the columns still say which it is."""
    if {PARTITION_COLUMN, SEQUENCE_NUMBER_COLUMN} <= set(rows.columns):
        number = F.coalesce(_text(SEQUENCE_NUMBER_COLUMN), F.lit("?"))
        return F.concat(
            F.lit("partition "), F.coalesce(_text(PARTITION_COLUMN), F.lit("?")), F.lit(" number "), number
        )
    return F.lit("a row")


def _text(column: str) -> Column:
    return F.col(column).cast("string")


def stopped_error(text: str) -> PartitionStoppedError | None:
    """The error of the policy ``stop``, found in Spark's message; None: it is another error."""
    found = _STOPPED.search(text)
    if found is None:
        return None
    return PartitionStoppedError(
        f"An event cannot be processed, and the pipeline's policy is to stop ({found['where']}): "
        f"{found['reason'].strip().rstrip('.')}.",
        next_step="Fix the step or the event's source, then start again: it continues where it stopped.",
    )


class PipelineFailedError(TidegateError):
    """A query ended with an error that is not Tidegate's, but Spark's, a step's or Java's."""


class StepFailedError(PipelineFailedError):
    """A step raised an error while the query was built, which Spark's log does not show."""


def may_pass(exception: BaseException) -> bool:
    """Whether a query that ended with this may succeed when it is started again, unchanged."""
    if stopped_error(str(exception)) is not None:
        return False
    error = error_in(exception)
    return error.is_transient if error is not None else _LOST_WORKER.search(str(exception)) is not None


def error_of(exception: BaseException, *, steps: Sequence[Step] = ()) -> TidegateError:
    """The Tidegate error that ended a query: the one at the root, else one with ``explain``'s message.

    steps: the pipeline's; file and line are added to an error that one of them raised in this process.
    """
    stopped = stopped_error(str(exception))
    if stopped is not None:
        return stopped
    ours = error_in(exception)
    if ours is not None:
        return ours
    sentence = explain(exception)
    place = _place_in_steps(exception, steps)
    if place is None:
        return PipelineFailedError(_closed(sentence))
    where = f"The pipeline's {place.name} failed in {place.filename}, line {place.lineno}"
    is_of_java = isinstance(exception, CapturedException | Py4JError)
    if is_of_java and not isinstance(exception, AnalysisException):
        return PipelineFailedError(f"{where}: {_closed(sentence)}")
    if not is_of_java and str(exception):
        # Include the class's name, because a KeyError's message is only a key.
        sentence = f"{type(exception).__name__}: {sentence}"
    return StepFailedError(f"{where}: {_closed(sentence)}", next_step="Fix it, then start again.")


def _place_in_steps(exception: BaseException, steps: Sequence[Step]) -> traceback.FrameSummary | None:
    """The last line in the steps' own files through which the exception passed; None: there is none."""
    files = {_file_of(step) for step in steps}
    frames = [frame for frame in traceback.extract_tb(exception.__traceback__) if frame.filename in files]
    return frames[-1] if frames else None


def _file_of(step: Step) -> str | None:
    """The file of a step; None if it is not a Python function."""
    function: object = step
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else str(code.co_filename)


def _closed(sentence: str) -> str:
    """Add a full stop unless the sentence ends with punctuation."""
    sentence = sentence.rstrip(" ;")
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
