"""The count of calls of a few acts: `python -m tools.calls`."""

from __future__ import annotations

import pytest
from tools.calls import count


@pytest.mark.slow
def test_every_act_is_counted_in_client_and_service() -> None:
    """Protects the figures: a thread or file that is not counted would pass for less code on the way."""
    found = count()
    assert {name.split(" ")[0] for name in found} == {"publish", "host", "group"}
    for calls in found.values():
        assert 0 < calls.own <= calls.every
        assert {name.partition("/")[0] for name in calls.files} >= {"client", "gateway", "amqp", "broker"}
