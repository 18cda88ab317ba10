"""The power fails at any step of any change: what was told done is there, and nothing is half done."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker.catalogs import read_catalog
from tests.storage.simulated_files import SimulatedFiles
from tests.support.clocks import SetClock

from tidegate.broker import Broker, Claim
from tidegate.broker.catalog import CatalogContents
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import LogFailedError, TidegateError
from tidegate.model.limits import Tier
from tidegate.server.opening import open_broker
from tidegate.storage.options import LogOptions

_DIRECTORY = Path("/data")
_OPTIONS = LogOptions(journal_bytes=20_000)
"""The journal of a real one is preallocated: 32 MB in each disk that is copied."""
_Change = Callable[[Broker], Awaitable[object]]


def _random_change(randomness: random.Random) -> _Change:
    """One change, the same for every broker that it is made on."""
    name = f"name{randomness.randrange(3)}"
    scope = randomness.choice([None, "hub"])
    number = randomness.randrange(1, 100)
    key = f"a-chosen-key-{number}"
    claims = randomness.choice([[Claim.SEND], [Claim.LISTEN], [Claim.MANAGE]])
    tier = randomness.choice([Tier.PREMIUM, Tier.DEDICATED])
    changes: list[_Change] = [
        lambda broker: broker.create_policy(scope, name, claims, key=key, secondary_key=f"{key}-2"),
        lambda broker: broker.delete_policy(scope, name),
        lambda broker: broker.regenerate_key(scope, name, is_secondary=number % 2 == 0, key=key),
        lambda broker: broker.event_hub("hub").revoke_publisher(name),
        lambda broker: broker.event_hub("hub").restore_publisher(name),
        lambda broker: broker.set_throughput_units(None if number > 50 else number),
        lambda broker: broker.set_tier(tier),
        lambda broker: broker.update_event_hub("hub", retention_hours=number % 24 + 1),
        lambda broker: broker.set_capture("hub", CaptureSettings(f"/captured/{number}")),
    ]
    return randomness.choice(changes)


def _contents(files: SimulatedFiles) -> CatalogContents:
    return read_catalog(_DIRECTORY, files)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.slow
async def test_changes_are_whole_and_kept_over_a_power_loss(clock: SetClock, seed: int) -> None:
    """After each loss the catalog is the one before the interrupted change, or the one after it."""
    randomness = random.Random(seed)
    files = SimulatedFiles()
    broker = await open_broker(_DIRECTORY, clock=clock, options=_OPTIONS, files=files)
    await broker.create_event_hub("hub", partition_count=1)
    for _ in range(8):
        # The same state on a disk that does not fail: there each change can be seen through.
        reference_files = files.lose_power(random.Random(0))
        reference = await open_broker(_DIRECTORY, clock=clock, options=_OPTIONS, files=reference_files)
        before = after = _contents(files)
        assert _contents(reference_files) == before
        files.operations_left = randomness.randrange(40)
        for _ in range(100):
            change = _random_change(randomness)
            before = after
            try:
                await change(reference)
            except TidegateError:
                continue  # refused, say for want of such a policy
            after = _contents(reference_files)
            try:
                await change(broker)
            except LogFailedError:
                break
            assert _contents(files) == after
        await reference.close()
        survivors = files.lose_power(randomness)
        files.operations_left = None
        await broker.close()
        files = survivors
        broker = await open_broker(_DIRECTORY, clock=clock, options=_OPTIONS, files=files)
        assert _contents(files) in (before, after)
    await broker.close()
