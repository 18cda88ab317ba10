"""A host that races with others for one lease: python -m tests.sql.lease_race URL HOST."""

from __future__ import annotations

import json
import sys

from tests.sql.support import CONSUMER

from tidegate.sql import Database
from tidegate.sql.stores.leases import LeaseTable


def win(table: LeaseTable, owner: str, times: int) -> list[int]:
    """Take partition 0 from whoever has it, until that went well ``times`` times; the epochs won."""
    epochs: list[int] = []
    while len(epochs) < times:
        won = table.acquire(CONSUMER, "0", owner, expected=table.read(CONSUMER).leases.get("0"))
        if won is not None:
            epochs.append(won.epoch)
    return epochs


if __name__ == "__main__":
    with Database.open(sys.argv[1]) as shared_database:
        print(json.dumps(win(LeaseTable(shared_database), sys.argv[2], 10)))
