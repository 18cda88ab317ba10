"""Who may read a partition in a consumer group: owner levels (epochs) and the limit on readers without one.

Source of rules and messages: Azure "Event processor", epochs, and the service's messages in public
issues of Azure/azure-event-hubs-spark (371, 388, 392) and Azure/azure-sdk-for-net.

    there is \\ arrives   without epoch                  with epoch e
    none                  open                           open
    n without epoch       open; QuotaExceeded at n = 5   open, all n are stolen from
    one with epoch c      refused (stolen)               e >= c: open, the other is stolen from; e < c:
    refused

Nothing here awaits: a change is complete when the call returns.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.model.errors import QuotaExceededError, ReceiverStolenError
from tidegate.model.limits import NON_EPOCH_RECEIVERS_MAX

OnStolen = Callable[[ReceiverStolenError], None]


class ReceiverHandle:
    """One admitted receiver. ``close`` it when its link ends; closing twice is harmless."""

    __slots__ = ("_on_stolen", "_registry", "consumer_group", "name", "owner_level", "stolen_error")

    def __init__(
        self,
        registry: ReceiverRegistry,
        consumer_group: str,
        name: str | None,
        owner_level: int | None,
        on_stolen: OnStolen,
    ) -> None:
        self._registry: ReceiverRegistry | None = registry
        self._on_stolen = on_stolen
        self.consumer_group = consumer_group
        self.name = name
        """The receiver's own name; messages have 'nil' for None."""
        self.owner_level = owner_level
        """Its epoch; None for a receiver without one."""
        self.stolen_error: ReceiverStolenError | None = None
        """Why it lost the partition, if so."""

    @property
    def is_open(self) -> bool:
        """Whether it is neither closed nor stolen from."""
        return self._registry is not None

    def close(self) -> None:
        """Give up the place."""
        if self._registry is not None:
            self._registry._discard(self)
            self._registry = None

    def _steal(self, error: ReceiverStolenError) -> None:
        self._registry = None
        self.stolen_error = error
        self._on_stolen(error)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "stolen" if self.stolen_error else "closed"
        return f"<ReceiverHandle {self.name or 'nil'} owner_level={self.owner_level} {state}>"


class ReceiverRegistry:
    """The receivers of one partition in one consumer group."""

    def __init__(self, consumer_group: str) -> None:
        self.consumer_group = consumer_group
        self._receivers: list[ReceiverHandle] = []

    @property
    def receivers(self) -> tuple[ReceiverHandle, ...]:
        """Those open now, oldest first."""
        return tuple(self._receivers)

    def open(self, *, name: str | None, owner_level: int | None, on_stolen: OnStolen) -> ReceiverHandle:
        """Admit a receiver by the table above; see ``Partition.open_receiver``."""
        current = self._epoch_receiver()
        if owner_level is None:
            if current is not None:
                raise _non_epoch_refused(current)
            if len(self._receivers) >= NON_EPOCH_RECEIVERS_MAX:
                raise _too_many(self._receivers)
        elif current is not None and current.owner_level is not None and owner_level < current.owner_level:
            raise _lower_epoch_refused(current, name, owner_level)
        losers: list[ReceiverHandle] = []
        if owner_level is not None:
            losers, self._receivers = self._receivers, []
        handle = ReceiverHandle(self, self.consumer_group, name, owner_level, on_stolen)
        self._receivers.append(handle)
        for loser in losers:
            loser._steal(_stolen(loser, name, owner_level))
        return handle

    def _epoch_receiver(self) -> ReceiverHandle | None:
        # An epoch receiver is always alone.
        first = self._receivers[0] if self._receivers else None
        return first if first is not None and first.owner_level is not None else None

    def _discard(self, handle: ReceiverHandle) -> None:
        self._receivers.remove(handle)


def _label(name: str | None) -> str:
    return f"'{name or 'nil'}'"


def _stolen(loser: ReceiverHandle, name: str | None, owner_level: int | None) -> ReceiverStolenError:
    level = -1 if loser.owner_level is None else loser.owner_level
    return ReceiverStolenError(
        f"New receiver {_label(name)} with higher epoch of '{owner_level}' is created hence current receiver "
        f"{_label(loser.name)} with epoch '{level}' is getting disconnected. If you are recreating the "
        "receiver, make sure a higher epoch is used."
    )


def _lower_epoch_refused(current: ReceiverHandle, name: str | None, owner_level: int) -> ReceiverStolenError:
    return ReceiverStolenError(
        f"Receiver {_label(current.name)} with a higher epoch '{current.owner_level}' already exists. "
        f"Receiver {_label(name)} with epoch {owner_level} cannot be created. Make sure you are creating "
        "receiver with increasing epoch value to ensure connectivity, or ensure all old epoch receivers are "
        "closed or disconnected."
    )


def _non_epoch_refused(current: ReceiverHandle) -> ReceiverStolenError:
    return ReceiverStolenError(
        f"At least one receiver for the endpoint is created with epoch of '{current.owner_level}', and so "
        "non-epoch receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch "
        "receivers are closed or disconnected."
    )


def _too_many(receivers: list[ReceiverHandle]) -> QuotaExceededError:
    names = ", ".join(receiver.name or "nil" for receiver in receivers)
    return QuotaExceededError(
        "Exceeded the maximum number of allowed receivers per partition in a consumer group which is "
        f"{NON_EPOCH_RECEIVERS_MAX}. List of connected receivers - {names}."
    )
