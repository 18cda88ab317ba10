"""What an examination finds: damage, torn tails, and what the log is without them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tidegate.storage.manifest import Manifest, Mark, merged
from tidegate.storage.producers import ProducerTable
from tidegate.storage.segments.segment import Segment, SegmentHeader


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place in a log."""

    path: Path
    position: int
    """Byte offset in the file."""
    description: str
    lost: tuple[int, int | None] | None = None
    """Half-open range of the sequence numbers that cannot be read; up to None: unknown how many. None: no
    event is lost."""
    set_aside: Path | None = None
    """Where the damaged bytes are after a repair; None if nothing was repaired."""
    is_repairable: bool = True


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes that nothing shows to have been durable."""

    path: Path
    position: int
    length: int


@dataclass(slots=True)
class Examination:
    """What was found; see the module."""

    directory: Path
    manifest: Manifest
    """As found."""
    mark: Mark
    """How far the log is known to have gone."""
    damages: list[Damage] = field(default_factory=list)
    notes: list[tuple[Path, str]] = field(default_factory=list)
    """What a kill or a power loss may leave, and a start puts right."""
    torn: TornTail | None = None
    segments: list[Segment] = field(default_factory=list)
    """The intact parts, oldest first; the last one has its index."""
    is_last_active: bool = False
    next_sequence_number: int = 0
    chain: int = 0
    last_enqueued_time_ms: int | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """New ones."""
    producers: ProducerTable = field(default_factory=lambda: ProducerTable(0))
    read_from: int = 0
    """Where reading began in the active segment: what follows is perhaps not durable yet."""
    headers: dict[Path, SegmentHeader] = field(default_factory=dict)
    """Files whose header is damaged, and what it was."""
    unlisted: list[Path] = field(default_factory=list)
    """Segment files that are no part of the log: renamed by a repair, never removed."""
    leftovers: list[Path] = field(default_factory=list)
    """Files without events: of a segment whose creation was interrupted, or that retention had removed."""
    stale_indexes: list[Path] = field(default_factory=list)
    """Indexes that do not fit their segment: removed by a repair, and made again when needed."""
    batches: int = 0
    events: int = 0
    bytes_read: int = 0
    segment_files: int = 0

    @property
    def is_end_proved(self) -> bool:
        """Whether it is known that nothing was acknowledged behind the end."""
        return self.manifest.is_closed

    def result(self) -> Manifest:
        """The log as it is once the damage is accepted, with the manifest's next revision."""
        return replace(
            self.manifest,
            revision=max(self.manifest.revision, self.mark.revision) + 1,
            segments=tuple(self.segments),
            is_last_active=self.is_last_active,
            next_sequence_number=self.next_sequence_number,
            chain=self.chain,
            last_enqueued_time_ms=self.last_enqueued_time_ms,
            gaps=merged((*self.manifest.gaps, *self.gaps)),
            # Whatever was appended since is accounted for by the gap that a doubt leaves.
            is_closed=self.manifest.is_closed or bool(self.manifest.doubt),
            doubt="",
            producers=self.producers.states,
            index=self.segments[-1].index if self.segments else None,
        )
