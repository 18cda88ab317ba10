"""Cuts received bytes where records of TLS or frames of WebSockets end, without decoding them.

However short they are, each costs a library some microseconds, which it takes for all that it is given in one
step of the event loop. So it is given a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable


class Pieces:
    """Finds the ends of units that follow each other, each a header and the bytes that it announces."""

    __slots__ = ("_begun", "_header_bytes", "_left", "_measure", "_units_max")

    def __init__(self, header_bytes: int, measure: Callable[[bytes], int], *, units_max: int) -> None:
        """header_bytes: the least that a header has. measure: how many bytes follow a header; negative: how
        many more the header has. units_max: of a piece.
        """
        self._header_bytes = header_bytes
        self._measure = measure
        self._units_max = units_max
        self._begun = b""  # of a header
        self._left = 0  # bytes of the current unit

    def next_piece(self, data: memoryview) -> tuple[int, int]:
        """The length of the next piece of ``data``, and how many units end in it."""
        size, left, begun = len(data), self._left, self._begun
        end = units = 0
        while end < size:
            if left:
                step = min(left, size - end)
                left -= step
                end += step
            else:
                wanted = self._header_bytes
                while True:
                    step = min(wanted - len(begun), size - end)
                    begun += data[end : end + step]
                    end += step
                    if len(begun) < wanted:
                        break
                    left = self._measure(begun)
                    if left >= 0:
                        begun = b""
                        break
                    wanted -= left
                    left = 0
            if not left and not begun:
                units += 1
                if units == self._units_max:
                    break
        self._left, self._begun = left, begun
        return end, units
