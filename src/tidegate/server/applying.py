"""Applies a configuration file's declarations to the namespace, at each start, before any client connects.

Conflicts (a number of partitions that the hub cannot have, other claims of a policy of the namespace) are
reported in one error before anything is changed. What an event hub's own managers decide, the claims of its
policies and whether declared ones find room, ends no start: it would end it for all. If a value is refused
later, earlier changes stay, and the next start with a corrected file continues from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tidegate.broker import ROOT_POLICY_NAME, Broker, Claim, SharedAccessPolicy
from tidegate.model.errors import InvalidArgumentError, QuotaExceededError
from tidegate.server.declared import DeclaredEventHub, DeclaredNamespace, DeclaredPolicy, Switch

Report = Callable[[str], None]
"""Called with each change, as one line without secrets."""

_log: Final = logging.getLogger(__name__)


async def apply_declared(broker: Broker, declared: DeclaredNamespace, report: Report) -> None:
    """Create missing entities and change those that differ; delete nothing.

    Raises InvalidArgumentError (all conflicts together, or a value that the tier does not allow),
    QuotaExceededError, LogFullError.
    """
    conflicts = [*_policy_conflicts(broker.policies(), declared.policies, "the namespace")]
    existing = {hub.name.lower(): hub for hub in broker.list_event_hubs()}
    for wanted in declared.event_hubs:
        found = existing.get(wanted.name.lower())
        if found is None:
            continue
        try:
            found.check_partition_count(wanted.partition_count, declared.tier or broker.tier)
        except InvalidArgumentError as error:
            conflicts.append(error.message[0].lower() + error.message[1:].rstrip("."))
    if conflicts:
        raise InvalidArgumentError(
            f"The configuration contradicts the namespace: {'; '.join(conflicts)}.",
            next_step="These cannot be changed. Correct the file, or delete them first.",
        )
    if declared.tier is not None and declared.tier is not broker.tier:
        await broker.set_tier(declared.tier)
        report(f"set the tier to {declared.tier.value}")
    if declared.throughput_units is not None:
        units = None if declared.throughput_units is Switch.OFF else declared.throughput_units
        if units != broker.throughput.units:
            await broker.set_throughput_units(units)
            report(f"set the throughput units to {'off' if units is None else units}")
    await _apply_policies(broker, None, declared.policies, report)
    for wanted in declared.event_hubs:
        await _apply_event_hub(broker, wanted, report)


async def set_root_key(broker: Broker, key: str) -> None:
    """Set the root policy's primary key; creates the policy if it was deleted.

    Raises InvalidArgumentError (its message does not contain the key), LogFullError.
    """
    root = next((policy for policy in broker.policies() if policy.name == ROOT_POLICY_NAME), None)
    if root is None:
        await broker.create_policy(None, ROOT_POLICY_NAME, Claim, key=key)
    elif root.key != key:
        await broker.regenerate_key(None, ROOT_POLICY_NAME, key=key)


async def _apply_event_hub(broker: Broker, wanted: DeclaredEventHub, report: Report) -> None:
    known = {hub.name.lower() for hub in broker.list_event_hubs()}
    if wanted.name.lower() not in known:
        await broker.create_event_hub(wanted.name, partition_count=wanted.partition_count, **wanted.settings)
        report(f"created the event hub {wanted.name} with {wanted.partition_count} partitions")
    else:
        before = broker.event_hub(wanted.name).description
        await broker.update_event_hub(wanted.name, partition_count=wanted.partition_count, **wanted.settings)
        after = broker.event_hub(wanted.name).description
        if added := len(after.partition_ids) - len(before.partition_ids):
            report(f"added {added} partitions to the event hub {wanted.name}")
        if replace(after, partition_ids=before.partition_ids) != before:
            report(f"changed the settings of the event hub {wanted.name}")
    event_hub = broker.event_hub(wanted.name)
    groups = {group.lower() for group in event_hub.description.consumer_groups}
    for group in wanted.consumer_groups:
        if group.lower() not in groups:
            with _room_in(wanted.name):
                await event_hub.create_consumer_group(group)
                report(f"created the consumer group {group} of {wanted.name}")
    await _apply_policies(broker, wanted.name, wanted.policies, report)
    if wanted.capture is not None:
        capture = None if isinstance(wanted.capture, Switch) else wanted.capture
        if capture != event_hub.description.capture:
            await broker.set_capture(wanted.name, capture)
            report(f"set the capture of {wanted.name} to {'off' if capture is None else capture.destination}")


async def _apply_policies(
    broker: Broker, event_hub: str | None, declared: Iterable[DeclaredPolicy], report: Report
) -> None:
    where = "the namespace" if event_hub is None else event_hub
    for wanted in declared:
        found = _named(broker.policies(event_hub), wanted.name)
        if found is None:
            with _room_in(event_hub):
                await broker.create_policy(event_hub, wanted.name, wanted.claims, key=wanted.key)
                report(f"created the policy {wanted.name} of {where}")
        elif conflict := next(_policy_conflicts([found], [wanted], where), None):
            # Of an event hub. Its key stays, too: the declared one is meant for the declared claims.
            _log.error("The event hub is not as declared: %s. Delete that policy, and start again.", conflict)
        elif wanted.key is not None and wanted.key != found.key:
            await broker.regenerate_key(event_hub, found.name, key=wanted.key)
            report(f"replaced the primary key of the policy {found.name} of {where}")


@contextmanager
def _room_in(event_hub: str | None) -> Iterator[None]:
    """Log that an event hub has no room for what is declared. event_hub: None: of the namespace, raise it."""
    try:
        yield
    except QuotaExceededError as error:
        if event_hub is None:
            raise
        _log.error("The event hub %s is not as declared: %s", event_hub, error)


def _policy_conflicts(
    existing: Iterable[SharedAccessPolicy], declared: Iterable[DeclaredPolicy], where: str
) -> Iterator[str]:
    for wanted in declared:
        found = _named(existing, wanted.name)
        if found is None:
            continue
        # Manage includes the others, as in ``Broker.create_policy``.
        claims = frozenset(Claim) if Claim.MANAGE in wanted.claims else wanted.claims
        if found.claims != claims:
            has, asked = (", ".join(sorted(each.value for each in group)) for group in (found.claims, claims))
            yield f"the policy {found.name!r} of {where} has {has}, not {asked or 'nothing'}"


def _named(policies: Iterable[SharedAccessPolicy], name: str) -> SharedAccessPolicy | None:
    return next((policy for policy in policies if policy.name.lower() == name.lower()), None)
