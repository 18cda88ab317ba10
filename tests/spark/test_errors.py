"""The user reads our sentence, not Spark's hundred lines around it."""

from __future__ import annotations

import pytest

from tidegate.model.errors import FencedError
from tidegate.spark.runtime.errors import explain, our_errors

_TASK_FAILURE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to \
stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 \
(127.0.0.1 executor driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "sink.py", line 1, in write
ValueError: inner

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "sink.py", line 1, in write
{error}

\tat org.apache.spark.api.python.BasePythonRunner.java:1
\tat java.lang.Thread.run(Thread.java:1)

Driver stacktrace: SQLSTATE: XXKST"""


def test_our_sentence_is_found_in_a_task_failure() -> None:
    """A fenced driver says who fenced it, in one line."""
    error = "tidegate.model.errors.FencedError: Another driver took over. Stop one of them."
    assert explain(RuntimeError(_TASK_FAILURE.format(error=error))) == (
        "Another driver took over. Stop one of them."
    )


def test_a_users_own_exception_is_shown_with_its_name() -> None:
    """A bug in a transformation is not hidden behind Spark's words."""
    shown = explain(RuntimeError(_TASK_FAILURE.format(error="flights.parse.BadRowError: row 7")))
    assert shown == "flights.parse.BadRowError: row 7"


@pytest.mark.parametrize(
    ("exception", "sentence"),
    [
        (FencedError("Gone.", next_step="Restart."), "Gone. Restart."),
        (RuntimeError("[STREAM_FAILED] Something else\nat x"), "[STREAM_FAILED] Something else"),
        (
            RuntimeError(
                "An error occurred while calling o1.start.\n"
                ": org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find it.\n"
                "\tat org.apache.spark.sql.X$.f(X.scala:1)\n"
            ),
            "[DATA_SOURCE_NOT_FOUND] Failed to find it.",
        ),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_everything_else_is_one_line(exception: BaseException, sentence: str) -> None:
    """There is always something to show."""
    assert explain(exception) == sentence


def test_empty_lines_of_an_event_cost_no_more_than_others() -> None:
    """Spark quotes what a cast refuses: with time by the square of its line feeds, this would take hours."""
    text = "[CAST_INVALID_INPUT] The value '" + "\n" * 1_000_000 + "' cannot be cast."
    assert our_errors(text) == []
