"""Keeps the manifest of an open log. Only the writer thread calls it."""

from __future__ import annotations

import logging
import os
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

from tidegate.model.history import History
from tidegate.storage.manifest import Manifest, ManifestFiles, Mark, with_history
from tidegate.storage.producers import ProducerTable
from tidegate.storage.segments.segment import LogView, Segment

_CUTS_MAX = 100
"""Our choice. Beyond the oldest known one, a repair gives up more if a write comes back."""

_logger = logging.getLogger(__name__)


class ManifestWriter:
    """Saves the manifest of one partition, and marks between the saves."""

    def __init__(self, manifest: Manifest, files: ManifestFiles) -> None:
        """manifest: as recovered."""
        self._manifest = manifest
        """As last saved."""
        self._files = files
        self._revision = manifest.revision
        """The highest that was tried: what a failed save has written may be found later."""
        self._marked = manifest.next_sequence_number
        self.histories: tuple[History, ...] = with_history(manifest, os.urandom(16).hex()).histories
        """The last one is of the events that are appended from now on."""
        self.is_begun = False
        """Whether ``begin_history`` was called since the start and the last cut: until then, the last history
        or the cut is not saved."""

    @property
    def log_id(self) -> bytes:
        """The partition's."""
        return self._manifest.log_id

    @property
    def is_last_active(self) -> bool:
        """Whether the last segment took batches when the manifest was saved."""
        return self._manifest.is_last_active

    @property
    def is_closed(self) -> bool:
        """Whether the manifest says that nothing is appended."""
        return self._manifest.is_closed

    def begin_history(self, view: LogView, producers: ProducerTable) -> None:
        """Before the first append after a start: note that what follows may be more than the manifest knows.

        Raises OSError.
        """
        is_active = self._manifest.is_last_active
        self.save(view, producers, is_active=is_active, histories=self.histories, is_closed=False)
        self.is_begun = True

    def note_cut(self, number: int) -> None:
        """A write of events from this number on was taken back: the next append saves that first."""
        kept = [each for each in self._manifest.cuts if self._manifest.removed_until <= each < number]
        self._manifest = replace(self._manifest, cuts=(*kept, number)[-_CUTS_MAX:])
        self.is_begun = False

    def save(
        self,
        view: LogView,
        producers: ProducerTable,
        *,
        is_active: bool,
        is_both: bool = False,
        **changes: Any,
    ) -> None:
        """Save the durable part of the log durably. Raises OSError: the other copy then stands.

        is_active: whether the last segment takes batches. is_both: both copies, for what may not be forgotten
        with one of them. changes: other fields of the manifest.
        """
        self._revision += 1
        manifest = self._manifest_of(view, producers, is_active=is_active, **changes)
        self._files.save(manifest, is_both=is_both)
        self._manifest = replace(manifest, producers=None, index=None)
        self._marked = view.next_sequence_number

    def snapshot(self, view: LogView, producers: ProducerTable, *, is_active: bool) -> Manifest:
        """The manifest as if the log were closed now, for a copy: appends do not change it."""
        manifest = self._manifest_of(view, producers, is_active=is_active, is_closed=True)
        last = tuple(map(copy, manifest.segments[-1:]))
        return replace(manifest, segments=manifest.segments[:-1] + last, index=deepcopy(manifest.index))

    def _manifest_of(
        self, view: LogView, producers: ProducerTable, *, is_active: bool, **changes: Any
    ) -> Manifest:
        if is_active:
            note_end(view.segments[-1], view)
        return replace(
            self._manifest,
            revision=self._revision,
            segments=view.segments,
            is_last_active=is_active,
            next_sequence_number=view.next_sequence_number,
            chain=view.chain,
            last_enqueued_time_ms=view.last_enqueued_time_ms,
            producers=producers.states,
            index=view.segments[-1].index if view.segments else None,
            **changes,
        )

    def mark(self, view: LogView) -> None:
        """Note how far the log went: what is before that is then known to have existed.

        A failure is logged.
        """
        if view.next_sequence_number == self._marked:
            return
        try:
            self._files.save_mark(self.log_id, Mark(self._revision, view.next_sequence_number, view.chain))
        except OSError as error:
            _logger.warning("The mark of %s was not saved: %s.", self._manifest.place, error)
        else:
            self._marked = view.next_sequence_number


def note_end(segment: Segment, view: LogView) -> None:
    """Note how far the active segment went."""
    assert segment.index is not None
    segment.end_position = segment.file_bytes = view.end_position
    segment.until_sequence_number = view.next_sequence_number
    segment.last_chain = view.chain
    segment.last_time_ms = None if segment.index.is_empty else segment.index.last_time_ms
