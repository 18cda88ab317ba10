"""The pictures of state machines show what the code has: its tables, all its states, every step."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from tests.docs_support import ROOT
from tests.sql.support import CONSUMER, PIPELINE, LogOfEvents, event_with
from tools.reference.diagrams import draw_machine
from tools.reference.states import MACHINES, STATES, Machine, Step, machine

from tidegate.amqp import states
from tidegate.model.events import ReceivedEvent
from tidegate.model.pipeline_status import PipelineState
from tidegate.processor import ProcessorCheckpoint
from tidegate.sql import (
    Database,
    DeadLetter,
    DeadLetterFilter,
    DeadLetters,
    DeadLetterStatus,
    move_checkpoint,
    process_partition_batch,
)

_IDS = [each.name for each in MACHINES]
_SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "table", [states.CONNECTION, states.SESSION, states.LINK], ids=lambda table: table.name
)
def test_amqps_machines_are_the_tables_that_run(table: states.StateTable) -> None:  # type: ignore[type-arg]
    """Step for step, in the words of the table."""
    drawn = {(step.start, step.end, step.label, step.is_peers) for step in machine(table.name).steps}
    assert drawn == {
        (start.name, end.name, _label(step.name), step.name.startswith("RECEIVE_"))
        for (start, step), end in table.transitions.items()
    }


def _label(name: str) -> str:
    return re.sub("^(SEND|RECEIVE)_", "", name).lower().replace("_", " ")


@pytest.mark.parametrize("name", list(STATES))
def test_every_state_of_the_code_is_drawn(name: str) -> None:
    """A state that the code gets has to be put into the picture."""
    assert set(machine(name).states) == {state.value for state in STATES[name]}


@pytest.mark.slow
def test_dead_letters_take_the_steps_that_are_drawn(tmp_path: Path) -> None:
    """From each status, all that can be done to a dead letter, for real: what is seen is what is drawn."""
    seen: set[tuple[str, str]] = set()
    with Database.open(f"sqlite:///{tmp_path / 'letters.db'}") as database:
        database.ensure_table(PIPELINE.table)
        for number, start in enumerate(DeadLetterStatus):
            for offset, act in enumerate((_redrive_in_vain, _redrive, _discard, _process_again)):
                event = event_with({"delay": None}, 10 * number + offset)
                _process_again(database, event)
                {"open": lambda *_: None, "redriven": _redrive, "discarded": _discard}[start](database, event)
                assert _status(database, event) == start
                attempts = _letter(database, event).attempts
                act(database, event)
                if _status(database, event) != start or _letter(database, event).attempts != attempts:
                    seen.add((start, _status(database, event)))
    assert seen == {(step.start, step.end) for step in machine("dead-letter").steps}


def _letter(database: Database, event: ReceivedEvent) -> DeadLetter:
    return DeadLetters(database).show(CONSUMER, event.partition_id, event.sequence_number)


def _status(database: Database, event: ReceivedEvent) -> str:
    return _letter(database, event).status.value


def _only(event: ReceivedEvent) -> DeadLetterFilter:
    return DeadLetterFilter(sequence_numbers=(event.sequence_number,))


def _redrive_in_vain(database: Database, event: ReceivedEvent) -> None:
    DeadLetters(database).redrive(PIPELINE, LogOfEvents([event]), filter=_only(event))


def _redrive(database: Database, event: ReceivedEvent) -> None:
    corrected = replace(PIPELINE, handler=lambda _: None)
    DeadLetters(database).redrive(corrected, LogOfEvents([event]), filter=_only(event))


def _discard(database: Database, event: ReceivedEvent) -> None:
    DeadLetters(database).discard(_only(event), reason="a test")


def _process_again(database: Database, event: ReceivedEvent) -> None:
    """Process the event, with its checkpoint set back to it where it was processed before."""
    before = ProcessorCheckpoint(event.partition_id, sequence_number=event.sequence_number - 1)
    move_checkpoint(database, CONSUMER, before, is_rewind_allowed=True)
    number = event.sequence_number
    process_partition_batch(
        database, PIPELINE, "0", [event], start_sequence_number=number, until_sequence_number=number + 1
    )


def test_a_pipeline_that_is_over_stays_so() -> None:
    """What the code calls over has no step that leads out of it, and everything else has one."""
    leaving = {step.start for step in machine("pipeline").steps}
    assert leaving == {state.value for state in PipelineState if not state.is_over}


@pytest.mark.parametrize("drawn", MACHINES, ids=_IDS)
def test_the_picture_has_every_state_and_step(drawn: Machine) -> None:
    """Each state once, each step as a label, and the whole of it in words; nothing outside the picture."""
    root = ElementTree.fromstring(draw_machine(drawn))
    texts = [element.text or "" for element in root.iter(f"{_SVG}text")]
    for state in drawn.states:
        assert texts.count(state) == 1, state
    for step in drawn.steps:
        assert any(step.label in text for text in texts), step
        assert f"{step.start} to {step.end}: {step.label}" in (root.findtext(f"{_SVG}desc") or "")
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter(f"{_SVG}text"):
        half = len(element.text or "") * 3.2 if element.get("class") == "label" else 0
        assert half <= float(element.attrib["x"]) <= width - half, element.text
        assert 0 <= float(element.attrib["y"]) <= height, element.text


def test_no_two_labels_of_a_picture_lie_on_each_other() -> None:
    """Labels that cover each other say nothing."""
    for drawn in MACHINES:
        root = ElementTree.fromstring(draw_machine(drawn))
        boxes = [
            (float(each.attrib["x"]), float(each.attrib["y"]), len(each.text or "") * 6.0, each.text)
            for each in root.iter(f"{_SVG}text")
            if each.get("class") == "label"
        ]
        for index, (x, y, width, text) in enumerate(boxes):
            for other_x, other_y, other_width, other in boxes[index + 1 :]:
                is_apart = abs(x - other_x) >= (width + other_width) / 2 or abs(y - other_y) >= 11
                assert is_apart, f"{drawn.name}: {text} and {other}"


def test_a_changed_table_changes_its_picture() -> None:
    """The picture is made of the steps and of nothing else."""
    lease = machine("lease")
    more = Machine(lease.name, lease.title, "", lease.initial, (*lease.steps, Step("expired", "lost", "end")))
    assert "lost" in draw_machine(more)
    assert "lost" not in draw_machine(lease)
    stray = Machine(lease.name, lease.title, "", lease.initial, (*lease.steps, Step("lost", "held", "find")))
    assert "lost" in draw_machine(stray)  # nothing leads there, which the picture shows


def test_concepts_show_the_pictures() -> None:
    """No picture is made that no page shows."""
    pages = "".join(path.read_text(encoding="utf-8") for path in _pages())
    for drawn in MACHINES:
        assert f"states/{drawn.name}.svg" in pages, drawn.name


def _pages() -> list[Path]:
    return sorted(ROOT.glob("docs/**/*.md"))
