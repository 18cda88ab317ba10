"""The service that a suite runs against: ``tidegate serve`` in a process of its own, with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.interop.suites.suite import ToolMissingError, Transport
from tests.interop.support import tls_connection_string
from tests.support.azurite import AzuriteServer
from tests.support.blob_storage import BlobStorage, OwnStorage
from tests.support.servers import ServerMissingError

from tidegate.testing.hub import HubProcess

ROOT: Final = Path(__file__).parents[3]
BUILD: Final = ROOT / "build" / "interop"
"""Where suites keep what they fetch and build. It is never committed."""
AZURE_NAME: Final = "tidegate.servicebus.windows.net"
"""Also a name of the service, for clients that find a namespace by the name that it has in Azure."""


class SuiteService(HubProcess):
    """A context manager; ``restart``, ``kill`` and ``create_hub`` are those of ``HubProcess``."""

    def __init__(self, *, has_own_storage: bool = False) -> None:
        """has_own_storage: checkpoints are kept in the service, and not in Azurite."""
        super().__init__(is_tls_used=True, is_http_used=True, tls_names=("localhost", AZURE_NAME))
        self._azurite: AzuriteServer | None = None
        self._has_own_storage = has_own_storage

    def connection_string_for(self, transport: Transport) -> str:
        """The namespace's, with the transport's port in it. Python's and Java's SDKs ignore ports of TLS."""
        if transport is Transport.PLAIN:
            return self.connection_string
        return tls_connection_string(self, transport.value)

    def port_for(self, transport: Transport) -> int:
        """Where ``transport`` listens on localhost."""
        ready = self.ready
        address = {Transport.PLAIN: ready.amqp, Transport.TLS: ready.amqps, Transport.WEBSOCKET: ready.https}
        return int(str(address[transport]).rpartition(":")[2])

    @property
    def ca_file(self) -> str:
        """The certificate authority to trust, PEM."""
        assert self.ready.ca_file is not None
        return self.ready.ca_file

    @property
    def https_url(self) -> str:
        """Without a slash at the end."""
        return f"https://localhost:{self.port_for(Transport.WEBSOCKET)}"

    @property
    def storage(self) -> BlobStorage:
        """Blob storage. Raises ToolMissingError."""
        return OwnStorage(self) if self._has_own_storage else self.azurite

    @property
    def azurite(self) -> AzuriteServer:
        """Blob storage, started when it is first asked for. Raises ToolMissingError."""
        if self._azurite is None:
            try:
                server = AzuriteServer(ROOT / "tests" / "azurite")
            except ServerMissingError as error:
                raise ToolMissingError(f"{error}. Install Node.js and run `make npm`.") from error
            self._azurite = self._cleanup.enter_context(server)
        return self._azurite
