"""Every store that needs no server passes the suite that users run on theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.processor.store import ProcessorStore
from tidegate.processor.stores.directory import DirectoryStore
from tidegate.testing.stores import ProcessorStoreConformance


class TestDirectoryStore(ProcessorStoreConformance):
    """Leases and checkpoints in files."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store"

    async def make_store(self) -> ProcessorStore:
        """A store of its own on the test's directory."""
        return DirectoryStore(self.path)
