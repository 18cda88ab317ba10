"""``/keys`` and ``/hubs/NAME/keys``: policies, connection strings, first programs; throughput units, tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tidegate.broker import Broker, Claim, SharedAccessPolicy
from tidegate.console.frame.errors import problem_page
from tidegate.console.frame.forms import EMPTY_FORM, Form, check_name, optional_number, texts_of
from tidegate.console.frame.pages import Pages, done, get, post
from tidegate.console.frame.sessions import form_of, require_manage, session_of
from tidegate.console.keys.snippets import snippets_for
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.model.limits import THROUGHPUT_UNITS_MAX, Tier

_BLANK: Final = {"name": "", **{claim.value: "" for claim in Claim}}
_KEYS: Final = ("primary", "secondary")
_HUB: Final = "telemetry"
"""In programs for a namespace without event hubs."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A connection string of a policy, for one of the ways to connect and one of its keys."""

    key: str
    is_plain: bool
    text: str


@dataclass(eq=False)
class KeyPages(Pages):
    """The policies of the namespace, or of one event hub."""

    broker: Broker
    root_strings: Callable[[], Sequence[str]]
    """The root policy's connection strings, one for each way to connect."""

    @get("/keys")
    @get("/hubs/{hub}/keys")
    async def list(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        hub = self._hub(request)
        context: dict[str, Any] = {
            "policies": self.broker.policies(hub),
            "hubs": [] if hub else self.broker.list_event_hubs(),
            "claims": [claim.value for claim in Claim],
            "fields": _BLANK
            | {"throughput_units": self._units, "tier": self.broker.tier.value}
            | form.fields,
            "tiers": [tier.value for tier in Tier],
            "units_max": THROUGHPUT_UNITS_MAX,
        }
        return self._page(request, "keys/list.html", form.problem, **context)

    @post("/keys")
    @post("/hubs/{hub}/keys")
    async def create(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        hub = self._hub(request)
        claims = [claim for claim in Claim if fields.get(claim.value)]
        try:
            policy = await self.broker.create_policy(hub, fields.get("name", ""), claims)
        except TidegateError as error:
            return await self.list(request, Form(fields, error))
        return done(request, f"Created the policy {policy.name}.", _place(hub, policy.name))

    @get("/keys/{policy}")
    @get("/hubs/{hub}/keys/{policy}")
    async def show(self, request: Request, problem: TidegateError | None = None) -> Response:
        hub, policy = self._hub(request), self._policy(request)
        hubs = self.broker.list_event_hubs()
        named = hub or (hubs[0].name if hubs else _HUB)
        return self._page(
            request,
            "keys/policy.html",
            problem,
            policy=policy,
            fields={"name": ""},
            ways=self._ways(hub, policy),
            own_key=_own_key(request, hub, policy),
            can_send=Claim.SEND in policy.claims,
            can_listen=Claim.LISTEN in policy.claims,
            snippets=snippets_for(named, is_in_string=hub is not None),
        )

    @post("/keys/{policy}/regenerate")
    @post("/hubs/{hub}/keys/{policy}/regenerate")
    async def regenerate(self, request: Request) -> Response:
        which = texts_of(await form_of(request)).get("which", "")
        hub, policy = self._hub(request), self._policy(request)
        try:
            if which not in _KEYS:
                raise InvalidArgumentError("The form names no key.", next_step="Use the buttons of the page.")
            await self.broker.regenerate_key(hub, policy.name, is_secondary=which == "secondary")
        except TidegateError as error:
            return await self.show(request, error)
        return done(request, f"The {which} key is another one now.", _place(hub, policy.name))

    @post("/keys/{policy}/delete")
    @post("/hubs/{hub}/keys/{policy}/delete")
    async def delete(self, request: Request) -> Response:
        name = texts_of(await form_of(request)).get("name", "")
        hub, policy = self._hub(request), self._policy(request)
        try:
            check_name(name, policy.name)
            await self.broker.delete_policy(hub, policy.name)
        except TidegateError as error:
            return await self.show(request, error)
        return done(request, f"Deleted the policy {policy.name}.", _place(hub))

    @post("/keys/-/limits")
    async def set_limits(self, request: Request) -> Response:
        """No policy can have the name ``-``."""
        fields = texts_of(await form_of(request))
        require_manage(request)
        try:
            tier = _tier_of(fields.get("tier", ""))
            units = optional_number(
                fields,
                "throughput_units",
                "The number of throughput units",
                allowed=f"an integer from 1 to {THROUGHPUT_UNITS_MAX:,}, or nothing for no limit",
            )
            if units != self.broker.throughput.units:
                await self.broker.set_throughput_units(units)
            if tier != self.broker.tier:
                await self.broker.set_tier(tier)
        except TidegateError as error:
            return await self.list(request, Form(fields, error))
        return done(request, "The limits apply now.", "/keys")

    def _hub(self, request: Request) -> str | None:
        """The event hub of the URL, as its creator spelled it; None: the namespace. Requires Manage of it."""
        name = request.path_params.get("hub")
        require_manage(request, name)
        return None if name is None else self.broker.event_hub(name).name

    def _policy(self, request: Request) -> SharedAccessPolicy:
        return self.broker.policy(self._hub(request), request.path_params["policy"])

    def _page(
        self, request: Request, template: str, problem: TidegateError | None, **context: Any
    ) -> Response:
        hub = self._hub(request)
        return problem_page(
            request, template, problem, hub_name=hub, tab="keys", place=_place(hub), **context
        )

    @property
    def _units(self) -> str:
        units = self.broker.throughput.units
        return "" if units is None else str(units)

    def _ways(self, hub: str | None, policy: SharedAccessPolicy) -> Sequence[_Way]:
        return [
            _Way(
                which,
                each.use_development_emulator,
                replace(
                    each, shared_access_key_name=policy.name, shared_access_key=key, entity_path=hub
                ).format(),
            )
            for which, key in zip(_KEYS, policy.keys, strict=True)
            for each in map(ConnectionString.parse, self.root_strings())
        ]


def _own_key(request: Request, hub: str | None, policy: SharedAccessPolicy) -> str | None:
    """Which of the policy's keys signed the user in."""
    grant = session_of(request).grant
    if (grant.policy_name, grant.scope) != (policy.name, (hub or "").lower()):
        return None
    return next((which for which, key in zip(_KEYS, policy.keys, strict=True) if key == grant.key), None)


def _place(hub: str | None, policy: str | None = None) -> str:
    start = "/keys" if hub is None else f"/hubs/{quote(hub)}/keys"
    return start if policy is None else f"{start}/{quote(policy)}"


def _tier_of(text: str) -> Tier:
    try:
        return Tier(text)
    except ValueError:
        raise InvalidArgumentError("There is no such tier.", next_step="Choose one of the list.") from None
