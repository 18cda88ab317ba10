"""The reference pages of the Python API: each package's exports, from signatures and docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import tidegate
from tools.reference.source import Entry, Member, exported_entries, module_entries


@dataclass(frozen=True, slots=True)
class ApiPage:
    """One page."""

    title: str
    introduction: str
    package: str = ""
    """The package whose ``__all__`` is on the page."""
    modules: tuple[str, ...] = ()
    """Modules whose public classes and functions are on the page, each in its own section."""
    internals: tuple[str, ...] = ()
    """Names, and members as ``Class.name``, that only Tidegate's other packages and its tests use: not on the
    page."""


API_PAGES: Final[Mapping[str, ApiPage]] = {
    "python-client.md": ApiPage(
        "Python: tidegate.client",
        "Producer, consumer and administrator, for Tidegate and for Azure Event Hubs. All are asynchronous, "
        "except `run_blocking`, `BlockingProducer` and `BlockingConsumer`.",
        "client",
        internals=(
            *("FetchedRange", "RepeatableProducer", "RepeatableWork", "ProducerIdentity", "HubLayout"),
            "BlockingConsumer.read_together",
            *(
                f"PartitionReceiver.{name}"
                for name in (
                    *("on_attached", "on_detached", "on_credit", "on_deliveries", "on_settled"),
                    *("changed", "receive_parts", "check_history", "go_on", "estimate_skip_bytes"),
                    *("close_nowait", "start"),
                )
            ),
        ),
    ),
    "python-processor.md": ApiPage(
        "Python: tidegate.processor",
        "The [Event Processor Host](../concepts/event-processor-host.md): handlers, options, stores.",
        "processor",
    ),
    "python-sql.md": ApiPage(
        "Python: tidegate.sql",
        "Rows, dead letters and checkpoint in one transaction; needs no Spark. How it holds: "
        "[exactly once](../concepts/exactly-once.md).",
        "sql",
        internals=(
            *("UnitOfWork", "RowsRefusedError", "process_partition_batch", "BatchResult", "NewDeadLetter"),
            *("DeadLetters.add", "read_group_views"),
        ),
    ),
    "python-spark.md": ApiPage(
        "Python: tidegate.spark",
        "Sessions, pipelines and sinks. The formats and their options: [source](spark-source.md), "
        "[sinks](spark-sinks.md), [captured events](spark-capture.md).",
        "spark",
    ),
    "python-testing.md": ApiPage(
        "Python: tidegate.testing",
        "Real parts for tests: a hub with faults on demand, a proxy that cuts connections, and the suite for "
        "a store of your own. How they are used: "
        "[test your code](../guides/testing-your-code.md).",
        modules=(
            "tidegate.testing.event_hub",
            "tidegate.testing.hub",
            "tidegate.testing.proxy",
            "tidegate.testing.stores",
            "tidegate.testing.leases",
            "tidegate.testing.checkpoints",
            "tidegate.testing.dead_letters",
        ),
        internals=("acquire", "make_failed", "HubService.call", "HubService.ask"),
    ),
    "python-model.md": ApiPage(
        "Python: tidegate.model",
        "The values that all of them share. Its errors have [a page of their own](errors.md).",
        modules=(
            "tidegate.model.events",
            "tidegate.model.position",
            "tidegate.model.partition_key",
            "tidegate.model.connection_string",
            "tidegate.model.capture",
            "tidegate.model.clock",
        ),
        internals=("parse_time", "parse_position", "partition_key_hash"),
    ),
}
"""By file name."""


def api_pages(made: str) -> dict[str, str]:
    """File name → text. made: the sentence about where the page comes from."""
    return {name: "\n".join(_page_lines(page, made)) + "\n" for name, page in API_PAGES.items()}


def page_entries(page: ApiPage) -> Iterator[Entry]:
    """Every name on the page, without its internals and the tests of suites."""
    found = exported_entries(page.package) if page.package else iter(())
    for entry in (*found, *(each for module in page.modules for each in module_entries(module))):
        if entry.name not in page.internals:
            members = (
                member
                for member in entry.members
                if f"{entry.name}.{member.name}" not in page.internals and not member.name.startswith("test_")
            )
            yield replace(entry, members=tuple(members))


def _page_lines(page: ApiPage, made: str) -> Iterator[str]:
    yield from (f"# {page.title}", "", made, "", page.introduction)
    if page.package:
        yield from ("", f"Import them from `tidegate.{page.package}`.")
    for entry in page_entries(page):
        yield from _entry_lines(entry, "" if page.package else entry.module)


def _entry_lines(entry: Entry, module: str = "") -> Iterator[str]:
    yield from ("", f"## {entry.name}", "")
    if module:
        yield from (_place(entry, module), "")
    yield from ("```python", entry.text, "```", "", *_markdown(entry.words))
    fields = [member for member in entry.members if member.is_field]
    if fields:
        yield from ("", "| | |", "|---|---|")
        yield from (_field_row(member) for member in fields)
    for member in entry.members:
        if not member.is_field:
            yield from ("", f"### {entry.name}.{member.name}", "", "```python", member.text, "```", "")
            yield from _markdown(member.words)


def _place(entry: Entry, module: str) -> str:
    if entry.name in tidegate.__all__ and module.startswith("tidegate.model."):
        return "Import it from `tidegate`."
    return f"In `{module}`."


def _field_row(member: Member) -> str:
    words = " ".join(line for line in _markdown(member.words) if line)
    cells = (f"`{member.text}`", words)
    # A bar would begin another cell; code spans keep any backslash that is not before a bar.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _markdown(words: str) -> list[str]:
    """A docstring's lines as Markdown: code in single backticks, indented lines as a code block."""
    lines: list[str] = []
    is_code = False
    for raw in words.split("\n"):
        is_indented = raw.startswith("    ")
        if is_indented and not is_code and (not lines or not lines[-1]):
            lines += ["```text"]
            is_code = True
        elif is_code and raw.strip() and not is_indented:
            is_code = False
            while not lines[-1]:
                lines.pop()
            lines += ["```", ""]
        lines.append(raw.removeprefix("    ") if is_code else _prose(raw))
    return [*lines, "```"] if is_code else lines


def _prose(line: str) -> str:
    """Double backticks become single ones; stars and underscores outside code are escaped."""
    parts = re.split(r"(``[^`]+``)", line)
    return "".join(
        f"`{part[2:-2]}`" if part.startswith("``") else re.sub(r"(?<![\w])([*_<])(?=\S)", r"\\\1", part)
        for part in parts
    )
