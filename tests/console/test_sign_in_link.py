"""The link of ``tidegate serve``: once, soon, and only with its secret."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.support.clocks import SetClock

from tidegate.broker import ROOT_POLICY_NAME, Broker, attempts
from tidegate.console.frame.rights import LINK_S, Access
from tidegate.model.errors import ServerBusyError, UnauthorizedError


async def test_a_link_signs_in_once_and_soon(broker: Broker) -> None:
    """Another secret does not use it up; its sign-in is the root policy's, and is recorded."""
    clock = SetClock()
    access = Access(broker, clock)
    with pytest.raises(UnauthorizedError):
        await access.sign_in_by_link("", address="127.0.0.1")
    access.allow_link("secret")
    with pytest.raises(UnauthorizedError, match="not complete, has been used, or is more than ten minutes"):
        await access.sign_in_by_link("secre", address="127.0.0.1")
    grant = await access.sign_in_by_link("secret", address="127.0.0.1")
    rights = access.rights(grant)
    assert rights is not None
    assert (rights.policy_name, rights.can_manage, rights.hub) == (ROOT_POLICY_NAME, True, None)
    with pytest.raises(UnauthorizedError):
        await access.sign_in_by_link("secret", address="127.0.0.1")
    access.allow_link("late")
    clock.advance(LINK_S + 1)
    with pytest.raises(UnauthorizedError):
        await access.sign_in_by_link("late", address="127.0.0.1")


async def test_guesses_are_slowed_and_block_only_the_link(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As wrong keys are: else any page could fill the audit trail. The root key still signs in."""
    monkeypatch.setattr(attempts, "FREE_FAILURES", 5)  # other tests of this process may guess for free
    access = Access(broker, SetClock())
    broker.key_guard.release()  # no delay is waited for

    async def guess() -> None:
        for _ in range(100):
            with suppress(UnauthorizedError):
                await access.sign_in_by_link("guess", address="192.0.2.1")

    with pytest.raises(ServerBusyError):
        await guess()
    key = broker.policy(None, ROOT_POLICY_NAME).key
    await access.sign_in(ROOT_POLICY_NAME, key, None, address="192.0.2.1")
