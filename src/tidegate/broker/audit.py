"""The audit trail: who changed what, when, from where, and what it was before.

The broker's changing methods record; each protocol says who acts (``acting_as``), and all calls within,
including those of tasks started there, act as that actor. Changes without an actor are those of
the service itself: its settings at the start. A record never holds a key, nor anything made of one, by which
a short key could be found: it says which key was replaced.

Each record is a line of the log (``tidegate.audit``), and one of a file in the data directory, from which
the newest are read at the next start. Changes by policies of event hubs have a file and memory of their own,
so that the manager of one hub cannot displace records of the namespace. So have sign-ins, sign-outs and
refused sign-ins, which are limited per hour and policy: signing in needs no right to change
anything. A file that cannot be written is an error in the log; the change has been made, and
stands. The files are not synced: a power loss may take their last lines.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

from tidegate.broker.authorization import Grant
from tidegate.broker.names import shown_policy_name
from tidegate.broker.peers import UNKNOWN_PEER, Door, Peer
from tidegate.model.clock import Clock
from tidegate.storage.files import Files, WritableFile, read_whole, write_all

FILE_NAME: Final = "audit.jsonl"
OLDER_FILE_NAME: Final = "audit.1.jsonl"
HUBS_FILE_NAME: Final = "audit-hubs.jsonl"
OLDER_HUBS_FILE_NAME: Final = "audit-hubs.1.jsonl"
SIGN_INS_FILE_NAME: Final = "sign-ins.jsonl"
OLDER_SIGN_INS_FILE_NAME: Final = "sign-ins.1.jsonl"

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size at which a file becomes the older one, and the older one goes (our choice: some 10,000 changes)."""

RECORDS_MAX: Final = 5_000
"""Changes that are held, to be shown, as many by policies of hubs, and sign-ins (our choice: a few MB)."""

TEXT_CHARACTERS_MAX: Final = 300
"""Characters of a text that a record holds; more are left out (our choice: records stay small)."""

SIGN_INS_MAX: Final = 60
"""Sign-ins of a policy an hour that are recorded; as many sign-outs, and refused sign-ins of all together."""

POLICIES_MAX: Final = 1_000
"""Policies whose sign-ins are counted (our choice: some 100 KB); the one that began first makes room."""

_HOUR_S: Final = 3_600.0

_log: Final = logging.getLogger("tidegate.audit")


class Action(Enum):
    """An act, by the HTTP administration's name for it where it has one."""

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


_SIGN_INS: Final = frozenset({Action.SIGN_IN, Action.REFUSED_SIGN_IN, Action.SIGN_OUT})


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts."""

    peer: Peer = UNKNOWN_PEER
    policy: str = ""
    """The policy whose key proved it, or several (``a, b``) where keys of several allow it; empty: the
    service itself, or a peer without a valid key."""
    scope: str = ""
    """The event hub whose policy it is (of several: that of one of them); empty: the namespace's."""

    @classmethod
    def of(cls, grants: Iterable[Grant], peer: Peer) -> Actor:
        """The actor with these grants, each of which allows the act."""
        proved = sorted({(grant.scope, grant.policy_name) for grant in grants})
        names = ", ".join(dict.fromkeys(name for _, name in proved))
        return cls(peer, names, proved[-1][0])


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
        self._changes = _AuditFile(files, directory / FILE_NAME, directory / OLDER_FILE_NAME)
        self._hubs_changes = _AuditFile(files, directory / HUBS_FILE_NAME, directory / OLDER_HUBS_FILE_NAME)
        self._sign_ins = _AuditFile(
            files, directory / SIGN_INS_FILE_NAME, directory / OLDER_SIGN_INS_FILE_NAME
        )
        self._hours: dict[tuple[Action, str, str], _Hour] = {}
        # In order of arrival, whatever the wall clock says: the number that ``newest_first`` goes by.
        self._count = 0
        earlier = [record for file in self._files for record in file.read()]
        for record in sorted(earlier, key=lambda record: record.time):
            self._hold(record, self._file_of(record))

    def record(
        self, action: Action, target: str = "", *, old: Values | None = None, new: Values | None = None
    ) -> None:
        """Record what the current actor has just done. Never raises for the file.

        Of sign-ins, sign-outs and refused sign-ins ``SIGN_INS_MAX`` an hour are, for each policy; the next
        record says how many were not.
        """
        actor = _ACTOR.get()
        if action in _SIGN_INS:
            not_recorded = self._admit(action, actor)
            if not_recorded is None:
                return
            if not_recorded:
                new = {**(new or {}), "not_recorded": not_recorded}
        old, new = _shortened(old), _shortened(new)
        time = self._clock.now_utc().astimezone(UTC).isoformat(timespec="milliseconds")
        peer = actor.peer
        record = AuditRecord(
            time, action.value, target, actor.policy, actor.scope, peer.address, peer.door.value, old, new
        )
        file = self._file_of(record)
        self._hold(record, file)
        fields = asdict(record)
        _log.info("%s %.300s", action.value, target or "the namespace", extra={"audit": fields})
        file.append(json.dumps(fields).encode() + b"\n")

    def record_refused_sign_in(self, policy: str, address: str, reason: str) -> None:
        """Record a refused sign-in."""
        with acting_as(Actor(Peer(Door.CONSOLE, address))):
            self.record(Action.REFUSED_SIGN_IN, new={"asked_as": shown_policy_name(policy), "reason": reason})

    def newest_first(self) -> list[AuditRecord]:
        """The records that are held."""
        held = [each for file in self._files for each in file.held]
        return [record for _, record in sorted(held, key=lambda each: each[0], reverse=True)]

    def close(self) -> None:
        """Release the files."""
        for file in self._files:
            file.close()

    @property
    def _files(self) -> tuple[_AuditFile, ...]:
        return self._changes, self._hubs_changes, self._sign_ins

    def _file_of(self, record: AuditRecord) -> _AuditFile:
        if Action(record.action) in _SIGN_INS:
            return self._sign_ins
        return self._hubs_changes if record.scope else self._changes

    def _hold(self, record: AuditRecord, file: _AuditFile) -> None:
        self._count += 1
        file.held.append((self._count, record))

    def _admit(self, action: Action, actor: Actor) -> int | None:
        """How many like this one were left out since one was recorded; None: so is this one."""
        now = self._clock.monotonic()
        key = action, actor.scope, actor.policy
        hour = self._hours.pop(key, None) or _Hour(now)
        if now - hour.began_at > _HOUR_S:
            hour = _Hour(now, left_out=hour.left_out)
        if len(self._hours) >= POLICIES_MAX:
            (first, _, policy) = first_key = min(self._hours, key=lambda each: self._hours[each].began_at)
            if left_out := self._hours.pop(first_key).left_out:
                _log.info("%s of %.80s: %d were not recorded", first.value, policy, left_out)
        self._hours[key] = hour
        if hour.recorded >= SIGN_INS_MAX:
            hour.left_out += 1
            return None
        hour.recorded += 1
        left_out, hour.left_out = hour.left_out, 0
        return left_out


def _shortened(values: Values | None) -> Values | None:
    if values is None:
        return None
    return {
        name: f"{value[:TEXT_CHARACTERS_MAX]}…"
        if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX
        else value
        for name, value in values.items()
    }


@dataclass(slots=True)
class _Hour:
    """Sign-ins of one policy within an hour."""

    began_at: float
    """By the monotonic clock."""
    recorded: int = 0
    left_out: int = 0


class _AuditFile:
    """Records of one kind: those that are held, and a file with an older one."""

    def __init__(self, files: Files, path: Path, older_path: Path) -> None:
        self.held: deque[tuple[int, AuditRecord]] = deque(maxlen=RECORDS_MAX)
        self._files = files
        self._path, self._older_path = path, older_path
        self._file: WritableFile | None = None
        self._position = 0

    def append(self, line: bytes) -> None:
        """Write a record. Never raises: what cannot be written is an error in the log."""
        try:
            self._append(line)
        except OSError as error:
            self.close()
            _log.error("the audit trail cannot be written to %s: %s", self._path, error)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> list[AuditRecord]:
        """The newest records of both files; what is appended goes behind the last whole line."""
        older, _ = self._read(self._older_path)
        newer, self._position = self._read(self._path)
        return [*older, *newer]

    def _append(self, line: bytes) -> None:
        if self._file is not None and self._position + len(line) > FILE_BYTES_MAX:
            self.close()
            self._files.rename(self._path, self._older_path)
            self._position = 0
        if self._file is None:
            is_there = self._files.exists(self._path)
            self._file = self._files.open_writable(self._path) if is_there else self._files.create(self._path)
        self._position = write_all(self._file, [line], self._position)

    def _read(self, path: Path) -> tuple[list[AuditRecord], int]:
        """The newest records of a file, and the bytes up to its last whole line."""
        try:
            data = read_whole(self._files, path)
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            _log.error("the audit trail cannot be read from %s: %s", path, error)
            return [], 0
        end = data.rfind(b"\n") + 1
        records = (_parse(line) for line in data[:end].splitlines()[-RECORDS_MAX:])
        return [record for record in records if record is not None], end


def _parse(line: bytes) -> AuditRecord | None:
    """A line of the file; None for one that a crash has torn, or that was edited."""
    try:
        values: dict[str, Any] = json.loads(line)
        record = AuditRecord(**values)
        Action(record.action), datetime.fromisoformat(record.time)
        return record
    except (ValueError, TypeError, RecursionError):
        return None
