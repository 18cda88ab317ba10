"""Owner levels (epochs) over the wire: every ordered pair of receivers, by a table, and what follows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.gateway.support import HOST, Pair
from tests.support.clocks import SetClock

from tidegate.amqp.events import LinkDetached
from tidegate.amqp.link import ReceiverLink
from tidegate.amqp.performatives import Source
from tidegate.amqp.types import Described, ULong
from tidegate.broker import Broker
from tidegate.wire.names import EPOCH, PEEK_CAPABILITY, RECEIVER_NAME, SELECTOR_FILTER

OPEN, STOLEN, REFUSED = "both are open", "the first is stolen from", "the second is refused"

# The first receiver's owner level by row, the second's by column; None: without one.
LEVELS = (None, 0, 1, 2)
TABLE = {
    None: (OPEN, STOLEN, STOLEN, STOLEN),
    0: (REFUSED, STOLEN, STOLEN, STOLEN),
    1: (REFUSED, REFUSED, STOLEN, STOLEN),
    2: (REFUSED, REFUSED, REFUSED, STOLEN),
}
PAIRS = [
    (first, second, outcome)
    for first, row in TABLE.items()
    for second, outcome in zip(LEVELS, row, strict=True)
]


def _attach(
    pair: Pair, name: str, level: int | None, group: str = "$Default", *, is_peeking: bool = False
) -> ReceiverLink:
    properties: dict[str, object] = {RECEIVER_NAME: name}
    if level is not None:
        properties[EPOCH] = level
    link = pair.session.attach_receiver(
        name,
        source=f"hub/ConsumerGroups/{group}/Partitions/0",
        target="client",
        properties=properties,
        desired_capabilities=(PEEK_CAPABILITY,) if is_peeking else (),
    )
    pair.exchange()
    return link


def _told(pair: Pair, link: ReceiverLink, condition: str = "amqp:link:stolen") -> str:
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == condition
    return error.description or ""


@pytest.mark.parametrize(("first", "second", "outcome"), PAIRS)
@pytest.mark.slow
async def test_every_ordered_pair(pair: Pair, first: int | None, second: int | None, outcome: str) -> None:
    """Who stays, who goes, and in which words; whoever was refused gets in once the other has gone."""
    one = _attach(pair, "one", first)
    two = _attach(pair, "two", second)
    assert (one.is_open, two.is_open) == (outcome != STOLEN, outcome != REFUSED)
    if outcome == STOLEN:
        assert _told(pair, one).startswith(
            f"New receiver 'two' with higher epoch of '{second}' is created hence current receiver 'one' "
            f"with epoch '{-1 if first is None else first}' is getting disconnected. If you are recreating "
            "the receiver, make sure a higher epoch is used. TrackingId:"
        )
    elif outcome == REFUSED:
        expected = (
            f"At least one receiver for the endpoint is created with epoch of '{first}', and so non-epoch "
            "receiver is not allowed."
            if second is None
            else f"Receiver 'one' with a higher epoch '{first}' already exists. Receiver 'two' with epoch "
            f"{second} cannot be created."
        )
        assert _told(pair, two).startswith(expected)
        one.detach()
        pair.exchange()
        assert _attach(pair, "again", second).is_open


async def test_an_attach_that_was_given_up_steals_from_nobody(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that detaches while its attach still waits for the log, and attaches again, keeps the second:
    the first would have taken the partition from it, and the client would have had no receiver."""
    partition = broker.event_hub("hub").partition("0")
    resolve, is_answered = partition.resolve, asyncio.Event()

    async def resolve_late(*args: Any, **options: Any) -> int:
        monkeypatch.setattr(partition, "resolve", resolve)
        await is_answered.wait()
        return await resolve(*args, **options)

    monkeypatch.setattr(partition, "resolve", resolve_late)
    given_up = _attach(pair, "one", 1)
    given_up.detach()
    pair.exchange()
    second = _attach(pair, "two", 1)
    assert second.is_open
    is_answered.set()
    await asyncio.gather(*pair.owner.tasks, return_exceptions=True)
    pair.exchange()
    assert second.is_open
    assert [receiver.name for receiver in partition.receivers()] == ["two"]


async def test_attaches_that_wait_for_the_log_are_counted(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 of them held 80 MB that no limit knew of."""
    partition = broker.event_hub("hub").partition("0")
    resolve, is_answered = partition.resolve, asyncio.Event()

    async def resolve_late(*args: Any, **options: Any) -> int:
        await is_answered.wait()
        return await resolve(*args, **options)

    monkeypatch.setattr(partition, "resolve", resolve_late)
    before = pair.held_bytes
    links = [_attach(pair, f"reader-{number}", None) for number in range(5)]
    await asyncio.sleep(0)
    assert pair.held_bytes - before >= 5 * 16 * 1024
    is_answered.set()
    await asyncio.gather(*pair.owner.tasks)
    pair.exchange()
    assert all(link.is_open for link in links)
    assert pair.held_bytes - before < 16 * 1024


async def test_an_owner_takes_from_all(pair: Pair) -> None:
    """All receivers without an owner level lose the partition to the first owner."""
    shared = [_attach(pair, f"shared-{number}", None) for number in range(5)]
    owner = _attach(pair, "owner", 0)
    assert owner.is_open
    for link in shared:
        assert "New receiver 'owner' with higher epoch of '0'" in _told(pair, link)


async def test_the_sixth_reader(pair: Pair) -> None:
    """Five readers share a partition and group; the sixth is told so, and gets in when one has gone."""
    five = [_attach(pair, f"reader-{number}", None) for number in range(5)]
    sixth = _attach(pair, "sixth", None)
    assert _told(pair, sixth, "amqp:resource-limit-exceeded").startswith(
        "Exceeded the maximum number of allowed receivers per partition in a consumer group which is 5. "
        "List of connected receivers - reader-0, reader-1, reader-2, reader-3, reader-4."
    )
    assert all(link.is_open for link in five)
    five[2].detach()
    pair.exchange()
    assert _attach(pair, "next", None).is_open


async def test_who_peeks_is_beside_every_owner(pair: Pair) -> None:
    """A receiver that peeks opens beside an owner and disturbs none; a new owner takes nothing from it. Only
    five may peek, and with a level it is an ordinary receiver."""
    owner = _attach(pair, "owner", 1)
    peeking = [_attach(pair, f"peeking-{number}", None, is_peeking=True) for number in range(5)]
    assert all(
        link.is_open and PEEK_CAPABILITY in link.remote_attach.offered_capabilities for link in peeking
    )
    assert owner.is_open
    sixth = _attach(pair, "sixth", None, is_peeking=True)
    assert "receivers - peeking-0, " in _told(pair, sixth, "amqp:resource-limit-exceeded")
    new_owner = _attach(pair, "new owner", 2, is_peeking=True)
    assert PEEK_CAPABILITY not in new_owner.remote_attach.offered_capabilities
    assert not owner.is_open
    assert new_owner.is_open
    assert all(link.is_open for link in peeking)
    assert not _attach(pair, "reader", None).is_open


async def test_groups_do_not_know_of_each_other(pair: Pair, broker: Broker) -> None:
    """An owner in one consumer group keeps nobody from another one."""
    await broker.event_hub("hub").create_consumer_group("other")
    assert _attach(pair, "owner", 5).is_open
    assert _attach(pair, "reader", None, "other").is_open
    assert _attach(pair, "lower", 1, "OTHER").is_open


@pytest.mark.parametrize("level", [-1, ULong(1 << 63), "1"])
async def test_levels_that_are_none(pair: Pair, level: object) -> None:
    """What is no whole number from 0 on is refused as an argument."""
    link = pair.session.attach_receiver(
        "odd", source="hub/ConsumerGroups/$Default/Partitions/0", target="client", properties={EPOCH: level}
    )
    pair.exchange()
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == "com.microsoft:argument-error"


async def test_a_stolen_link_frees_its_place_at_once(pair: Pair) -> None:
    """Protects a client that attaches again by the same name: its older receiver's epoch and place are free,
    before the client has answered the older one's detach, and the connection lives on."""
    five = [_attach(pair, f"reader-{number}", None) for number in range(5)]
    pair.session._links_by_name.clear()  # a client that does not keep its links' names apart
    again = _attach(pair, "reader-2", None)
    assert again.is_open
    assert "replaced this one" in _told(pair, five[2])
    owner = _attach(pair, "owner", 7)
    pair.session._links_by_name.clear()
    lower = _attach(pair, "owner", 3)
    assert lower.is_open
    assert "replaced this one" in _told(pair, owner)


async def test_a_receivers_name_is_one_line_to_others(pair: Pair) -> None:
    """Protects the logs of other clients, which read it in the error that tells who has taken over."""
    one = _attach(pair, "one", 1)
    _attach(pair, "two\r\n\x1b[2J ERROR forged\u2028" + "x" * 1000, 2)
    told = _told(pair, one)
    assert "New receiver 'two\ufffd\ufffd\ufffd[2J ERROR forged\ufffdxxx" in told
    assert told.count("x") < 300
    assert told.isprintable()


async def test_a_link_whose_answer_does_not_fit_holds_no_place(broker: Broker, clock: SetClock) -> None:
    """Protects a partition from a client with small frames: a link that was refused because its answer does
    not fit has no epoch, even if the client never answers the detach."""
    small = Pair(broker, clock, max_frame_size=512)
    assert small.put_token(broker, f"sb://{HOST}/").status_code == 202
    text = "amqp.annotation.x-opt-offset > '-1'" + " " * 400
    source = Source(
        "hub/ConsumerGroups/$Default/Partitions/0",
        filter={SELECTOR_FILTER: Described(SELECTOR_FILTER, text)},
    )
    small.session.attach_receiver("in", source=source, properties={EPOCH: 5})
    small.server.receive_data(b"".join(small.client.data_to_send()), now=clock.monotonic())
    small.is_reading = False  # what the client answers does not arrive
    small.exchange()
    assert [event.error.condition for event in small.of_kind(LinkDetached) if event.error] == [
        "amqp:frame-size-too-small"
    ]
    other = Pair(broker, clock)
    assert other.put_token(broker, f"sb://{HOST}/").status_code == 202
    assert _attach(other, "reader", None).is_open
