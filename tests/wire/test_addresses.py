"""Addresses: every client's way of writing them, and no other."""

from __future__ import annotations

import pytest

import tidegate.wire.addresses as addresses
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import ADDRESS_CHARACTERS_MAX
from tidegate.wire.addresses import NodeAddress, NodeKind, entity_audience


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hub", NodeAddress.for_sending("hub")),
        ("/hub", NodeAddress.for_sending("hub")),
        ("hub/", NodeAddress.for_sending("hub")),
        ("amqps://localhost:5672/hub", NodeAddress.for_sending("hub")),
        ("amqps://ns.example/Hub/Partitions/0", NodeAddress.for_sending("Hub", partition_id="0")),
        ("hub/partitions/12", NodeAddress.for_sending("hub", partition_id="12")),
        ("hub/Publishers/p-1", NodeAddress(NodeKind.PUBLISHER, "hub", publisher="p-1")),
        (
            "amqps://h/hub/ConsumerGroups/$Default/Partitions/0",
            NodeAddress.for_receiving("hub", consumer_group="$Default", partition_id="0"),
        ),
        (
            "hub/consumergroups/My%20Group/partitions/3",
            NodeAddress.for_receiving("hub", consumer_group="My Group", partition_id="3"),
        ),
        ("$cbs", NodeAddress(NodeKind.CBS)),
        ("amqps://h:5671/$CBS", NodeAddress(NodeKind.CBS)),
        ("$management", NodeAddress(NodeKind.MANAGEMENT)),
        ("hub/$management", NodeAddress(NodeKind.MANAGEMENT, "hub")),
        ("hub/$cbs", NodeAddress(NodeKind.CBS, "hub")),
    ],
)
def test_every_clients_form_is_understood(text: str, address: NodeAddress) -> None:
    """Protects the forms of Python (URI), .NET (leading slash) and JavaScript (relative)."""
    assert NodeAddress.parse(text) == address
    assert NodeAddress.parse(address.format()) == address
    assert NodeAddress.parse(f"amqps://host:5671/{address}") == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "amqps://host",
        "hub/Partitions",
        "hub/Partitions/0/1",
        "hub/Nodes/0",
        "a/b",
        "hub/ConsumerGroups/g",
    ],
)
def test_what_names_no_node_is_refused(text: str) -> None:
    """Protects links from being attached to something that was not meant."""
    with pytest.raises(InvalidArgumentError):
        NodeAddress.parse(text)


@pytest.mark.parametrize(
    "text",
    ["/%41" * 6, "/%41" * (ADDRESS_CHARACTERS_MAX // 4), "/%41" * 16_000],
    ids=["parts", "more", "long"],
)
def test_too_many_parts_are_not_decoded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without a token attaches to any address: one of 64 KB held the event loop for 12 ms."""
    decoded: list[str] = []
    monkeypatch.setattr(addresses, "unquote", decoded.append)
    with pytest.raises(InvalidArgumentError):
        NodeAddress.parse(text)
    assert decoded == []


def test_a_long_address_is_refused_by_its_length() -> None:
    """Protects the sender of one from an error that is about its form."""
    with pytest.raises(InvalidArgumentError, match=r"more than 2048 characters") as caught:
        NodeAddress.parse("h" * (ADDRESS_CHARACTERS_MAX + 1))
    assert len(str(caught.value)) < 400
    assert NodeAddress.parse("h" * ADDRESS_CHARACTERS_MAX).kind is NodeKind.EVENT_HUB


def test_audiences_name_the_hub_or_the_namespace() -> None:
    """Protects the audience that our own client makes its tokens for."""
    assert entity_audience("host", "hub") == "sb://host/hub"
    assert entity_audience("host") == "sb://host"
