"""The record of who has published: it tells what was stored, and never grows over its limit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.publishers import PublisherActivity, PublisherRecords
from tidegate.model.errors import ServerBusyError
from tidegate.storage.record import AppendResult

_OWN_MAX = 3
_STATED_MAX = 2


@dataclass(frozen=True)
class _Batch:
    """What becomes of one batch that names a publisher."""

    name: str
    is_own_address: bool
    events: int
    outcome: str


@dataclass
class _Model:
    """What the record should tell, worked out from all batches each time."""

    stored: list[tuple[int, _Batch]] = field(default_factory=list)
    """With their times: each batch has one of its own."""

    def of_kind(self, is_own_address: bool) -> tuple[list[PublisherActivity], int]:
        """The publishers of one kind, the last one seen first, and how many fell out."""
        known: list[list[tuple[int, _Batch]]] = []
        forgotten = 0
        for time_ms, batch in self.stored:
            if batch.is_own_address is not is_own_address:
                continue
            own = next((group for group in known if group[0][1].name.lower() == batch.name.lower()), [])
            known = [group for group in known if group is not own]
            known.append([*own, (time_ms, batch)])
            if len(known) > (_OWN_MAX if is_own_address else _STATED_MAX):
                known.pop(0)
                forgotten += 1
        return [_activity(group) for group in reversed(known)], forgotten


def _activity(batches: list[tuple[int, _Batch]]) -> PublisherActivity:
    time_ms, last = batches[-1]
    events = sum(batch.events for _, batch in batches)
    return PublisherActivity(last.name, last.is_own_address, time_ms, str(time_ms % 4), events, 10 * events)


async def _send(records: PublisherRecords, batch: _Batch, time_ms: int) -> None:
    appended: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    records.note_when_stored(
        appended,
        batch.name,
        str(time_ms % 4),
        event_bytes=10 * batch.events,
        is_own_address=batch.is_own_address,
    )
    if batch.outcome == "refused":
        appended.set_exception(ServerBusyError("busy"))
    elif batch.outcome == "cancelled":
        appended.cancel()
    else:
        appended.set_result(AppendResult(5, 5 + batch.events, time_ms, batch.outcome == "duplicate"))
    await asyncio.sleep(0)  # callbacks of the future


@given(
    st.lists(
        st.builds(
            _Batch,
            st.sampled_from(["a", "A", "b", "c", "d", "漢字", "no/name", " "]),
            st.booleans(),
            st.integers(1, 5),
            st.sampled_from(["stored", "stored", "stored", "refused", "cancelled", "duplicate"]),
        ),
        max_size=40,
    )
)
@pytest.mark.slow
def test_the_record_tells_what_was_stored_and_keeps_to_its_limit(batches: list[_Batch]) -> None:
    """Any batches, in any order: what the model says after each; a stated name pushes out no other kind."""

    async def live() -> None:
        records, model = PublisherRecords(own_max=_OWN_MAX, stated_max=_STATED_MAX), _Model()
        for time_ms, batch in enumerate(batches):
            await _send(records, batch, time_ms)
            if batch.outcome == "stored" and batch.name not in ("no/name", " "):
                model.stored.append((time_ms, batch))
            (own, own_forgotten), (stated, stated_forgotten) = model.of_kind(True), model.of_kind(False)
            found = records.newest_first()
            assert [each for each in found if each.is_own_address] == own
            assert [each for each in found if not each.is_own_address] == stated
            assert found == sorted(found, key=lambda each: -each.last_enqueued_time_ms)
            assert (records.own_forgotten, records.stated_forgotten) == (own_forgotten, stated_forgotten)
            for each in found:
                assert records.find(each.name.upper(), is_own_address=each.is_own_address) == each

    asyncio.run(live())


@pytest.mark.slow
async def test_ten_thousand_publishers_are_told_in_order_whatever_clocks_do() -> None:
    """A partition's time stands still where its clock went back; the list is by time all the same."""
    records = PublisherRecords()
    for number in range(records.own_max + 5):
        await _send(records, _Batch(f"device-{number}", True, 1, "stored"), 10_000 - number % 7)
    found = records.newest_first()
    assert len(found) == records.own_max
    assert records.own_forgotten == 5
    assert records.find("device-4") is None
    times = [each.last_enqueued_time_ms for each in found]
    assert times == sorted(times, reverse=True)
