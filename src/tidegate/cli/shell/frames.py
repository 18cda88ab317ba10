"""A view that is refreshed until Ctrl-C: redrawn in place on a terminal, a snapshot each time elsewhere."""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Callable
from typing import Final

from tidegate.cli.shell.render import Output, cell_text, remark

_HOME: Final = "\x1b[H"
_CLEAR_SCREEN: Final = f"{_HOME}\x1b[2J"
_CLEAR_LINE_END: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"


class _Frame(io.StringIO):
    """Collects what a terminal is to show."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the terminal."""
        return self._encoding

    def isatty(self) -> bool:
        """It stands for one."""
        return True


class Frames:
    """Shows one frame after the other."""

    def __init__(self, output: Output, *, is_live: bool = True) -> None:
        """is_live: whether there will be more than one."""
        self._output = output
        self._count = 0
        self.is_redrawn = is_live and output.is_table and output.is_terminal

    @property
    def height(self) -> int | None:
        """Lines that a frame has at most; None: any number."""
        return shutil.get_terminal_size().lines - 1 if self.is_redrawn else None

    def note(self, frame: Output) -> Callable[[str], None]:
        """Shows a sentence beside the result: in the frame if that covers the terminal."""
        width = shutil.get_terminal_size().columns
        return (lambda text: frame.line(textwrap.fill(cell_text(text), width))) if self.is_redrawn else remark

    def show(self, write: Callable[..., None], *values: object) -> None:
        """Show what ``write`` writes, called with an output and ``values``; on a terminal as much as fits."""
        output, self._count = self._output, self._count + 1
        height = self.height
        if height is None:
            if output.is_table and self._count > 1:
                output.line("")
            write(output, *values)
            output.stream.flush()
            return
        frame = _Frame(output.stream.encoding)
        write(output.on(frame), *values)
        # Not splitlines(): it splits at characters that do not end a line on a terminal.
        lines = frame.getvalue().removesuffix("\n").split("\n")
        if len(lines) > height:
            lines = [*lines[: height - 1], f"{len(lines) - height + 1} more lines."]
        begin = _CLEAR_SCREEN if self._count == 1 else _HOME
        text = "".join(f"{line}{_CLEAR_LINE_END}\n" for line in lines)
        output.stream.write(f"{begin}{text}{_CLEAR_BELOW}")
        output.stream.flush()

    def close(self) -> None:
        """End below the ``^C`` that a terminal shows, where the shell's prompt follows."""
        if self.is_redrawn and self._count:
            self._output.line("")
