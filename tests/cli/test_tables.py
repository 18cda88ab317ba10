"""Tables on terminals of every width: a row is a line, numbers are whole, columns drop out by importance."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tests.cli.support import run_on_terminal, run_tidegate

from tidegate.cli.shell.table import Column, fit
from tidegate.processor import GroupKey, ProcessorCheckpoint
from tidegate.sql import Database, SqlStore
from tidegate.testing.hub import HubService

WIDTHS = (40, 80, 120, 200)
PARTITIONS = 12
COMMANDS = {
    "hub show": ("partition", "events"),
    "lag": ("partition", "lag_events"),
    "lease list": ("partition",),
    "checkpoint list": ("partition", "checkpoint"),
}
"""Each with the columns that even the narrowest terminal shows."""


@pytest.fixture
async def words(
    hub_service: HubService, environment: dict[str, str], tmp_path: Path
) -> dict[str, tuple[str, ...]]:
    """Commands about a hub with events, and a group with leases and checkpoints in a database."""
    hub = hub_service.create_hub(partition_count=PARTITIONS)
    lines = "".join(f'{{"n": "{number}"}}\n' for number in range(3_000))
    sent = run_tidegate("send", hub, "--key", ".n", environment=environment, input_bytes=lines.encode())
    assert sent.code == 0, sent.err
    url = f"sqlite:///{tmp_path}/store.db"
    group = GroupKey("localhost", hub, "$Default")
    store = SqlStore(Database.open(url))
    for partition in map(str, range(PARTITIONS)):
        owner = f"a-machine-with-a-long-name.example.org:4711:0f0f0f0{partition}"
        lease = await store.acquire(group, partition, owner, expected=None)
        assert lease is not None
        checkpoint = ProcessorCheckpoint(partition, 99, "99", 1_790_000_000_000)
        await store.update_checkpoint(group, checkpoint, lease=lease)
    await store.close()
    database = ("--database", url)
    return {
        "hub show": ("hub", "show", hub),
        "lag": ("lag", hub, *database),
        "lease list": ("lease", "list", hub, *database),
        "checkpoint list": ("checkpoint", "list", hub, *database),
    }


@pytest.mark.slow
def test_a_partition_is_a_line_at_every_width(
    words: dict[str, tuple[str, ...]], environment: dict[str, str]
) -> None:
    """On real terminals: nothing is wider than the terminal, and each number is there as a whole."""
    for name, important in COMMANDS.items():
        records = run_tidegate(*words[name], "--json", environment=environment).json()
        assert isinstance(records, list)
        headings: list[int] = []
        for columns in WIDTHS:
            shown = run_on_terminal(*words[name], environment=environment, columns=columns)
            assert shown.code == 0, shown.out
            lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.out).splitlines()
            assert max(map(len, lines)) <= columns, (name, columns)
            rule = next(number for number, line in enumerate(lines) if line.startswith("─"))
            rows = lines[rule + 1 :][:PARTITIONS]
            for record, row in zip(records, rows, strict=True):
                cells = re.split(r" {2,}", row.strip())
                assert {str(record[column]) for column in important} <= {*cells}, (name, columns, row)
            headings.append(len(lines[rule].split()))
            hidden = "Not shown: " in " ".join(lines)
            assert hidden is (headings[-1] < len(records[0])), (name, columns)
        assert headings == sorted(headings), name
        wide = run_on_terminal(*words[name], "--wide", environment=environment, columns=40)
        assert "Not shown" not in wide.out
        assert all(str(record[column]) in wide.out for record in records for column in important)


@pytest.mark.parametrize("width", range(1, 220, 7))
@pytest.mark.slow
def test_numbers_are_whole_at_any_width(width: int) -> None:
    """Whatever the columns are: numbers and digits are shown as they are, or not at all."""
    for seed in range(40):
        chance = random.Random(f"{seed} {width}")
        columns = []
        for place in range(chance.randint(1, 9)):
            is_number = chance.random() < 0.6
            length = chance.randint(1, 19)
            cells = (
                [f"{place}" + "7" * length if chance.random() < 0.9 else "-" for _ in range(3)]
                if is_number or chance.random() < 0.5
                else [f"{place}" + "x日"[chance.randint(0, 1)] * length] * 3
            )
            columns.append(Column(f"heading {place} of it", cells, is_number))
        ranks = list(range(len(columns)))
        chance.shuffle(ranks)
        found = fit(columns, ranks, width, bold=str, is_plain=False)
        text = "\n".join(found.lines)
        for column in columns:
            if column.heading not in found.left_out and all(
                re.fullmatch("[0-9]+|-", c) for c in column.cells
            ):
                assert all(re.search(rf"(?m)(^| ){cell}( |$)", text) for cell in column.cells), (seed, text)
        rule = next(number for number, line in enumerate(found.lines) if line.startswith("─"))
        assert len(found.lines) == rule + 4, seed
        assert columns[ranks[0]].heading not in found.left_out


def test_the_important_columns_stay() -> None:
    """Columns drop out by their rank, not by their place, and values are cut only after that."""
    columns = [
        Column("a", ["1234567890"], True),
        Column("name", ["x" * 30], False),
        Column("lag", ["12"], True),
    ]
    found = fit(columns, [2, 1, 0], 17, bold=str, is_plain=True)
    assert [*found.lines] == ["name          lag", "------------  ---", "xxxxxxxxxxx~   12"]
    assert (found.left_out, found.is_cut) == (["a"], True)
