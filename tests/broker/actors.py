"""Who acts, for tests that need no connection."""

from __future__ import annotations

from tidegate.broker import UNKNOWN_PEER, Actor, Claim, Grant
from tidegate.model.audience import Audience, entity_path


def actor_for(hub: str, policy: str) -> Actor:
    """An actor with a token of the namespace's policy for one hub; empty: for the namespace."""
    grant = Grant(policy, Audience("", entity_path(hub)), frozenset({Claim.MANAGE}), 4_000_000_000)
    return Actor.of([grant], UNKNOWN_PEER)
