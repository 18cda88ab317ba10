"""The partition of a key is where every official client and the service put it."""

from __future__ import annotations

import json
from pathlib import Path

from tidegate.model import partition_key
from tidegate.model.partition_key import partition_for_key, partition_key_hash

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "partition_key_vectors.json").read_text())


def test_hash_and_partition_agree_with_the_official_client() -> None:
    """31 keys x 11 partition counts computed by @azure/event-hubs 6.0.4."""
    assert len(VECTORS["vectors"]) == 31
    for vector in VECTORS["vectors"]:
        assert partition_key_hash(vector["key"]) == vector["hash16"], vector["key"]
        for count, expected in zip(VECTORS["partition_counts"], vector["partition"], strict=True):
            assert partition_for_key(vector["key"], count) == expected, (vector["key"], count)


def test_long_keys_leave_nothing_in_memory() -> None:
    """Clients choose the keys whose partition a service computes."""
    before = partition_key._kept_hash.cache_info()
    hashes = {partition_key_hash(f"{number:0128}") for number in range(1_000)}
    assert (len(hashes) > 900, partition_key._kept_hash.cache_info()) == (True, before)
