"""Blob Storage for tests of what runs against either: Azurite, or a service's own accounts."""

from __future__ import annotations

import uuid
from typing import Protocol

from tidegate.broker import ROOT_POLICY_NAME
from tidegate.broker.blobs.accounts import account_key, account_name
from tidegate.model.connection_string import ConnectionString
from tidegate.testing.hub import HubProcess, HubService


class BlobStorage(Protocol):
    """A storage account; ``AzuriteServer`` is one."""

    account_name: str
    account_key: str
    port: int

    def connection_string(self, *, port: int | None = None) -> str:
        """port: another way in, such as a proxy's."""
        ...

    def create_container(self) -> str:
        """The name of a fresh, empty container."""
        ...


class OwnStorage:
    """An account of a service: the namespace's, or an event hub's."""

    def __init__(
        self,
        service: HubService | HubProcess,
        *,
        event_hub: str | None = None,
        policy: str = ROOT_POLICY_NAME,
    ) -> None:
        """policy: of the event hub, or of the namespace; the root policy opens both accounts."""
        assert service.ready.http is not None
        self.host, _, port = service.ready.http.rpartition(":")
        self.port = int(port)
        self.account_name = account_name(event_hub)

        found = ConnectionString.parse(service.connection_string).shared_access_key
        if isinstance(service, HubService) and policy != ROOT_POLICY_NAME:
            found = service.ask(lambda server: server.broker.policy(event_hub, policy)).key
        assert found is not None
        self.account_key = account_key(found)

    def connection_string(self, *, port: int | None = None) -> str:
        """See ``BlobStorage``."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account_name};AccountKey={self.account_key};"
            f"BlobEndpoint=http://{self.host}:{port or self.port}/{self.account_name};"
        )

    def create_container(self) -> str:
        """See ``BlobStorage``."""
        from azure.storage.blob import ContainerClient

        name = f"test-{uuid.uuid4().hex[:12]}"
        with ContainerClient.from_connection_string(self.connection_string(), name) as client:
            client.create_container()
        return name
