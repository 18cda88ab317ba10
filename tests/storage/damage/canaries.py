"""Defences, switched off one at a time: the run must then report failures."""

from __future__ import annotations

from typing import Any

from tidegate.storage import partition_writer, record
from tidegate.storage.manifest import ManifestFiles
from tidegate.storage.segments import segment

DEFENCES = ("seed", "chain", "mark")


def replacements(defence: str) -> list[tuple[Any, str, Any]]:
    """What to set, on which object, under which name."""
    match defence:
        case "seed":
            return [(segment.SegmentHeader, "seed", property(lambda header: 0))]
        case "chain":  # every batch names the same checksum, and has it
            header = record.BatchHeader
            return [
                (record, "BatchHeader", lambda checksum, *fields: header(0, *fields)),
                (partition_writer, "checksum_of", lambda encoded: 0),
            ]
        case "mark":
            return [(ManifestFiles, "save_mark", lambda *_: None)]
        case _:
            raise ValueError(defence)


def switch_off(defence: str) -> None:
    """For the rest of the process."""
    for owner, name, value in replacements(defence):
        setattr(owner, name, value)
