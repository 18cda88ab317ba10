"""The broker: a namespace of event hubs over one log engine.

Everything is called on the event loop that ran ``Broker.open``. Changes are made one after another, each
durable when its call returns; of those that wait, see ``ChangeQueue`` for which is next, and which is refused
with ServerBusyError.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Unpack

from tidegate.broker.audit import Action, AuditTrail, current_actor
from tidegate.broker.authorization import Authorizer, Grant, SharedAccessPolicy
from tidegate.broker.backups import NamespaceBackups
from tidegate.broker.blobs.accounts import DEVELOPMENT_ACCOUNT_ID, NAMESPACE_ACCOUNT_ID, parse_account
from tidegate.broker.blobs.groups import IndexedHub, KeptGroup
from tidegate.broker.blobs.reports import Collect, ConsumerReport, keep_report
from tidegate.broker.blobs.store import BlobStore
from tidegate.broker.catalog import Catalog, EventHubRecord, serialized
from tidegate.broker.claims import Claim
from tidegate.broker.event_hub import EventHub, EventHubStatistics
from tidegate.broker.key_guard import KeyGuard
from tidegate.broker.listeners import Listeners
from tidegate.broker.names import validate_name
from tidegate.broker.peers import UNKNOWN_PEER, Peer
from tidegate.broker.policies import add_policy, find_policy, remove_policy, replace_key, warn_of_short_keys
from tidegate.broker.retention_clock import RetentionClock
from tidegate.broker.throttling import Throughput, validate_units
from tidegate.model.audience import NAMESPACE, Audience
from tidegate.model.capture import CaptureSettings
from tidegate.model.capture_destination import CaptureDestinations, CapturePlace
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.model.hub_settings import HubChanges
from tidegate.model.limits import HUB_NAME_CHARACTERS_MAX, TIER_LIMITS, Tier, TierLimits
from tidegate.model.sas import key_name_in
from tidegate.model.times import milliseconds_of
from tidegate.storage.engine import ChangeInDoubtError, LogEngine

_HOUR_MS: Final = 3_600_000
_LOOK_MS: Final = 60_000
"""From one ``apply_retention`` to the next, at most; the default of the service's settings."""
_logger = logging.getLogger(__name__)


class Broker:
    """A namespace; open it with ``await Broker.open(...)`` and ``await close()`` it."""

    def __init__(
        self, catalog: Catalog, engine: LogEngine, clock: Clock, audit: AuditTrail, blobs: BlobStore
    ) -> None:
        """Use ``open``."""
        self.is_lost_position_refused = False
        """True: a reader whose next event was removed by retention gets an error. False: it continues with
        the first event held, as in Event Hubs."""
        self.capture_destinations: CaptureDestinations | None = None
        """Where hubs may be captured to; None: anywhere except a cloud's metadata."""
        self._catalog = catalog
        self._engine = engine
        self.control: Final = engine.control
        """The control log, for what others keep beside the catalog, under keys of their own."""
        self._clock = clock
        self.authorizer: Final = Authorizer(
            catalog.namespace.policies, is_event_hub=lambda name: name.lower() in self._event_hubs
        )
        """The policies and the check of tokens."""
        catalog.check_actor = self.check_actor
        blobs.set_check_actor(self.check_actor)
        self.key_guard: Final = KeyGuard(clock)
        """Counts and delays wrong keys."""
        self.audit: Final = audit
        """The audit trail, in which methods that change the namespace record it themselves."""
        self.backups: Final = NamespaceBackups(engine.backups, catalog, clock, audit)
        """The backups of the namespace."""
        self.blobs: Final = blobs
        """The checkpoints of official processors."""
        self.throughput: Final = Throughput(clock, catalog.namespace.throughput_units)
        """The throughput limits."""
        self._statistics_of_deleted = EventHubStatistics()
        self._listeners = Listeners("event hubs")
        self._event_hubs: dict[str, EventHub] = {}
        self._retention_clock = RetentionClock(milliseconds_of(clock.now_utc()), clock.monotonic())

    @classmethod
    async def open(cls, engine: LogEngine, *, clock: Clock) -> Broker:
        """Open the namespace that ``engine`` keeps; closes the engine if that fails, and else in ``close``.

        A new one has no event hubs, and one policy RootManageSharedAccessKey with a random key. A partition
        that cannot be opened refuses everything with the reason; the others are served.
        Raises LogCorruptError (the catalog), LogFullError, ServerBusyError, LogFailedError.
        """
        try:
            catalog = await Catalog.open(engine.control, clock)
            blobs = await BlobStore.open(engine.control, clock, hub_ids=catalog.event_hubs)
            broker = cls(catalog, engine, clock, AuditTrail(clock, engine.open_lines), blobs)
            for record in catalog.event_hubs.values():
                broker._add_event_hub(record)
            broker._report_unopened()
            broker._retention_clock = RetentionClock(broker._newest_ms(), clock.monotonic())
            broker._warn_of_short_keys()
            for hub_id in engine.unknown_hub_ids(catalog.event_hubs):
                # An older catalog may have been restored: their owner must decide whether to remove them.
                _logger.warning("The logs %s belong to no event hub in the catalog; they are kept.", hub_id)
        except BaseException:
            await engine.close()
            raise
        return broker

    async def close(self) -> None:
        """Refuse new appends, finish those queued, and release the data directory. Idempotent."""
        await self.blobs.close()
        await self._engine.close()
        self.audit.close()

    # -- authorization

    def authorize(self, token: str, audience: Audience | str, peer: Peer = UNKNOWN_PEER) -> Grant:
        """The rights of a SAS token for ``audience`` now.

        Raises UnauthorizedError, and as ``KeyGuard.judge``.
        """
        now_utc = self._clock.now_utc()
        # A JSON Web Token names no policy, and no key of it can be guessed.
        policy = key_name_in(token) if self.authorizer.is_signature(token) else None
        return self.key_guard.judge(
            peer, policy, lambda: self.authorizer.authorize(token, audience, now_utc=now_utc)
        )

    def authorize_key(self, name: str, key: str, peer: Peer = UNKNOWN_PEER) -> tuple[Grant, ...]:
        """The rights of a peer with a policy's name and one of its keys: one grant per such policy.

        Raises UnauthorizedError, and as ``KeyGuard.judge``.
        """
        return self.key_guard.judge(peer, name, lambda: self.authorizer.authorize_key(name, key))

    def authorize_signature(
        self,
        accounts: Mapping[str, str | None],
        is_signed_with: Callable[[str], bool],
        peer: Peer,
        *,
        is_in_url: bool,
    ) -> tuple[Grant, ...]:
        """The rights of a peer whose signature names no policy; see ``Authorizer.authorize_signature``.

        accounts: the event hubs (None: the namespace) whose keys count, by the names under which wrong
        signatures are counted, apart from others if they are in URLs. Raises InvalidKeyError, and as
        ``KeyGuard.judge``.
        """
        return self.key_guard.judge_any(
            peer,
            tuple(accounts),
            lambda names: self.authorizer.authorize_signature(
                [accounts[each] for each in names], is_signed_with
            ),
            is_in_url=is_in_url,
        )

    def check_actor(self) -> None:
        """For what has waited. Raises UnauthorizedError if none of the current actor's grants is in force."""
        if current_actor().grants and not self._grants_in_force():
            raise UnauthorizedError(
                "InvalidSignature: While the request waited, its policy was deleted, the key regenerated, or "
                "the token expired.",
                next_step="Connect with a key that the policy has now.",
            )

    def policies(self, event_hub: str | None = None) -> tuple[SharedAccessPolicy, ...]:
        """The policies of an event hub, or (None) of the namespace. Raises NotFoundError (no such hub)."""
        return self._catalog.namespace.policies if event_hub is None else self.event_hub(event_hub).policies

    def policy(self, event_hub: str | None, name: str) -> SharedAccessPolicy:
        """One policy of an event hub, or (None) of the namespace. Raises NotFoundError."""
        return find_policy(self.policies(event_hub), name)

    @serialized
    async def create_policy(
        self,
        event_hub: str | None,
        name: str,
        claims: Iterable[Claim],
        *,
        key: str | None = None,
        secondary_key: str | None = None,
    ) -> SharedAccessPolicy:
        """Create a policy of an event hub, or (None) of the namespace; durable and valid on return.

        claims: at least one; Manage includes Send and Listen. Keys that are None are random.
        Raises InvalidArgumentError (or a hub's manager chooses a key), AlreadyExistsError (ignoring
        case), QuotaExceededError (12), NotFoundError (no such hub), LogFullError.
        """
        self._check_may_choose(key, secondary_key)
        policies = add_policy(self.policies(event_hub), name, claims, key=key, secondary_key=secondary_key)
        await self._replace_policies(event_hub, policies)
        warn_of_short_keys(policies[-1], event_hub)
        given = {"primary": key, "secondary": secondary_key}
        chosen = [which for which, value in given.items() if value is not None]
        new = {"claims": _claim_names(policies[-1]), "chosen_keys": chosen}
        self.audit.record(Action.CREATE_POLICY, self._policy_target(event_hub, name), new=new)
        return policies[-1]

    @serialized
    async def delete_policy(self, event_hub: str | None, name: str) -> None:
        """Delete a policy of an event hub, or (None) of the namespace; durable on return.

        Links that were opened with its keys end. The namespace's last policy with Manage cannot be deleted,
        because the service could then not be administered (our choice).
        Raises NotFoundError, InvalidArgumentError (the last one), LogFullError.
        """
        policies = remove_policy(self.policies(event_hub), name)
        if event_hub is None and not any(Claim.MANAGE in policy.claims for policy in policies):
            raise InvalidArgumentError(
                f"The policy {name!r} is the namespace's last policy with Manage.",
                next_step="Create another one first, or regenerate its keys.",
            )
        old = {"claims": _claim_names(self.policy(event_hub, name))}
        await self._replace_policies(event_hub, policies)
        self.audit.record(Action.DELETE_POLICY, self._policy_target(event_hub, name), old=old)

    @serialized
    async def regenerate_key(
        self, event_hub: str | None, name: str, *, is_secondary: bool = False, key: str | None = None
    ) -> SharedAccessPolicy:
        """Replace a policy's primary (or secondary) key; None is a random one. Durable on return.

        Links that were opened with the old key end. Raises NotFoundError, InvalidArgumentError (the key, or a
        hub's manager chose it), LogFullError.
        """
        self._check_may_choose(key)
        policies = replace_key(self.policies(event_hub), name, is_secondary=is_secondary, key=key)
        await self._replace_policies(event_hub, policies)
        policy = find_policy(policies, name)
        warn_of_short_keys(policy, event_hub)
        new = {"key": "secondary" if is_secondary else "primary", "chosen": key is not None}
        self.audit.record(Action.REGENERATE_KEY, self._policy_target(event_hub, name), new=new)
        return policy

    # -- limits

    @property
    def tier(self) -> Tier:
        """The tier of Event Hubs whose limits apply."""
        return self._catalog.namespace.tier

    @property
    def limits(self) -> TierLimits:
        """The limits of the tier."""
        return TIER_LIMITS[self.tier]

    @serialized
    async def set_tier(self, tier: Tier) -> None:
        """Apply the limits of another tier; durable on return.

        The maximum event size changes immediately (open links notice when they exceed it); existing
        partitions, consumer groups and retention do not change. Raises LogFullError.
        """
        old = self.tier
        await self._catalog.replace_namespace(replace(self._catalog.namespace, tier=tier))
        self.audit.record(Action.UPDATE_NAMESPACE, old={"tier": old.value}, new={"tier": tier.value})

    @serialized
    async def set_throughput_units(self, units: int | None) -> None:
        """Set the throughput units, also for later starts; None removes the limit.

        Raises InvalidArgumentError, LogFullError.
        """
        validate_units(units)
        old = self.throughput.units
        await self._catalog.replace_namespace(replace(self._catalog.namespace, throughput_units=units))
        self.throughput.set_units(units)
        self.audit.record(
            Action.UPDATE_NAMESPACE, old={"throughput_units": old}, new={"throughput_units": units}
        )

    # -- event hubs

    @serialized
    async def create_event_hub(
        self,
        name: str,
        *,
        partition_count: int,
        **settings: Unpack[HubChanges],
    ) -> EventHub:
        """Create an event hub; durable on return.

        partition_count: can only grow later. settings: those that differ from the defaults.
        Raises InvalidArgumentError, AlreadyExistsError, LogFullError; UnauthorizedError if the actor's rights
        end at one event hub: a role of Entra ID on a hub stays while the hub is deleted. A token of a policy
        of the namespace may be for the new hub alone, as azure-servicebus 0.21.1 makes it.
        """
        if current_actor().grants and not any(each.reach == NAMESPACE for each in self._grants_in_force()):
            raise UnauthorizedError(
                f"Unauthorized access. Creating the event hub {name[:80]!r} requires Manage on the namespace."
            )
        limits = self.limits
        validate_name(name, "event hub", HUB_NAME_CHARACTERS_MAX)
        if parse_account(name) is not None:
            raise InvalidArgumentError(
                f"{name!r} is the name of a storage account for checkpoints.",
                next_step="Use a name that does not end in .blob.",
            )
        if not 1 <= partition_count <= limits.partitions_max:
            raise InvalidArgumentError(
                f"Invalid number of partitions {partition_count}: use 1 to {limits.partitions_max}."
            )
        record = EventHubRecord(
            hub_id=secrets.token_hex(8),
            name=name,
            partition_count=partition_count,
            retention_hours=limits.retention_hours_default,
            created_at_ms=milliseconds_of(self._clock.now_utc()),
        ).changed(settings, limits)
        if name.lower() in self._event_hubs:
            raise AlreadyExistsError(f"The event hub {name!r} already exists.")
        # First, since it may fail: the catalog must not have a hub that cannot be used.
        await self._engine.create_logs(record.hub_id, partition_count)
        await self._catalog.put_event_hub(record)
        event_hub = self._add_event_hub(record)
        if name in self.authorizer.host_names:
            # An audience that begins with the name has meant the service, and now is ambiguous.
            self.authorizer.announce_new_name()
        self.audit.record(Action.CREATE_EVENT_HUB, name, new=record.choices())
        self._listeners.call()
        return event_hub

    def list_event_hubs(self) -> list[EventHub]:
        """All event hubs, in the order of their creation."""
        return list(self._event_hubs.values())

    def event_hub(self, name: str) -> EventHub:
        """The event hub of that name, ignoring case. Raises NotFoundError."""
        # Names are ASCII; the lower case of some other letters is ASCII, too: that of U+212A is "k".
        event_hub = self._event_hubs.get(name.lower()) if name.isascii() else None
        if event_hub is None:
            raise NotFoundError(
                f"The messaging entity '{name[:80]}' could not be found.",
                next_step="Create it first: tidegate hub create NAME.",
            )
        return event_hub

    async def update_event_hub(
        self,
        name: str,
        *,
        partition_count: int | None = None,
        **changes: Unpack[HubChanges],
    ) -> EventHub:
        """Change settings of an event hub, all or none; durable on return.

        changes: omitted settings stay. Retention applies from the next ``apply_retention`` on, the maximum
        event size immediately. partition_count: more than now adds partitions, which are readable on return;
        keys then belong to other partitions than before. None: as now.
        Raises NotFoundError, InvalidArgumentError (also fewer partitions, or a tier that cannot add any),
        UnauthorizedError (partitions are added by an actor without Manage on the namespace), LogFullError.
        """
        event_hub = self.event_hub(name)
        await event_hub.update(partition_count=partition_count, **changes)
        return event_hub

    async def set_capture(self, name: str, settings: CaptureSettings | None) -> None:
        """Set how an event hub is captured; None: not at all. Durable on return.

        Raises NotFoundError, InvalidArgumentError (a destination outside ``capture_destinations``),
        LogFullError.
        """
        if settings is not None:
            CapturePlace.parse(settings.destination)
            if self.capture_destinations is not None:
                self.capture_destinations.check(settings.destination, real_path=os.path.realpath)
        await self.event_hub(name).set_capture(settings)

    def kept_groups(
        self, event_hub: EventHub, *, is_newest_only: bool = False, consumer_group: str | None = None
    ) -> Iterator[KeptGroup]:
        """The consumer groups of official processors that keep their checkpoints here, each when asked for.

        is_newest_only: as for ``GroupIndex.of_hub``. consumer_group: the only one that counts; None: all do.
        """
        names = {name.lower() for name in event_hub.description.consumer_groups}
        if consumer_group is not None:
            names &= {consumer_group.lower()}
        return self.blobs.groups.of_hub(self._indexed(event_hub, names), is_newest_only=is_newest_only)

    @staticmethod
    def _indexed(event_hub: EventHub, consumer_groups: Collection[str]) -> IndexedHub:
        described = event_hub.description
        return IndexedHub(
            event_hub.name.lower(),
            described.hub_id,
            described.created_at_ms,
            consumer_groups,
            [partition.partition_id for partition in event_hub.partitions],
            (NAMESPACE_ACCOUNT_ID, DEVELOPMENT_ACCOUNT_ID),
        )

    async def keep_report(
        self,
        event_hub: EventHub,
        consumer_group: str,
        *,
        owner: str,
        sequence_numbers: Mapping[str, int | None],
        released: Collection[str] = (),
        collect: Collect,
    ) -> None:
        """Keep what a host reports of partitions whose leases and checkpoints are in a store elsewhere.

        owner: the host's name. sequence_numbers: by each partition that it owns, of the last processed event;
        None: unknown. released: partitions that it owns no longer; a number of one is its last. Unknown
        partitions are ignored. collect: see ``keep_report``. Durable on return. Raises NotFoundError (the
        group), QuotaExceededError, ServerBusyError, LogFullError.
        """
        group = event_hub.find_consumer_group(consumer_group).lower()
        indexed = self._indexed(event_hub, {group})
        known = {*indexed.partition_ids}
        report = ConsumerReport(
            event_hub.description.namespace_id,
            group,
            owner,
            {each: number for each, number in sequence_numbers.items() if each in known},
            known.intersection(released),
        )
        await keep_report(self.blobs, indexed, report, collect)

    def add_change_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after an event hub was created, changed or deleted; returns a function that
        removes it.

        It is called from within the change, and must neither block nor raise. For policies and revocations,
        see ``authorizer.add_change_listener``.
        """
        return self._listeners.add(listener)

    async def delete_event_hub(self, name: str) -> None:
        """Delete an event hub with all its events; waiters on its partitions get ClosedError.

        Raises NotFoundError, LogFullError, ChangeInDoubtError: the hub is then no longer served, and it
        shows after a restart whether it was deleted. Cancellation: the hub is deleted; remaining files are
        removed at the next start.
        """
        event_hub = await self._take_out(name)
        await self._engine.delete_logs(event_hub.description.hub_id)

    @serialized
    async def _take_out(self, name: str) -> EventHub:
        """Remove an event hub from the catalog and from what is served."""
        event_hub = self.event_hub(name)
        hub_id = event_hub.description.hub_id
        try:
            await self._catalog.remove_event_hub(hub_id)
        except ChangeInDoubtError:
            # It may be gone after the restart: it must acknowledge nothing more. Its files stay.
            self._forget(event_hub)
            self._engine.close_logs(hub_id)
            raise
        self.audit.record(Action.DELETE_EVENT_HUB, event_hub.name, old=event_hub.choices())
        self._forget(event_hub)
        return event_hub

    async def apply_retention(self) -> int:
        """Remove what is beyond its hub's retention; returns how many units. Call it each minute.

        An event then stays at most a tenth of its hub's hours too long. Age counts by ``RetentionClock``. A
        failure of one partition is logged; the others are still processed, each in a turn of its own.
        """
        now_ms = self._retention_clock.time_ms(
            milliseconds_of(self._clock.now_utc()), self._clock.monotonic()
        )
        removed = 0
        for event_hub in self.list_event_hubs():
            description = event_hub.description
            period_ms = description.retention_hours * _HOUR_MS
            # One look may come late to end a unit, and another to remove it.
            unit_ms = period_ms // 10 - 2 * _LOOK_MS
            for partition in event_hub.partitions:
                await asyncio.sleep(0)
                if partition.is_closed:
                    continue  # deleted meanwhile
                try:
                    removed += await partition.apply_retention(
                        before_ms=now_ms - period_ms,
                        bytes_max=description.retention_bytes,
                        seal_before_ms=now_ms - unit_ms,
                    )
                except ClosedError:
                    continue
                except (TidegateError, OSError) as error:
                    _logger.error("Retention of %s: %s It will be tried again.", partition, error)
        return removed

    # -- load

    def statistics(self) -> EventHubStatistics:
        """Counts of all event hubs since the service started, including deleted ones."""
        return sum(self.each_statistics(), EventHubStatistics())

    def each_statistics(self) -> Iterator[EventHubStatistics]:
        """Those of the deleted event hubs, and of each one that there is when the first is taken."""
        event_hubs = self.list_event_hubs()
        yield self._statistics_of_deleted
        for hub in event_hubs:
            yield from hub.each_statistics()

    @property
    def is_congested(self) -> bool:
        """Whether too many appends wait for the disk: stop reading from producers."""
        return self._engine.is_congested

    async def wait_uncongested(self) -> None:
        """Return once producers may be read from again. Cancellation: no effect."""
        await self._engine.wait_uncongested()

    @property
    def catalog_failure(self) -> TidegateError | None:
        """Why the namespace accepts no changes until a restart; None: it does."""
        return self._catalog.failure

    def _newest_ms(self) -> int:
        """When the newest event was enqueued; now, if there is none."""
        partitions = (partition for hub in self.list_event_hubs() for partition in hub.partitions)
        times = [each.known_ends().last_enqueued_time_ms for each in partitions if each.open_error is None]
        return max(
            (each for each in times if each is not None), default=milliseconds_of(self._clock.now_utc())
        )

    def _report_unopened(self) -> None:
        for event_hub in self.list_event_hubs():
            for partition in event_hub.partitions:
                if partition.open_error is not None:
                    _logger.error(
                        "Partition %s of the event hub %s could not be opened and refuses all requests; the "
                        "others are served. %s",
                        partition.partition_id,
                        event_hub.name,
                        partition.open_error,
                    )

    def _warn_of_short_keys(self) -> None:
        for event_hub in (None, *self._event_hubs):
            for policy in self.policies(event_hub):
                warn_of_short_keys(policy, event_hub)

    def _add_event_hub(self, record: EventHubRecord) -> EventHub:
        event_hub = EventHub(
            record,
            self._engine,
            catalog=self._catalog,
            clock=self._clock,
            authorizer=self.authorizer,
            throughput=self.throughput,
            on_change=self._listeners.call,
            audit=self.audit,
        )
        self._event_hubs[record.name.lower()] = event_hub
        self.blobs.add_account(record.hub_id)
        if record.policies:
            self.authorizer.set_policies(record.policies, event_hub=record.name)
        return event_hub

    def _forget(self, event_hub: EventHub) -> None:
        del self._event_hubs[event_hub.name.lower()]
        self.blobs.forget_account(event_hub.description.hub_id)
        event_hub.is_deleted = True
        self._statistics_of_deleted += event_hub.statistics()
        self.authorizer.set_policies((), event_hub=event_hub.name)
        self._listeners.call()

    async def _replace_policies(
        self, event_hub: str | None, policies: tuple[SharedAccessPolicy, ...]
    ) -> None:
        if event_hub is not None:
            await self.event_hub(event_hub).replace_policies(policies)
            return
        await self._catalog.replace_namespace(replace(self._catalog.namespace, policies=policies))
        self.authorizer.set_policies(policies)

    def _grants_in_force(self) -> list[Grant]:
        """The current actor's, now: the change may have waited."""
        now = self._clock.now_utc().timestamp()
        grants = current_actor().grants
        return [each for each in grants if now < each.expiry and self.authorizer.is_in_force(each)]

    def _check_may_choose(self, *keys: str | None) -> None:
        """Raise InvalidArgumentError for a key that a manager of event hubs alone chooses.

        A name with a key opens every scope that has this pair: who may give keys to policies of one could try
        those of others, without a failure that is counted.
        """
        if all(key is None for key in keys) or not current_actor().grants:
            return
        if all(grant.hub for grant in self._grants_in_force()):
            raise InvalidArgumentError(
                "Rights on one event hub do not suffice to choose keys.",
                next_step="Omit the key: a random one is generated. Policies of the namespace may choose, "
                "with their keys or with tokens for the namespace.",
            )

    def _policy_target(self, event_hub: str | None, name: str) -> str:
        """For the audit trail: by the hub's own name, since the client may write it in other letters."""
        return (
            f"policies/{name}" if event_hub is None else f"{self.event_hub(event_hub).name}/policies/{name}"
        )

    def __repr__(self) -> str:
        return f"<Broker event_hubs={len(self._event_hubs)}>"


def _claim_names(policy: SharedAccessPolicy) -> list[str]:
    return [claim.value for claim in Claim if claim in policy.claims]
