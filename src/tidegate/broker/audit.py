"""The audit trail: who changed what, when, from where, and what it was before.

The broker's methods record their changes; each protocol sets the actor (``acting_as``), also for the tasks
that it starts. Without an actor, the service itself acts: it applies its settings at the start. A record
never contains a key, or anything derived from one that would reveal a short key; it says which was replaced.

Each record is written to the log (``tidegate.audit``) and to a file in the data directory, whose newest
records are read at the next start. What is done with rights on one event hub, by its policy or by a token
for it, has a separate file and memory, so that the manager of one hub cannot displace records of the
namespace. The same holds for sign-ins, sign-outs and refused sign-ins, which require no rights and are
limited per hour and policy; and for those of hubs' policies, whose managers create new ones at will. If a
file cannot be written, an error is logged and the change stands. The files are not synced: a power loss may
remove their last lines.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import Enum
from heapq import merge
from operator import itemgetter
from typing import Any, Final, NamedTuple

from tidegate.broker.authorization import Grant
from tidegate.broker.names import shown_policy_name
from tidegate.broker.peers import UNKNOWN_PEER, Door, Peer
from tidegate.model.clock import Clock
from tidegate.storage.engine import LineLog

_FILES: Final = {
    (False, False): "audit",
    (False, True): "audit-hubs",
    (True, False): "sign-ins",
    (True, True): "sign-ins-hubs",
}
"""The names of the files, without their endings: whether they have sign-ins, and whether those of hubs'
policies."""

RECORDS_MAX: Final = 5_000
"""Records of each kind kept in memory (our choice: a few MB)."""

TEXT_CHARACTERS_MAX: Final = 300
"""Longer strings are shortened (our choice)."""

SIGN_INS_MAX: Final = 60
"""Recorded sign-ins per policy and hour; as many sign-outs, redrives and created containers, and refused
sign-ins of all policies together."""

POLICIES_MAX: Final = 1_000
"""Policies whose sign-ins are counted (our choice: some 100 KB); the one counted longest makes room, of
hubs' policies first."""

_HOUR_S: Final = 3_600.0

_log: Final = logging.getLogger("tidegate.audit")


class Action(Enum):
    """A recorded action, named as in the HTTP administration if it exists there."""

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
    CANCEL_JOB = "cancelJob"
    STOP_PIPELINE = "stopPipeline"
    CREATE_BACKUP = "createBackup"
    DELETE_BACKUP = "deleteBackup"
    CREATE_CONTAINER = "createContainer"
    DELETE_CONTAINER = "deleteContainer"


_SIGN_INS: Final = frozenset({Action.SIGN_IN, Action.REFUSED_SIGN_IN, Action.SIGN_OUT})
_LIMITED: Final = _SIGN_INS | {Action.REDRIVE, Action.CREATE_CONTAINER}
"""What is done without Manage, and could displace the records of others."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change."""

    peer: Peer = UNKNOWN_PEER
    policy: str = ""
    """The policy, or several (``a, b``; beside a hub's, the namespace's are ``a of the namespace``), whose
    keys were used; empty: the service itself, or a peer without a valid key."""
    scope: str = ""
    """The event hub of the policy (or of one of several); empty: the namespace."""
    grants: tuple[Grant, ...] = field(default=(), repr=False, compare=False)
    """Each allows the change; a change that has waited needs one that is still in force."""

    @property
    def hub(self) -> str:
        """The event hub, in lower case, on which all its grants are; empty: one is for the namespace."""
        return min((grant.hub for grant in self.grants), default=self.scope.lower())

    @property
    def name(self) -> str:
        """The policy, and whose it is: a hub may have one that is named like the namespace's."""
        return f"{self.policy} of {self.scope}" if self.scope else self.policy

    @classmethod
    def of(cls, grants: Iterable[Grant], peer: Peer) -> Actor:
        """The actor with these grants, each of which allows the change."""
        grants = tuple(grants)
        proved = sorted({(grant.scope, grant.policy_name) for grant in grants})
        of_hub = proved[-1][0]
        names = [
            name if scope == of_hub else f"{name} of {scope or 'the namespace'}" for scope, name in proved
        ]
        return cls(peer, ", ".join(names), of_hub, grants)


_ACTOR: ContextVar[Actor] = ContextVar("actor", default=Actor())  # noqa: B039 - frozen


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Set the actor of the block, and of tasks that are started in it."""
    token = _ACTOR.set(actor)
    try:
        yield
    finally:
        _ACTOR.reset(token)


def current_actor() -> Actor:
    """Who acts here."""
    return _ACTOR.get()


Values = Mapping[str, object]
"""JSON values by name."""


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
    """The values before the change, if any."""
    new: Values | None
    """The values after it, if any."""
    hub: str = ""
    """The event hub that the policy or its token was for, in lower case; ``$blob``: a signature for the
    namespace's storage account; empty: the namespace."""


class AuditTrail:
    """The trail of one namespace."""

    def __init__(self, clock: Clock, open_lines: Callable[[str], LineLog]) -> None:
        """open_lines: opens the lines of a kind, which are read."""
        self._clock = clock
        self._kinds = {each: _Kind(open_lines(name)) for each, name in _FILES.items()}
        self._hours: dict[_Counted, _Hour] = {}
        self._count = 0  # for the order, since the wall clock may be set back
        earlier = [(record, kind) for kind in self._kinds.values() for record in kind.read()]
        for record, kind in sorted(earlier, key=lambda each: each[0].time):
            self._hold(record, kind)

    def record(
        self, action: Action, target: str = "", *, old: Values | None = None, new: Values | None = None
    ) -> None:
        """Record a change that the current actor has made. Never raises for the file.

        Only ``SIGN_INS_MAX`` sign-ins per hour are recorded, also of sign-outs, refused sign-ins, redrives
        and created containers; the next record has the number of those that were not.
        """
        actor = _ACTOR.get()
        if action in _LIMITED:
            not_recorded = self._admit(action, actor)
            if not_recorded is None:
                return
            if not_recorded:
                new = {**(new or {}), "not_recorded": not_recorded}
        old, new = _shortened(old), _shortened(new)
        time = self._clock.now_utc().astimezone(UTC).isoformat(timespec="milliseconds")
        peer = actor.peer
        record = AuditRecord(
            time,
            action.value,
            target,
            actor.policy,
            actor.scope,
            peer.address,
            peer.door.value,
            old,
            new,
            actor.hub,
        )
        kind = self._kind_of(record)
        self._hold(record, kind)
        fields = asdict(record)
        _log.info("%s %.300s", action.value, target or "the namespace", extra={"audit": fields})
        kind.lines.append(json.dumps(fields).encode() + b"\n")

    def record_refused_sign_in(self, policy: str, address: str, reason: str) -> None:
        """Record a refused sign-in."""
        with acting_as(Actor(Peer(Door.CONSOLE, address))):
            self.record(Action.REFUSED_SIGN_IN, new={"asked_as": shown_policy_name(policy), "reason": reason})

    def newest_first(self) -> list[AuditRecord]:
        """The records in memory."""
        return list(self.each_newest_first())

    def each_newest_first(self) -> Iterator[AuditRecord]:
        """The records in memory as they are now, each when it is asked for: there are up to 20,000."""
        held = (reversed(tuple(kind.held)) for kind in self._kinds.values())
        return (record for _, record in merge(*held, key=itemgetter(0), reverse=True))

    def close(self) -> None:
        for kind in self._kinds.values():
            kind.lines.close()

    def _kind_of(self, record: AuditRecord) -> _Kind:
        return self._kinds[Action(record.action) in _SIGN_INS, bool(record.hub)]

    def _hold(self, record: AuditRecord, kind: _Kind) -> None:
        self._count += 1
        kind.held.append((self._count, record))

    def _admit(self, action: Action, actor: Actor) -> int | None:
        """How many were left out since the last recorded one; None: this one is left out, too."""
        now = self._clock.monotonic()
        # All tokens for hubs together: their holders may name hub after hub, but not use up its own count.
        key = _Counted(action, actor.scope, actor.policy, bool(actor.hub))
        hour = self._hours.pop(key, None) or _Hour(now)
        if now - hour.began_at > _HOUR_S:
            hour = _Hour(now, left_out=hour.left_out)
        if len(self._hours) >= POLICIES_MAX:
            first = min(self._hours, key=lambda each: (not each.is_of_hub, self._hours[each].began_at))
            if left_out := self._hours.pop(first).left_out:
                name = Actor(policy=first.policy, scope=first.scope).name
                _log.info("%s by %.400s: %d were not recorded", first.action.value, name, left_out)
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


class _Counted(NamedTuple):
    """What is counted together."""

    action: Action
    scope: str
    policy: str
    is_of_hub: bool
    """Whether the policy, or its token, is for one event hub."""


@dataclass(slots=True)
class _Hour:
    """Sign-ins of one policy within an hour."""

    began_at: float
    """By the monotonic clock."""
    recorded: int = 0
    left_out: int = 0


class _Kind:
    """Records of one kind, in memory and as lines."""

    def __init__(self, lines: LineLog) -> None:
        self.held: deque[tuple[int, AuditRecord]] = deque(maxlen=RECORDS_MAX)
        self.lines = lines

    def read(self) -> list[AuditRecord]:
        """The newest records."""
        records = (_parse(line) for line in self.lines.read()[-RECORDS_MAX:])
        return [record for record in records if record is not None]


def _parse(line: bytes) -> AuditRecord | None:
    """A record; None if the line was cut off by a crash, or edited."""
    try:
        values: dict[str, Any] = json.loads(line)
        record = AuditRecord(**values)
        Action(record.action), datetime.fromisoformat(record.time)
        return record
    except (ValueError, TypeError, RecursionError):
        return None
