"""What ``$management`` does of ``wire.administration``: each request is one call of the broker.

Here is only translation, from the request's values and to plain values; the HTTP face has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.broker import Broker, Claim, EventHub, SharedAccessPolicy
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_settings import hub_changes_in
from tidegate.model.limits import Tier
from tidegate.wire.administration import Administration, AdministrationRequest
from tidegate.wire.management import EventHubDescription


def perform_administration(broker: Broker, request: AdministrationRequest) -> object:
    """Do what is asked for, and return the answer's body as plain values; None where there is none.

    The caller has checked the Manage claim. Raises InvalidArgumentError, NotFoundError, AlreadyExistsError,
    QuotaExceededError, LogFullError.
    """
    return _ACTIONS[request.operation](broker, request)


def describe_event_hub(event_hub: EventHub) -> EventHubDescription:
    """An event hub as ``$management`` tells it."""
    description = event_hub.description
    return EventHubDescription(
        description.name,
        description.created_at_ms,
        description.partition_ids,
        **description.settings(),
    )


def _update_event_hub(broker: Broker, request: AdministrationRequest) -> object:
    event_hub = broker.update_event_hub(request.event_hub, **hub_changes_in(request.values))
    return describe_event_hub(event_hub).to_map()


def _query_policies(broker: Broker, request: AdministrationRequest) -> object:
    return [_policy_map(policy) for policy in broker.policies(_scope(request))]


def _read_policy(broker: Broker, request: AdministrationRequest) -> object:
    return _policy_map(broker.policy(_scope(request), request.name), with_keys=True)


def _create_policy(broker: Broker, request: AdministrationRequest) -> object:
    by_name = {claim.value.lower(): claim for claim in Claim}
    claims = []
    for name in request.texts("claims"):
        if name.lower() not in by_name:
            raise InvalidArgumentError(
                f"There is no claim {name[:40]!r}.", next_step="Known: Send, Listen, Manage."
            )
        claims.append(by_name[name.lower()])
    return _policy_map(broker.create_policy(_scope(request), request.name, claims), with_keys=True)


def _delete_policy(broker: Broker, request: AdministrationRequest) -> object:
    broker.delete_policy(_scope(request), request.name)
    return None


def _regenerate_key(broker: Broker, request: AdministrationRequest) -> object:
    is_secondary = request.boolean("is_secondary")
    policy = broker.regenerate_key(_scope(request), request.name, is_secondary=is_secondary)
    return _policy_map(policy, with_keys=True)


def _query_revoked_publishers(broker: Broker, request: AdministrationRequest) -> object:
    return list(broker.event_hub(request.event_hub).revoked_publishers)


def _revoke_publisher(broker: Broker, request: AdministrationRequest) -> object:
    broker.event_hub(request.event_hub).revoke_publisher(request.name)
    return None


def _restore_publisher(broker: Broker, request: AdministrationRequest) -> object:
    broker.event_hub(request.event_hub).restore_publisher(request.name)
    return None


def _read_throughput(broker: Broker, _: AdministrationRequest) -> object:
    statistics = broker.throughput.statistics()
    return {
        "units": broker.throughput.units,
        "throttled_requests": statistics.throttled_requests,
        "throttled_events": statistics.throttled_events,
        "throttled_bytes": statistics.throttled_bytes,
        "delayed_deliveries": statistics.delayed_deliveries,
    }


def _update_throughput(broker: Broker, request: AdministrationRequest) -> object:
    if "units" not in request.values:
        raise InvalidArgumentError("units is missing.", next_step="Give a number, or null for no limit.")
    broker.set_throughput_units(request.integer("units"))
    return _read_throughput(broker, request)


def _read_tier(broker: Broker, _: AdministrationRequest) -> object:
    return {"tier": broker.tier.value}


def _update_tier(broker: Broker, request: AdministrationRequest) -> object:
    by_name = {tier.value.lower(): tier for tier in Tier}
    name = request.text("tier")
    if name.lower() not in by_name:
        raise InvalidArgumentError(
            f"There is no tier {name[:40]!r}.", next_step=f"Known: {', '.join(tier.value for tier in Tier)}."
        )
    broker.set_tier(by_name[name.lower()])
    return _read_tier(broker, request)


def _read_capture(broker: Broker, request: AdministrationRequest) -> object:
    settings = broker.event_hub(request.event_hub).description.capture
    return {"capture": None if settings is None else settings.to_mapping()}


def _update_capture(broker: Broker, request: AdministrationRequest) -> object:
    broker.set_capture(request.event_hub, CaptureSettings.from_mapping(request.values))
    return _read_capture(broker, request)


def _delete_capture(broker: Broker, request: AdministrationRequest) -> object:
    broker.set_capture(request.event_hub, None)
    return None


_ACTIONS: Final[Mapping[Administration, Callable[[Broker, AdministrationRequest], object]]] = {
    Administration.UPDATE_EVENT_HUB: _update_event_hub,
    Administration.QUERY_POLICIES: _query_policies,
    Administration.READ_POLICY: _read_policy,
    Administration.CREATE_POLICY: _create_policy,
    Administration.DELETE_POLICY: _delete_policy,
    Administration.REGENERATE_KEY: _regenerate_key,
    Administration.QUERY_REVOKED_PUBLISHERS: _query_revoked_publishers,
    Administration.REVOKE_PUBLISHER: _revoke_publisher,
    Administration.RESTORE_PUBLISHER: _restore_publisher,
    Administration.READ_THROUGHPUT: _read_throughput,
    Administration.UPDATE_THROUGHPUT: _update_throughput,
    Administration.READ_TIER: _read_tier,
    Administration.UPDATE_TIER: _update_tier,
    Administration.READ_CAPTURE: _read_capture,
    Administration.UPDATE_CAPTURE: _update_capture,
    Administration.DELETE_CAPTURE: _delete_capture,
}


def _scope(request: AdministrationRequest) -> str | None:
    return request.event_hub or None


def _policy_map(policy: SharedAccessPolicy, *, with_keys: bool = False) -> dict[str, object]:
    described: dict[str, object] = {
        "name": policy.name,
        "claims": [claim.value for claim in Claim if claim in policy.claims],
    }
    if with_keys:
        described |= {"primary_key": policy.key, "secondary_key": policy.secondary_key}
    return described
