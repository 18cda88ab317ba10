"""Reads one partition without a host, checkpoints every N events, and continues from the checkpoint.

    python checkpoint_every_n.py HUB PARTITION [--every 100] [--from sequence-number|offset|time] [--events N]

The checkpoint is a small JSON file with all three positions of the last processed event. Any one is enough to
continue: sequence number and offset exactly, the enqueued time with the events of the same millisecond again.
After a crash between two checkpoints, up to N events are processed again: at least once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

from tidegate import EventHubConsumer, EventPosition, ReceivedEvent
from tidegate.processor import ProcessorCheckpoint


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("hub")
    parser.add_argument("partition")
    parser.add_argument("--every", type=int, default=100, help="checkpoint after so many events")
    parser.add_argument("--from", dest="kind", choices=_FIELDS, default="sequence-number")
    parser.add_argument("--events", type=int, default=None, help="end after so many; else never")
    arguments = parser.parse_args()
    with suppress(KeyboardInterrupt):  # Ctrl-C
        asyncio.run(
            consume(arguments.hub, arguments.partition, arguments.every, arguments.kind, arguments.events)
        )


async def consume(hub: str, partition_id: str, every: int, kind: str, events_max: int | None) -> None:
    """Process events after the checkpoint; stop after ``events_max``, without a last checkpoint."""
    file = Path(f"checkpoint-{hub}-{partition_id}.json")
    connection_string = os.environ["TIDEGATE_CONNECTION_STRING"]
    done = 0
    async with (
        EventHubConsumer.from_connection_string(connection_string, hub) as consumer,
        await consumer.open_receiver(partition_id, load(file, partition_id, kind)) as receiver,
    ):
        async for event in receiver:
            process(event)
            done += 1
            if done % every == 0:
                save(file, event)
            if done == events_max:
                return


def process(event: ReceivedEvent) -> None:
    """What your program does with an event."""
    # As bytes, since a body may have any: not UTF-8 would end the program, at each start, at this event.
    print(event.sequence_number, event.body, flush=True)


_FIELDS = {"sequence-number": "sequence_number", "offset": "offset", "time": "enqueued_time_ms"}


def load(file: Path, partition_id: str, kind: str) -> EventPosition:
    """Where to continue: after the checkpoint, by the position that ``kind`` names; or at the start."""
    if not file.exists():
        return EventPosition.earliest()
    stored = json.loads(file.read_text())
    name = _FIELDS[kind]
    return ProcessorCheckpoint(
        **{"partition_id": partition_id, "sequence_number": None, name: stored[name]}
    ).position


def save(file: Path, event: ReceivedEvent) -> None:
    """Store all three positions of the last processed event; a crash leaves the old file or the new one."""
    positions = {name: getattr(event, name) for name in _FIELDS.values()}
    new = file.with_suffix(".new")
    with new.open("w") as stream:
        json.dump(positions, stream)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)


if __name__ == "__main__":
    main()
