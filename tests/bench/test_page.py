"""The page of benchmarks, from figures that are made up."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from bench.measure import Figure, Found, Measurement

from bench import page


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "images").mkdir()
    monkeypatch.setattr(page, "_DOCS", tmp_path)
    monkeypatch.setattr(page, "_versions", lambda: {"NATS": "2.9"})
    return tmp_path


def test_page_has_each_row_with_its_target_and_whether_it_is_reached(docs: Path) -> None:
    """Protects readers from a target that is missed and not shown."""
    ours = Measurement("ingest, our producer", 1_000, 1_000, 0.001)
    peer = Measurement("ingest, NATS", 1_000, 1_000, 0.002)
    ours.compare_with(peer)
    keyed = Found(figures=[Figure("publish → handler, 4 partitions: p50", 1.5, "ms", 2.0)])
    written = page.write_page({"peers": Found([peer], [ours]), "keyed": keyed}, rounds=3)
    text = (docs / "benchmarks.md").read_text()
    assert "median of 3 rounds" in text
    assert "| ingest, our producer | 1,000,000 | 0.00 | 2 × ingest, NATS |" in text
    assert "| ingest, our producer | ingest, NATS | 2.00 | ≥ 3 | **not reached** |" in text
    assert "| publish → handler, 4 partitions: p50 | 1.5 ms | ≤ 2 ms | reached |" in text
    assert "images/benchmark-ingest.svg" in text
    assert {path.name for path in written} == {
        "benchmarks.md",
        "benchmark-ingest.svg",
        "benchmark-keyed.svg",
    }


def test_page_says_what_rows_mean_before_them(docs: Path) -> None:
    """Protects readers from a rate that they take for something else."""
    page.write_page({"shapes": Found(stages=[Measurement("ingest, TLS", 1, 1, 1.0)])}, rounds=1)
    text = (docs / "benchmarks.md").read_text()
    assert text.index("## shapes") < text.index("links are open before") < text.index("| ingest, TLS |")


def test_a_target_that_is_missed_is_explained_below_its_table(docs: Path) -> None:
    """Protects readers from a miss without a cause, and from an excuse for what is reached."""
    figures = [
        Figure(f"Spark → PostgreSQL, {rate} events/s: {what}", value, "ms", at_most)
        for rate, slow in (("1,000", 146.0), ("20,000", 90.0))
        for what, value, at_most in (("a micro-batch", slow, 128.0), ("p50", 185.0, 242.0))
    ]
    page.write_page({"spark-latency": Found(figures=figures)}, rounds=1)
    text = (docs / "benchmarks.md").read_text()
    _, _, explained = text.partition("| Spark → PostgreSQL, 20,000 events/s: p50 |")
    assert "\n\n**Why:** a micro-batch that reads and writes nothing takes 78 ms in this run" in explained
    assert "Ours adds 68 ms at 1,000 events/s" in explained

    waiting = [
        replace(each, value=270.0) if each.what.endswith("20,000 events/s: p50") else each for each in figures
    ]
    page.write_page({"spark-latency": Found(figures=waiting)}, rounds=1)
    text = (docs / "benchmarks.md").read_text()
    assert "20,000 events/s: p50 is 3.0 micro-batches, so its target needs 81 ms" in text

    reached = [replace(each, value=each.at_most or 0.0) for each in figures]
    page.write_page({"spark-latency": Found(figures=reached)}, rounds=1)
    assert "**Why:**" not in (docs / "benchmarks.md").read_text()


def test_a_missed_row_without_a_reason_is_named(docs: Path) -> None:
    """Protects readers from a miss that looks explained by the paragraph of another row."""
    figures = [Figure("start after a clean stop, 1 GB", 0.9, "s", 0.7), Figure("nonsense", 2.0, "MB", 1.0)]
    page.write_page({"footprint": Found(figures=figures)}, rounds=1)
    text = (docs / "benchmarks.md").read_text()
    assert "**Why:** start after a clean stop" in text
    assert text.rstrip().endswith("**Not explained:** nonsense.")


def test_each_part_of_the_page_with_a_missed_target_says_why() -> None:
    """Protects the page in the tree from rows that no paragraph explains."""
    text = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    parts = text.split("\n## ")[1:]
    missed = [part for part in parts if "**not reached**" in part]
    assert missed
    assert [part.partition("\n")[0] for part in missed if "\n**Why:** " not in part] == []
    assert "**Not explained:**" not in text


def test_picture_is_an_svg_with_a_bar_for_each_value() -> None:
    """Protects names from characters that XML would read as its own."""
    drawn = page.picture(
        "A & B", "events/s", [page.Bar("<ours>", 2_000.0), page.Bar("theirs", 1_000.0, is_ours=False)]
    )
    tree = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    _, ours, theirs = tree.iter(f"{space}rect")
    assert float(ours.attrib["width"]) == 2 * float(theirs.attrib["width"])
    assert [each.text for each in tree.iter(f"{space}text")] == [
        "A & B (events/s)",
        "<ours>",
        "2,000",
        "theirs",
        "1,000",
    ]
