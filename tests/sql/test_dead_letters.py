"""Dead letters: found, counted, discarded, and redriven once whatever happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.sql.support import (
    CONSUMER,
    PIPELINE,
    LogOfEvents,
    dead_numbers,
    event_with,
    events_between,
    row_count,
    rows_in,
)

from tidegate.amqp.encode import encode_value
from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.types import Symbol
from tidegate.model.errors import InvalidArgumentError, NotFoundError
from tidegate.model.events import ReceivedEvent
from tidegate.sql import (
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    DeadLetterStatus,
    NewDeadLetter,
    RedriveFailure,
    RedriveReason,
    RedriveReport,
    Row,
    UnitOfWork,
    process_partition_batch,
)
from tidegate.wire.event_codec import decode_event
from tidegate.wire.names import PUBLISHER

NO_DELAY = "no arrival delay: cancelled or diverted"


def without_delay(start: int, until: int, *, partition_id: str = "0") -> list[ReceivedEvent]:
    """Events that the pipeline of these tests puts aside."""
    return [event_with({"delay": None}, number, partition_id=partition_id) for number in range(start, until)]


def put_aside(database: Database, events: list[ReceivedEvent], *, is_payload_copied: bool = False) -> None:
    """Run events of one partition through the pipeline."""
    process_partition_batch(
        database,
        replace(PIPELINE, is_payload_copied=is_payload_copied),
        events[0].partition_id,
        events,
        start_sequence_number=events[0].sequence_number,
        until_sequence_number=events[-1].sequence_number + 1,
    )


def record_anything(event: ReceivedEvent) -> Row:
    """The corrected handler: no delay counts as minus one."""
    delay = json.loads(event.body)["delay"]
    return {
        "sequence_number": event.sequence_number,
        "partition_id": event.partition_id,
        "delay": -1 if delay is None else delay,
    }


CORRECTED = replace(PIPELINE, handler=record_anything)


def test_list_count_and_show(database: Database) -> None:
    """Filters narrow, order is by partition (2 before 10) and number, limit and offset page."""
    put_aside(database, without_delay(0, 3, partition_id="10"))
    put_aside(database, without_delay(5, 7, partition_id="2"))
    letters = DeadLetters(database)
    everything = [(letter.partition_id, letter.sequence_number) for letter in letters.list()]
    assert everything == [("2", 5), ("2", 6), ("10", 0), ("10", 1), ("10", 2)]
    page = letters.list(limit=2, offset=1)
    assert [(letter.partition_id, letter.sequence_number) for letter in page] == everything[1:3]
    now = letters.list()[0].last_failed_at
    enqueued = datetime(1970, 1, 1, tzinfo=UTC)
    enqueued += timedelta(milliseconds=min(letter.enqueued_time_ms for letter in letters.list()))
    counts = {
        DeadLetterFilter(): 5,
        DeadLetterFilter(event_hub="FLIGHTS", consumer_group="$default", pipeline="flights"): 5,
        DeadLetterFilter(event_hub="other"): 0,
        DeadLetterFilter(pipeline="other"): 0,
        DeadLetterFilter(partition_id="10"): 3,
        DeadLetterFilter(sequence_numbers=(0, 5, 99)): 2,
        DeadLetterFilter(status=None): 5,
        DeadLetterFilter(status=DeadLetterStatus.REDRIVEN): 0,
        DeadLetterFilter(error_type="ValueError"): 5,
        DeadLetterFilter(error_type="KeyError"): 0,
        DeadLetterFilter(reason_contains="Arrival"): 5,
        DeadLetterFilter(reason_contains="100%"): 0,
        DeadLetterFilter(failed_from=now + timedelta(hours=1)): 0,
        DeadLetterFilter(failed_until=now + timedelta(hours=1)): 5,
        DeadLetterFilter(enqueued_from=enqueued): 5,
        DeadLetterFilter(enqueued_from=enqueued + timedelta(microseconds=1)): 4,
    }
    assert {filter_: letters.count(filter_) for filter_ in counts} == counts
    assert letters.show(CONSUMER, "2", 6).reason == NO_DELAY
    with pytest.raises(NotFoundError, match="no dead letter 7"):
        letters.show(CONSUMER, "2", 7)


@pytest.mark.parametrize(
    ("part", "count"),
    [("[Timeout]", 1), ("5%", 1), ("a_b", 1), ("/c\\d", 1), ("[^x]", 0), ("a%b", 0), ("t_meout", 0)],
)
@pytest.mark.slow
def test_a_part_of_a_reason_is_not_a_pattern(database: Database, part: str, count: int) -> None:
    """Every character is itself; letters match in either case."""
    letter = NewDeadLetter.from_text(event_with({}, 1), "E", "[timeout] 5% a_b /c\\d ")
    put_aside(database, without_delay(2, 3))
    with UnitOfWork(database, CONSUMER) as unit:
        unit.add_dead_letters("0", [letter])
    letters = DeadLetters(database)
    assert letters.count(DeadLetterFilter(reason_contains=part)) == count
    assert letters.count(DeadLetterFilter(reason_is="[timeout] 5% a_b /c\\d ")) == 1
    assert letters.count(DeadLetterFilter(reason_is="[timeout] 5% a_b /c\\d")) == 0


def test_counts_by_reason(database: Database) -> None:
    """The most frequent reason first."""
    put_aside(database, [*without_delay(0, 3), event_with({}, 3)])
    counts = DeadLetters(database).counts_by_reason()
    assert [(count.error_type, count.count) for count in counts] == [("ValueError", 3), ("KeyError", 1)]
    assert counts[0].first_failed_at.tzinfo is not None


@pytest.mark.parametrize("section", [b"\x00\x53\x77", b"\x00\x53\x76"], ids=["value", "sequence"])
def test_a_copy_keeps_a_body_that_is_not_bytes(database: Database, section: bytes) -> None:
    """A redrive without it would run on an empty event, and close the dead letter."""
    value = ["order", 4711]
    encoded = section + encode_value(value)
    event = ReceivedEvent("0", 0, "0", 1, encoded=encoded, decode=decode_event)

    def record_value(event: ReceivedEvent) -> Row:
        assert event.contents.body_value in (value, [value])
        return {"sequence_number": event.sequence_number, "partition_id": "0", "delay": 1}

    put_aside(database, [event], is_payload_copied=True)
    assert DeadLetters(database).show(CONSUMER, "0", 0).payload == encoded
    report = DeadLetters(database).redrive(replace(PIPELINE, handler=record_value), LogOfEvents([]))
    assert (report.redriven, report.failed, row_count(database)) == (1, 0, 1)


def test_a_copy_keeps_what_an_event_to_send_cannot_have(database: Database) -> None:
    """A publisher, and a property with a list: encoded again, such an event had no copy at all."""
    encoded = encode_message(
        Message(
            message_annotations={Symbol(PUBLISHER): "device-1"},
            application_properties={"list": [1, 2]},
            data=(b'{"delay": null}',),
        )
    )
    put_aside(database, [ReceivedEvent("0", 0, "0", 1, encoded, decode_event)], is_payload_copied=True)
    assert DeadLetters(database).show(CONSUMER, "0", 0).payload == encoded


def test_an_event_that_fails_again_counts_its_attempts(database: Database) -> None:
    """The same event put aside twice is one dead letter with two attempts and the newer reason."""
    for reason in ("first", "second"):
        with UnitOfWork(database, CONSUMER) as unit:
            unit.add_dead_letters(
                "0",
                [
                    NewDeadLetter(
                        sequence_number=1, offset="1", enqueued_time_ms=1, error_type="E", reason=reason
                    )
                ],
            )
    (letter,) = DeadLetters(database).list()
    assert (letter.attempts, letter.reason) == (2, "second")
    assert letter.first_failed_at <= letter.last_failed_at


def test_another_event_under_the_same_number_inherits_nothing(database: Database) -> None:
    """A hub that was deleted and created again numbers from 0: its event is not one that failed before."""
    for time_ms in (1, 1, 2):
        letter = NewDeadLetter(
            sequence_number=1, offset="1", enqueued_time_ms=time_ms, error_type="E", reason="why"
        )
        with UnitOfWork(database, CONSUMER) as unit:
            unit.add_dead_letters("0", [letter])
    (found,) = DeadLetters(database).list()
    assert (found.attempts, found.first_failed_at) == (1, found.last_failed_at)


def test_redrive_writes_rows_and_closes(database: Database) -> None:
    """The corrected handler's rows and the new status are there together, with an audit trail; once."""
    events = without_delay(0, 7)
    put_aside(database, events)
    reports: list[RedriveReport] = []
    letters = DeadLetters(database)
    report = letters.redrive(
        CORRECTED, LogOfEvents(events), batch_size=3, progress=reports.append, actor="ann"
    )
    by_reason = (RedriveReason("ValueError", NO_DELAY, considered=7, redriven=7, failed=0, waiting=0),)
    assert report == RedriveReport(considered=7, redriven=7, rows=7, by_reason=by_reason)
    assert [each.considered for each in reports] == [0, 3, 6, 7]
    assert (row_count(database), dead_numbers(database)) == (7, [])
    assert letters.count(DeadLetterFilter(status=DeadLetterStatus.REDRIVEN)) == 7
    entry = letters.audit(CONSUMER, "0", 4)[0]
    assert (entry.action, entry.actor, entry.sequence_number) == ("redriven", "ann", 4)
    assert letters.redrive(CORRECTED, LogOfEvents(events)) == RedriveReport()
    assert row_count(database) == 7


def test_a_replay_opens_nothing_that_was_closed(database: Database) -> None:
    """A retried batch, or one that straddles the checkpoint, leaves redriven and discarded ones closed."""
    events = without_delay(0, 6)
    put_aside(database, events[:4])
    DeadLetters(database).redrive(CORRECTED, LogOfEvents(events), maximum=2)
    DeadLetters(database).discard(DeadLetterFilter(sequence_numbers=(2,)), reason="known")
    put_aside(database, events[:4])
    put_aside(database, events)
    assert dead_numbers(database) == [3, 4, 5]
    letters = DeadLetters(database).list(DeadLetterFilter(status=None))
    assert [letter.attempts for letter in letters] == [1] * 6
    assert row_count(database) == 2


def test_a_dry_run_writes_nothing(database: Database) -> None:
    """It tells what would happen and leaves no trace."""
    events = [*without_delay(0, 2), event_with({}, 2), *without_delay(3, 5)]
    put_aside(database, events)
    letters = DeadLetters(database)
    report = letters.redrive(CORRECTED, LogOfEvents(events), dry_run=True, maximum=4)
    by_reason = (
        RedriveReason("ValueError", NO_DELAY, considered=3, redriven=3, failed=0, waiting=0),
        RedriveReason("KeyError", "'delay'", considered=1, redriven=0, failed=1, waiting=0),
    )
    failures = (RedriveFailure("KeyError", "'delay'", 1, "0", 2),)
    assert report == RedriveReport(4, 3, 3, 1, is_dry_run=True, by_reason=by_reason, failures=failures)
    assert (row_count(database), len(dead_numbers(database)), len(letters.audit())) == (0, 5, 0)


def test_filter_and_maximum_narrow_a_redrive(database: Database) -> None:
    """Only what is asked for is touched; another pipeline's dead letters never are."""
    events = without_delay(0, 6)
    put_aside(database, events)
    letters = DeadLetters(database)
    assert letters.redrive(CORRECTED, LogOfEvents(events), maximum=2).redriven == 2
    only = DeadLetterFilter(sequence_numbers=(1, 4))
    assert letters.redrive(CORRECTED, LogOfEvents(events), filter=only).redriven == 1
    assert dead_numbers(database) == [2, 3, 5]
    other = replace(CORRECTED, name="other")
    assert letters.redrive(other, LogOfEvents(events)) == RedriveReport()


def test_attempts_stop_the_loop(database: Database) -> None:
    """A handler that keeps failing is not run for ever; the audit trail holds each failure."""
    events = without_delay(0, 1)
    put_aside(database, events)
    letters = DeadLetters(database)
    for attempts in (2, 3):
        assert letters.redrive(PIPELINE, LogOfEvents(events), attempts_max=3).failed == 1
        assert letters.show(CONSUMER, "0", 0).attempts == attempts
    assert letters.redrive(PIPELINE, LogOfEvents(events), attempts_max=3) == RedriveReport(exhausted=1)
    assert [entry.action for entry in letters.audit()] == ["redrive_failed"] * 2
    assert "no arrival delay" in letters.audit()[0].detail


def test_a_row_that_the_database_refuses_stays_open(database: Database) -> None:
    """The careful pass works for a redrive too: exactly the offender fails, the others are closed."""

    def handle(event: ReceivedEvent) -> Row:
        return {**record_anything(event), "delay": None if event.sequence_number == 2 else 0}

    events = without_delay(0, 5)
    put_aside(database, events)
    report = DeadLetters(database).redrive(replace(PIPELINE, handler=handle), LogOfEvents(events))
    assert (report.redriven, report.rows, report.failed) == (4, 4, 1)
    assert dead_numbers(database) == [2]
    assert DeadLetters(database).show(CONSUMER, "0", 2).attempts == 2


def test_what_has_a_copy_needs_no_log(database: Database) -> None:
    """A page of dead letters with copies is redriven although nothing can be read."""

    class NoLog:
        def read_events(self, *_: object) -> Iterator[ReceivedEvent]:
            raise AssertionError("nothing needs the log")

    put_aside(database, without_delay(0, 3), is_payload_copied=True)
    report = DeadLetters(database).redrive(CORRECTED, NoLog())
    assert (report.considered, report.redriven, report.lost) == (3, 3, ())


def test_what_the_log_lost_comes_from_the_copy_or_is_reported(database: Database) -> None:
    """Retention took the oldest: copies serve, what has none is named and stays open."""
    without_copy, with_copy = without_delay(0, 3), without_delay(3, 6)
    put_aside(database, without_copy)
    put_aside(database, with_copy, is_payload_copied=True)
    rest = without_delay(6, 9)
    put_aside(database, rest)
    log = LogOfEvents([*without_copy, *with_copy, *rest], begin=5)
    report = DeadLetters(database).redrive(CORRECTED, log)
    assert report.lost == (("0", 0), ("0", 1), ("0", 2))
    assert (report.considered, report.redriven) == (9, 6)
    assert dead_numbers(database) == [0, 1, 2]
    assert [row[0] for row in rows_in(database)] == [3, 4, 5, 6, 7, 8]
    assert DeadLetters(database).redrive(CORRECTED, LogOfEvents([])).lost == report.lost


def test_an_event_of_another_hub_is_not_taken_for_it(database: Database) -> None:
    """A hub made anew has an event of the same number but of another time: that is not the dead letter."""
    put_aside(database, without_delay(0, 1))
    impostor = ReceivedEvent(
        partition_id="0",
        sequence_number=0,
        offset="0",
        enqueued_time_ms=5,
        contents=events_between(0, 1)[0].contents,
    )
    assert DeadLetters(database).redrive(CORRECTED, LogOfEvents([impostor])).lost == (("0", 0),)
    assert row_count(database) == 0


def test_two_redrives_at_once_write_each_row_once(database: Database) -> None:
    """What one closes the other leaves alone."""
    events = without_delay(0, 60)
    put_aside(database, events)
    reports: list[RedriveReport] = []
    barrier = threading.Barrier(2)

    class Waiting(LogOfEvents):
        """Reads its first page only when the other redrive has chosen its own, too."""

        def read_events(self, *arguments: object) -> list[ReceivedEvent]:
            if self.reads == 0:
                barrier.wait(30)
            return list(super().read_events(*arguments))  # type: ignore[arg-type]

    def run() -> None:
        reports.append(DeadLetters(database).redrive(CORRECTED, Waiting(events), batch_size=20))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 2
    assert sum(report.redriven for report in reports) == row_count(database) == 60
    assert sum(report.taken_by_others for report in reports) >= 20
    assert dead_numbers(database) == []


def test_discard(database: Database) -> None:
    """Discarded ones are closed with a reason, and cannot be redriven."""
    events = without_delay(0, 4)
    put_aside(database, events)
    letters = DeadLetters(database)
    with pytest.raises(InvalidArgumentError, match="reason"):
        letters.discard(DeadLetterFilter(), reason=" ")
    assert letters.discard(DeadLetterFilter(sequence_numbers=(1, 2)), reason="test data", actor="ann") == 2
    assert letters.discard(DeadLetterFilter(sequence_numbers=(1, 2)), reason="again") == 0
    assert [(entry.action, entry.detail) for entry in letters.audit()] == [("discarded", "test data")] * 2
    assert letters.redrive(CORRECTED, LogOfEvents(events)).redriven == 2
    assert [row[0] for row in rows_in(database)] == [0, 3]


def put_newer_hubs_letter(database: Database, partition_id: str, sequence_number: int) -> None:
    """The hub was deleted and created again: its dead letter replaces the former one with its number."""
    time_ms = event_with(None, sequence_number).enqueued_time_ms + 1_000
    letter = NewDeadLetter(
        sequence_number=sequence_number, offset="0", enqueued_time_ms=time_ms, error_type="E", reason="new"
    )
    with UnitOfWork(database, CONSUMER, pipeline_name=PIPELINE.name) as unit:
        unit.add_dead_letters(partition_id, [letter])


def test_a_redrive_leaves_the_letter_that_replaced_its_own(database: Database) -> None:
    """Between choosing and locking, a row may become that of another hub's event."""
    events = without_delay(0, 2)
    put_aside(database, events)

    class Replacing(LogOfEvents):
        def read_events(self, *arguments: object) -> list[ReceivedEvent]:
            put_newer_hubs_letter(database, "0", 1)
            return list(super().read_events(*arguments))  # type: ignore[arg-type]

    report = DeadLetters(database).redrive(CORRECTED, Replacing(events))
    assert (report.redriven, report.taken_by_others) == (1, 1)
    assert [letter.reason for letter in DeadLetters(database).list()] == ["new"]
    assert [row[0] for row in rows_in(database)] == [0]


def test_a_discard_leaves_the_letter_that_replaced_its_own(database: Database) -> None:
    for partition_id in ("0", "1"):
        put_aside(database, without_delay(0, 1, partition_id=partition_id))
    letters = DeadLetters(database)

    notes: list[int] = []

    def replace_next(done: int) -> None:
        notes.append(done)
        if notes == [0, 1]:  # between two transactions
            put_newer_hubs_letter(database, "1", 0)

    assert letters.discard(DeadLetterFilter(), reason="test data", progress=replace_next) == 1
    assert notes == [0, 1, 1, 1]
    assert [letter.reason for letter in letters.list()] == ["new"]
    assert [entry.partition_id for entry in letters.audit()] == ["0"]


def test_arguments_are_checked(sqlite_url: str) -> None:
    """Odd numbers are refused before anything is read."""
    with Database.open(sqlite_url) as database:
        letters = DeadLetters(database)
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            letters.redrive(CORRECTED, LogOfEvents([]), batch_size=0)
        with pytest.raises(InvalidArgumentError, match="maximum"):
            letters.redrive(CORRECTED, LogOfEvents([]), maximum=-1)
        with pytest.raises(InvalidArgumentError, match="Only open"):
            letters.discard(DeadLetterFilter(status=DeadLetterStatus.REDRIVEN), reason="x")


def test_names_compare_without_case() -> None:
    """``Flights`` and ``flights`` are one consumer, as they are one hub."""
    assert ConsumerKey("Flights", "$default") == ConsumerKey("flights", "$Default")
    assert str(ConsumerKey("Flights", "Group-A")) == "flights/group-a"
    with pytest.raises(InvalidArgumentError):
        ConsumerKey("")
