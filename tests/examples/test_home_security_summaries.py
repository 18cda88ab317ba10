"""Where the homes' pages are kept: a blob per block, replaced whole, and no page lost by trouble."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from examples.home_security.page_files import MalformedPagesError, merge_pages, pages_of
from examples.home_security.summaries import SummaryStore
from examples.home_security.web.index import Index, updated_index
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.azurite import AzuriteServer


def page(number: int) -> bytes:
    """One that differs from others."""
    return b'{"activity":[%d]}' % number


HOMES = {f"h{index:06}": page(index) for index in range(200)}


def test_a_micro_batch_changes_its_homes_only(tmp_path: Path) -> None:
    """Of the blocks that it names; and a second time nothing at all."""
    store = SummaryStore(str(tmp_path / "pages"))
    assert store.read() == {}
    store.write({})
    assert not (tmp_path / "pages").exists()
    store.write({"0-0": HOMES, "7-2": {"h9": page(9)}})
    changes = {"0-0": {"h000007": page(8), "../x": page(1)}}
    for _ in range(2):
        store.write(changes)
        assert store.read() == HOMES | {"h9": page(9)} | changes["0-0"]
    assert sorted(path.name for path in (tmp_path / "pages").iterdir()) == ["0-0.json", "7-2.json"]


@pytest.mark.parametrize("damage", [b"", b"{\n", b"\0" * 400, b"[]"], ids=range(4))
def test_a_blob_that_is_none_is_refused_and_stays(tmp_path: Path, damage: bytes) -> None:
    """Its pages may still be had from elsewhere. Blobs beside it stay as they are, too."""
    store = SummaryStore(str(tmp_path))
    store.write({"0-0": HOMES, "0-1": {"x": page(0)}})
    (tmp_path / "0-0.json").write_bytes(damage)
    with pytest.raises(
        MalformedPagesError, match=r"0-0\.json is not a complete file of homes' pages.* delete it"
    ):
        store.write({"0-1": {"x": page(1)}, "0-0": {"h000001": page(9)}})
    with pytest.raises(MalformedPagesError, match=r"0-0\.json"):
        store.clear()
    assert (tmp_path / "0-0.json").read_bytes() == damage
    assert pages_of((tmp_path / "0-1.json").read_bytes()) == {"x": page(0)}


def test_two_blobs_with_the_same_home_are_told(tmp_path: Path) -> None:
    """As pipelines with different numbers of blocks would leave them."""
    store = SummaryStore(str(tmp_path))
    store.write({"0-0": {"h1": page(0)}, "0-1": {"h1": page(0)}})
    with pytest.raises(MalformedPagesError, match=r"0-1\.json has a page of 'h1', and so has another blob"):
        store.read()


class FailingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A storage that can be written to, and cannot be read from while ``is_failing``."""

    protocol = "failing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    is_failing = False

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        """The content, or an error that does not say that there is none."""
        if self.is_failing:
            raise TimeoutError("no answer")
        content: bytes = super().cat_file(path, start, end, **kwargs)
        return content


@pytest.fixture
def failing_files() -> Iterator[type[FailingFileSystem]]:
    """That storage, known to fsspec, and empty again afterwards."""
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    yield FailingFileSystem
    FailingFileSystem.is_failing = False
    FailingFileSystem.store.clear()


def test_a_blob_that_cannot_be_read_is_not_taken_for_an_empty_one(
    failing_files: type[FailingFileSystem],
) -> None:
    """Else a storage that is slow for a moment would cost all pages but the new ones."""
    store = SummaryStore("failing://pages")
    store.write({"0-0": HOMES})
    failing_files.is_failing = True
    for read in (lambda: store.write({"0-0": {"h000001": page(9)}}), store.read, store.clear):
        with pytest.raises(TimeoutError):
            read()
    failing_files.is_failing = False
    assert store.read() == HOMES


@pytest.mark.slow
def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """However often one reads beside a writer."""
    store = SummaryStore(str(tmp_path))
    changes = [{"h000003": page(number), f"n{number:03}": page(number)} for number in range(100)]
    versions = [merge_pages(None, HOMES)]
    for changed in changes:
        versions.append(merge_pages(versions[-1], changed))
    store.write({"0-0": HOMES})
    is_written = threading.Event()

    def write() -> None:
        try:
            for changed in changes:
                store.write({"0-0": changed})
        finally:
            is_written.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    while not is_written.is_set():
        seen.append(versions.index((tmp_path / "0-0.json").read_bytes()))
    writer.join()
    assert seen == sorted(seen)
    assert (tmp_path / "0-0.json").read_bytes() == versions[-1]


def test_pages_of_an_earlier_run_are_cleared(tmp_path: Path) -> None:
    """And nothing of somebody else's."""
    store = SummaryStore(str(tmp_path / "pages"))
    assert store.clear() is False
    store.write({"0-0": HOMES})
    (tmp_path / "pages" / "notes.txt").write_text("mine")
    assert store.clear() is True
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["notes.txt"]
    assert store.clear() is False


def test_what_a_killed_writer_left_is_nobodys_page(tmp_path: Path) -> None:
    """Neither the pipeline nor the web page reads it, and it is cleared with the rest."""
    store = SummaryStore(str(tmp_path))
    store.write({"0-0": HOMES})
    (tmp_path / f"0-0.json.{'0f' * 16}").write_bytes(b"{")
    (tmp_path / "0-0.json.old").write_bytes(b"mine")
    assert store.read() == HOMES
    index = updated_index(Index(), store)
    assert index.names == tuple(sorted(HOMES))
    assert index.malformed == ()
    assert store.clear() is True
    assert [path.name for path in tmp_path.iterdir()] == ["0-0.json.old"]


def test_two_writers_of_a_block_have_a_file_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though they have the same process number, as in two containers; one that fails leaves none."""
    store = SummaryStore(str(tmp_path))
    names: list[str] = []

    def sync(descriptor: int) -> None:
        names.extend(path.name for path in tmp_path.iterdir())
        if len(names) == 1:
            store.write({"0-0": HOMES})
            raise OSError("the disk is full")

    monkeypatch.setattr("examples.home_security.summaries.os.fsync", sync)
    with pytest.raises(OSError, match="full"):
        store.write({"0-0": HOMES})
    assert len(names) == 3
    assert len(set(names)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["0-0.json"]


def test_blobs_in_azure_are_merged_too(azurite: AzuriteServer) -> None:
    """Several of a task at once, the same again, and one of them with other content."""
    container = azurite.create_container()
    store = SummaryStore(f"az://{container}/pages", connection_string=azurite.connection_string())
    blocks = {f"{index}-0": {f"h{index}": page(index), f"x{index}": page(0)} for index in range(20)}
    assert store.read() == {}
    for _ in range(2):
        store.write(blocks)
    assert store.has_files() is True
    store.write({"7-0": {"h7": page(70)}, "20-0": {"h20": page(20)}})
    merged = {home: content for pages in blocks.values() for home, content in pages.items()}
    assert store.read() == merged | {"h7": page(70), "h20": page(20)}
    assert azurite.connection_string() not in repr(store)
    assert store.clear() is True
    assert store.has_files() is False
    assert store.read() == {}
