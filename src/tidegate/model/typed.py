"""JSON and plain values as dataclasses and Structs, by msgspec, from any thread.

What msgspec (0.22.0) finds out about a class at its first use is put into the class before it is complete, as
a class may contain itself. Another thread that meets it then crashes the process. So the first use of each
class is here, under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_lock: Final = threading.Lock()
_known: Final[set[type]] = set()


def from_json(data: bytes | str, kind: type[T]) -> T:
    """As ``msgspec.json.decode``."""
    _prepare(kind)
    return msgspec.json.decode(data, type=kind)


def from_values(
    value: object,
    kind: type[T],
    *,
    strict: bool = True,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """As ``msgspec.convert``."""
    _prepare(kind)
    return msgspec.convert(value, kind, strict=strict, dec_hook=dec_hook)


def _prepare(kind: type) -> None:
    if kind in _known:
        return
    with _lock:
        msgspec.msgpack.Decoder(kind)  # finds out about the class, and all that it contains
        _known.add(kind)
