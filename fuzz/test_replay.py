"""Replays ``fuzz/corpus`` and ``fuzz/crash``: whole, cut at every byte, with bytes behind, and mutated.

Only RemoteProtocolError (DecodeError is one) may come out of a decoder, whatever the bytes. Mutations are
seeded: a failure prints the target and the bytes. What once failed is kept in ``fuzz/crash/<target>/``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.make_corpus import corpus
from fuzz.targets import TARGETS
from tidegate.model.errors import RemoteProtocolError

HERE = Path(__file__).parent
SEED = 20261120
MUTATIONS = 400

FILES = sorted(
    path for folder in ("corpus", "crash") for path in (HERE / folder).glob("*/*") if path.is_file()
)


def _feed(target: str, data: bytes) -> int:
    """How many of the target's decoders took the data; anything but the peer's error fails the test."""
    taken = 0
    for decode in TARGETS[target]:
        try:
            decode(data)
        except RemoteProtocolError:
            continue
        except Exception as error:
            pytest.fail(f"{target}: {type(error).__name__}: {error} for {data.hex()}")
        taken += 1
    return taken


def _mutations(data: bytes, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(MUTATIONS):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(mutated) + 1)
            match chance.randrange(4):
                case 0:
                    mutated[at : at + 1] = bytes((chance.randrange(256),))
                case 1:
                    del mutated[at : at + chance.randint(1, 4)]
                case 2:
                    mutated[at:at] = chance.choice((b"\x00", b"\xff", b"\x00\x53", b"\xc1", b"\xd0", b"\xf0"))
                case 3:
                    mutated[at : at + 4] = chance.choice(
                        (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff")
                    )
        yield bytes(mutated)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_replay(path: Path) -> None:
    """Protects every decoder from every file, cut, followed by more, and mutated."""
    target, data = path.parent.name, path.read_bytes()
    taken = _feed(target, data)
    if path.parent.parent.name == "corpus":
        assert taken, "the corpus holds what decoders take"
    for end in range(len(data)):
        _feed(target, data[:end])
    for trailing in (b"\x00", b"\x40", b"\xff" * 9, data):
        _feed(target, data + trailing)
    for mutated in _mutations(data, SEED):
        _feed(target, mutated)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_random_bytes(target: str) -> None:
    """Protects every decoder from bytes that never were anything."""
    chance = random.Random(f"{SEED}{target}")
    for _ in range(MUTATIONS):
        _feed(target, chance.randbytes(chance.randrange(64)))
        _feed(
            target,
            b"\x00\x53" + bytes((chance.randrange(0x10, 0x80),)) + chance.randbytes(chance.randrange(40)),
        )


@pytest.mark.slow
def test_the_corpus_is_what_the_encoders_write() -> None:
    """Protects the corpus from falling behind: ``python -m fuzz.make_corpus`` writes it anew."""
    for target, items in corpus().items():
        for name, data in items.items():
            assert (HERE / "corpus" / target / name).read_bytes() == data
