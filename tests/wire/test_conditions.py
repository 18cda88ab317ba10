"""Errors and conditions: one table, both directions, nothing left out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate.amqp.errors import DecodeError
from tidegate.amqp.performatives import Error
from tidegate.amqp.types import Symbol
from tidegate.model import errors as model
from tidegate.model.errors import BrokenError, NotFoundError, ServerBusyError, TidegateError
from tidegate.wire.conditions import (
    CONDITIONS,
    ConditionRow,
    condition_for,
    error_from_amqp,
    error_from_condition,
    error_from_status,
    http_status_for,
    response_status_for,
    to_amqp_error,
)


@pytest.mark.parametrize("row", CONDITIONS, ids=lambda row: f"{row.error.__name__}-{row.condition}")
def test_every_condition_means_an_error_here(row: ConditionRow) -> None:
    """Protects clients: each condition in the table comes in as one of our errors, its text kept."""
    error = error_from_condition(row.condition, "text")
    assert type(error) is not TidegateError or row.condition == "amqp:internal-error"
    assert "text" in str(error)


@pytest.mark.parametrize(
    "kind",
    [
        model.UnauthorizedError,
        model.NotFoundError,
        model.InvalidArgumentError,
        model.PositionOutOfRangeError,
        model.AlreadyExistsError,
        model.EventTooLargeError,
        model.QuotaExceededError,
        model.ServerBusyError,
        model.ReceiverStolenError,
        model.OutOfOrderSequenceError,
        model.ProducerEpochStolenError,
        model.FencedError,
        model.OperationTimeoutError,
        model.BrokenError,
    ],
    ids=lambda kind: kind.__name__,
)
def test_an_error_that_crosses_the_wire_is_the_same_error(kind: type[TidegateError]) -> None:
    """Protects the promise that an error has one meaning on both sides."""
    assert type(error_from_amqp(to_amqp_error(kind("text")))) is kind
    assert type(error_from_status(response_status_for(kind("t")), "t", condition_for(kind("t")))) is kind


def test_an_unknown_partition_is_argument_out_of_range_and_not_found() -> None:
    """Protects official clients, which retry on amqp:not-found, and our callers, who catch NotFoundError."""
    error = model.PartitionNotFoundError.of(4)
    sent = to_amqp_error(error)
    assert (sent.condition, sent.description) == (
        "com.microsoft:argument-out-of-range",
        "The specified partition is invalid for an EventHub partition sender or receiver. "
        "It should be between 0 and 3.",
    )
    assert http_status_for(error) == 404
    # Java's third generation tries a 404 of $management again for a minute.
    assert response_status_for(error) == 400
    assert isinstance(error_from_amqp(sent), NotFoundError)
    assert not isinstance(error_from_condition(sent.condition, "another text"), NotFoundError)


def test_subclasses_go_out_as_their_base_and_foreign_errors_as_internal_without_their_text() -> None:
    """Protects errors without a row of their own, and the service's insides from its peers."""
    assert condition_for(model.ConnectionStringError("x")) == "com.microsoft:argument-error"
    assert condition_for(DecodeError("x")) == "amqp:decode-error"
    error = to_amqp_error(ValueError("/secret/path"))
    assert error.condition == "amqp:internal-error"
    assert error.description is not None
    assert "secret" not in error.description


def test_the_tracking_suffix_is_in_event_hubs_form() -> None:
    """Protects clients that look for TrackingId in texts."""
    error = to_amqp_error(
        NotFoundError("The messaging entity 'sb://h/x' could not be found."),
        tracking_id="a1",
        now_utc=datetime(2026, 9, 1, 1, 2, 3, tzinfo=UTC),
    )
    assert error == Error(
        Symbol("amqp:not-found"),
        "The messaging entity 'sb://h/x' could not be found. "
        "TrackingId:a1, SystemTracker:tidegate, Timestamp:2026-09-01T01:02:03",
    )


def test_what_the_table_lacks_is_still_an_error() -> None:
    """Protects against a peer's unknown condition or status, and against none at all."""
    assert "x:unknown" in str(error_from_condition("x:unknown", "why"))
    assert type(error_from_amqp(None)) is BrokenError
    assert isinstance(error_from_status(418, None), TidegateError)
    assert type(error_from_status(500, "x")) is TidegateError
    assert type(error_from_status(599, "x")) is TidegateError


def test_server_busy_says_how_long_to_wait() -> None:
    """Protects the back-off of four seconds that Event Hubs asks for."""
    error = error_from_condition("com.microsoft:server-busy", "slow down")
    assert isinstance(error, ServerBusyError)
    assert error.retry_after_s == 4.0
