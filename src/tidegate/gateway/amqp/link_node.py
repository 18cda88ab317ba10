"""What serves a client's link."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.amqp.events import Delivery


class LinkNode:
    """Serves a client's link. Methods that a kind of node does not override do nothing."""

    def start(self) -> None:
        """The link was accepted."""

    def check_usable(self) -> None:
        """Raise NotFoundError if the link's entity was deleted, UnauthorizedError if the connection may no
        longer use it."""

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Complete deliveries have arrived (on links where the client sends)."""

    def on_credit(self) -> None:
        """More may be sent (on links where the client receives)."""

    def close(self) -> None:
        """The link is gone."""
