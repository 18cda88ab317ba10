"""The audit trail: who changed what, when, from where, and what it was before.

The broker's changing methods record; whoever opens a door says who acts (``acting_as``), and all that is
called within, tasks that are started there included, acts as that somebody. What no door was opened for is
the service itself: its settings at the start. A record never holds a key, nor anything made of one, by which
a short key could be found: it says which key was replaced.

Each record is a line of the log (``tidegate.audit``), and one of ``audit.jsonl`` in the data directory, from
which the newest are read at the next start. A file that cannot be written is an error in the log; the change
has been made, and stands. The file is not synced: a power loss may take its last lines.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC
from enum import Enum
from pathlib import Path
from typing import Any, Final

from tidegate.broker.authorization import Grant
from tidegate.broker.peers import UNKNOWN_PEER, Door, Peer
from tidegate.model.clock import Clock
from tidegate.storage.files import Files, WritableFile, read_whole, write_all

FILE_NAME: Final = "audit.jsonl"
OLDER_FILE_NAME: Final = "audit.1.jsonl"

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size at which the file becomes the older one, and the older one goes (our choice: some 10,000 changes)."""

RECORDS_MAX: Final = 5_000
"""Records that are held, to be shown (our choice: a few MB)."""

REFUSALS_MAX: Final = 60
"""Refused sign-ins an hour that are recorded: nobody can push changes out of the files by guessing keys."""

_HOUR_S: Final = 3_600.0

_log: Final = logging.getLogger("tidegate.audit")


class Action(Enum):
    """What somebody did, by the HTTP administration's name for it where it has one."""

    CREATE_EVENT_HUB = "createEventHub"
    UPDATE_EVENT_HUB = "updateEventHub"
    DELETE_EVENT_HUB = "deleteEventHub"
    CREATE_CONSUMER_GROUP = "createConsumerGroup"
    DELETE_CONSUMER_GROUP = "deleteConsumerGroup"
    CREATE_POLICY = "createPolicy"
    DELETE_POLICY = "deletePolicy"
    REGENERATE_KEY = "regenerateKey"
    REVOKE_PUBLISHER = "revokePublisher"
    RESTORE_PUBLISHER = "restorePublisher"
    SET_CAPTURE = "setCapture"
    DELETE_CAPTURE = "deleteCapture"
    UPDATE_NAMESPACE = "updateNamespace"
    SIGN_IN = "signIn"
    REFUSED_SIGN_IN = "refusedSignIn"
    SIGN_OUT = "signOut"
    REDRIVE = "redrive"
    DISCARD = "discard"
    MOVE_CHECKPOINTS = "moveCheckpoints"


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody who acts."""

    peer: Peer = UNKNOWN_PEER
    policy: str = ""
    """The policy whose key proved it; empty: the service itself, or nobody whose key was right."""
    scope: str = ""
    """The event hub whose policy it is; empty: the namespace's."""

    @classmethod
    def of(cls, grant: Grant, peer: Peer) -> Actor:
        """Whoever has proved a grant."""
        return cls(peer, grant.policy_name, grant.scope)


_ACTOR: ContextVar[Actor] = ContextVar("actor", default=Actor())  # noqa: B039 - frozen


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Have what is called within, and tasks that are started within, act as ``actor``."""
    token = _ACTOR.set(actor)
    try:
        yield
    finally:
        _ACTOR.reset(token)


Values = Mapping[str, object]
"""Plain values by name, as JSON has them."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change."""

    time: str
    """UTC, in ISO 8601."""
    action: str
    target: str
    """``HUB``, ``HUB/policies/NAME``; empty: the namespace."""
    policy: str
    scope: str
    address: str
    door: str
    old: Values | None
    """What was before; None: there was nothing."""
    new: Values | None
    """What is now; None: nothing."""


class AuditTrail:
    """The trail of one namespace."""

    def __init__(self, clock: Clock, files: Files, directory: Path) -> None:
        """directory: where the files are, and are read from."""
        self._clock = clock
        self._files = files
        self._path, self._older_path = directory / FILE_NAME, directory / OLDER_FILE_NAME
        self._records: deque[AuditRecord] = deque(maxlen=RECORDS_MAX)
        self._file: WritableFile | None = None
        self._position = 0
        self._refusals: deque[float] = deque()
        self._unrecorded = 0
        for path in (self._older_path, self._path):
            self._position = self._read(path)

    def record(
        self, action: Action, target: str = "", *, old: Values | None = None, new: Values | None = None
    ) -> None:
        """Record what whoever acts has just done. Never raises for the file."""
        actor = _ACTOR.get()
        time = self._clock.now_utc().astimezone(UTC).isoformat(timespec="milliseconds")
        peer = actor.peer
        record = AuditRecord(
            time, action.value, target, actor.policy, actor.scope, peer.address, peer.door.value, old, new
        )
        self._records.append(record)
        fields = asdict(record)
        _log.info("%s %.300s", action.value, target or "the namespace", extra={"audit": fields})
        try:
            self._append(json.dumps(fields).encode() + b"\n")
        except OSError as error:
            self._forget_file()
            _log.error("the audit trail cannot be written to %s: %s", self._path, error)

    def record_refused_sign_in(self, policy: str, address: str, reason: str) -> None:
        """Record that somebody was not let in: ``REFUSALS_MAX`` an hour, and then how many were not."""
        now = self._clock.monotonic()
        while self._refusals and now - self._refusals[0] > _HOUR_S:
            self._refusals.popleft()
        if len(self._refusals) >= REFUSALS_MAX:
            self._unrecorded += 1
            return
        self._refusals.append(now)
        new: dict[str, object] = {"asked_as": policy[:80], "reason": reason}
        if self._unrecorded:
            new["refusals_not_recorded"], self._unrecorded = self._unrecorded, 0
        with acting_as(Actor(Peer(Door.CONSOLE, address))):
            self.record(Action.REFUSED_SIGN_IN, new=new)

    def newest_first(self) -> list[AuditRecord]:
        """The records that are held."""
        return list(reversed(self._records))

    def close(self) -> None:
        """Release the file."""
        self._forget_file()

    def _append(self, line: bytes) -> None:
        if self._file is not None and self._position + len(line) > FILE_BYTES_MAX:
            self._forget_file()
            self._files.rename(self._path, self._older_path)
            self._position = 0
        if self._file is None:
            is_there = self._files.exists(self._path)
            self._file = self._files.open_writable(self._path) if is_there else self._files.create(self._path)
        self._position = write_all(self._file, [line], self._position)

    def _forget_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, path: Path) -> int:
        """Take records in; returns the bytes up to the last whole line, behind which is written."""
        try:
            data = read_whole(self._files, path)
        except FileNotFoundError:
            return 0
        except OSError as error:
            _log.error("the audit trail cannot be read from %s: %s", path, error)
            return 0
        end = data.rfind(b"\n") + 1
        for line in data[:end].splitlines()[-RECORDS_MAX:]:
            record = _parse(line)
            if record is not None:
                self._records.append(record)
        return end


def _parse(line: bytes) -> AuditRecord | None:
    """A line of the file; None for one that a crash has torn, or somebody has edited."""
    try:
        values: dict[str, Any] = json.loads(line)
        return AuditRecord(**values)
    except (ValueError, TypeError, RecursionError):
        return None
