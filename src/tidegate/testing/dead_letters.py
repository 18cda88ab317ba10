"""The conformance suite of dead letter managers; run as those of ``tidegate.testing.stores``.

class TestMyQueue(DeadLetterManagerConformance):
    async def make_manager(self) -> DeadLetterManager:
        return MyQueue(...)

    async def stored_ids(self, group: GroupKey) -> Sequence[str]:
        return [message.id for message in await read_all(...) if message.group == group]
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.processor.dead_letters import DeadLetterManager, FailedEvent
from tidegate.processor.lease import GroupKey
from tidegate.testing.groups import make_group
from tidegate.transport.clock import SystemClock


class DeadLetterManagerConformance(ABC):
    """Dead letters: stored when the call returns, however odd, and known again."""

    @abstractmethod
    async def make_manager(self) -> DeadLetterManager:
        """Create a manager; both of one test use the same location, and are not closed by the suite."""

    @abstractmethod
    async def stored_ids(self, group: GroupKey) -> Sequence[str]:
        """The ids of a group's dead letters as a reader finds them now, with those that are stored twice."""

    async def test_failed_events_are_stored_when_the_call_returns(self) -> None:
        """The checkpoint moves then; those of many partitions may be added at once."""
        manager, other, group = await self.make_manager(), await self.make_manager(), make_group()
        failed = [make_failed(group, number, partition_id=str(number % 3)) for number in range(30)]
        await asyncio.gather(
            *((manager, other)[part % 2].add_failed_events(failed[part::3]) for part in range(3))
        )
        assert sorted(await self.stored_ids(group)) == sorted(each.id for each in failed)

    async def test_an_event_may_be_added_again(self) -> None:
        """After a crash before the checkpoint moved, or with a later failure: its id is the same."""
        manager, group = await self.make_manager(), make_group()
        first, second = make_failed(group, 1), make_failed(group, 2)
        await manager.add_failed_events([first])
        again = make_failed(group, 1, error=KeyError("another reason"))
        await (await self.make_manager()).add_failed_events([again, second])
        assert set(await self.stored_ids(group)) == {first.id, second.id}
        assert again.id == first.id

    async def test_no_event_is_too_odd(self) -> None:
        """Bytes that cannot be decoded, any reason, an event as large as they get, a longer key than a
        producer may give, many, and none."""
        manager, group = await self.make_manager(), make_group()
        garbled = ReceivedEvent("0", 0, "0", 1_700_000_000_000, b"garbled", _refuse)
        empty = ReceivedEvent("0", 1, "-", 1_700_000_000_001, contents=EventContents(b""))
        # The service checks the key of a batch, not those of the events in it.
        keyed = ReceivedEvent(
            "0", 3, "-", 1_700_000_000_003, contents=EventContents(b"body", partition_key="k" * 5_000)
        )
        failed = [
            FailedEvent(garbled, SystemClock().now_utc(), ValueError(), group),
            FailedEvent(empty, SystemClock().now_utc(), "\0\ud800 \N{SNOWMAN} " + "long " * 20_000, group),
            make_failed(group, 2, body=b"x" * 1_048_000),
            FailedEvent(keyed, SystemClock().now_utc(), "a reason", group),
            *(make_failed(group, number) for number in range(4, 1_200)),
        ]
        await manager.add_failed_events(failed)
        await manager.add_failed_events([])
        assert sorted(await self.stored_ids(group)) == sorted(each.id for each in failed)

    async def test_groups_do_not_meet(self) -> None:
        """The same event that failed in two groups is two dead letters."""
        manager, groups = await self.make_manager(), [make_group(), make_group()]
        for group in groups:
            await manager.add_failed_events([make_failed(group, 5)])
        found = [list(await self.stored_ids(group)) for group in groups]
        assert found == [[make_failed(group, 5).id] for group in groups]


def make_failed(
    group: GroupKey,
    sequence_number: int,
    *,
    partition_id: str = "0",
    body: bytes = b"body",
    error: BaseException | str = "a reason",
) -> FailedEvent:
    """A failed event, as a host reports it."""
    contents = EventContents(body, {"kind": "odd"}, partition_key=f"key-{sequence_number % 7}")
    event = ReceivedEvent(
        partition_id,
        sequence_number,
        str(sequence_number * 100),
        1_700_000_000_000 + sequence_number,
        contents=contents,
    )
    return FailedEvent(event, SystemClock().now_utc(), error, group)


def _refuse(encoded: bytes | memoryview) -> EventContents:
    raise ValueError("no event")
