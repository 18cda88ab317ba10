"""The table of owner levels: every state of a partition with every kind of arrival, with the exact texts."""

from __future__ import annotations

import pytest

from tidegate.broker.receivers import ReceiverHandle, ReceiverRegistry
from tidegate.model.errors import QuotaExceededError, ReceiverStolenError

_STOLEN = (
    "New receiver 'nil' with higher epoch of '{new}' is created hence current receiver 'nil' with epoch "
    "'{old}' is getting disconnected. If you are recreating the receiver, make sure a higher epoch is used."
)
_LOWER = (
    "Receiver 'nil' with a higher epoch '{old}' already exists. "
    "Receiver 'nil' with epoch {new} cannot be created"
)
_NON_EPOCH = (
    "At least one receiver for the endpoint is created with epoch of '{old}', "
    "and so non-epoch receiver is not allowed"
)
_SIXTH = (
    "Exceeded the maximum number of allowed receivers per partition in a consumer group which is 5. "
    "List of connected receivers - nil, nil, nil, nil, nil."
)


def _open(registry: ReceiverRegistry, level: int | None, stolen: list[str]) -> ReceiverHandle:
    return registry.open(name=None, owner_level=level, on_stolen=lambda error: stolen.append(str(error)))


@pytest.mark.parametrize(
    ("present", "arriving", "refusal", "stolen_text"),
    [
        ([], None, None, None),
        ([], 0, None, None),
        ([None], None, None, None),
        ([None] * 4, None, None, None),
        ([None] * 5, None, (QuotaExceededError, _SIXTH), None),
        ([None], 0, None, _STOLEN.format(new=0, old=-1)),
        ([None] * 5, 3, None, _STOLEN.format(new=3, old=-1)),
        ([0], None, (ReceiverStolenError, _NON_EPOCH.format(old=0)), None),
        ([2], None, (ReceiverStolenError, _NON_EPOCH.format(old=2)), None),
        ([1], 0, (ReceiverStolenError, _LOWER.format(old=1, new=0)), None),
        ([1], 1, None, _STOLEN.format(new=1, old=1)),
        ([1], 2, None, _STOLEN.format(new=2, old=1)),
        ([0], 0, None, _STOLEN.format(new=0, old=0)),
        ([0], 1, None, _STOLEN.format(new=1, old=0)),
        ([2], 0, (ReceiverStolenError, _LOWER.format(old=2, new=0)), None),
        ([2], 1, (ReceiverStolenError, _LOWER.format(old=2, new=1)), None),
        ([2], 2, None, _STOLEN.format(new=2, old=2)),
    ],
)
def test_the_epoch_table(
    present: list[int | None],
    arriving: int | None,
    refusal: tuple[type[Exception], str] | None,
    stolen_text: str | None,
) -> None:
    """Opens, refuses, or steals from all; a refused arrival changes nothing."""
    registry = ReceiverRegistry("$Default")
    stolen: list[str] = []
    handles = [_open(registry, level, stolen) for level in present]
    if refusal is not None:
        with pytest.raises(refusal[0]) as caught:
            _open(registry, arriving, stolen)
        assert str(caught.value).startswith(refusal[1])
        assert all(handle.is_open for handle in handles)
        assert registry.receivers == tuple(handles)
        return
    newcomer = _open(registry, arriving, stolen)
    assert newcomer.is_open
    assert stolen == ([] if stolen_text is None else [stolen_text] * len(present))
    assert all(handle.is_open is (stolen_text is None) for handle in handles)
    assert registry.receivers[-1] is newcomer


def test_closing_frees_the_place() -> None:
    """After a close the sixth is let in, and a lower epoch, too; closing twice or after a theft is
    harmless.
    """
    registry = ReceiverRegistry("$Default")
    stolen: list[str] = []
    handles = [_open(registry, None, stolen) for _ in range(5)]
    handles[2].close()
    handles[2].close()
    _open(registry, None, stolen)
    owner = _open(registry, 7, stolen)
    handles[0].close()
    assert handles[0].stolen_error is not None
    assert registry.receivers == (owner,)
    owner.close()
    assert _open(registry, 1, stolen).is_open


def test_names_are_in_the_texts() -> None:
    """A receiver that gave its name is called by it."""
    registry = ReceiverRegistry("$Default")
    stolen: list[str] = []
    registry.open(name="old", owner_level=1, on_stolen=lambda error: stolen.append(str(error)))
    registry.open(name="new", owner_level=2, on_stolen=lambda error: None)
    assert stolen[0].startswith(
        "New receiver 'new' with higher epoch of '2' is created hence current receiver 'old'"
    )


def test_a_loser_may_close_itself_from_within_the_theft() -> None:
    """The gateway detaches the link, and closes its handle, in the callback."""
    registry = ReceiverRegistry("$Default")
    handles: list[ReceiverHandle] = []
    handles.append(registry.open(name=None, owner_level=1, on_stolen=lambda _: handles[0].close()))
    newcomer = registry.open(name=None, owner_level=1, on_stolen=lambda _: None)
    assert registry.receivers == (newcomer,)
