"""The reference pages of the service's settings and of the state machines, with their pictures."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from enum import Enum
from typing import Final, get_args

from tidegate.server import settings
from tools.reference.diagrams import draw_machine
from tools.reference.source import entry_of
from tools.reference.states import MACHINES, STATES, Machine

_LIMITED: Final = re.compile("Port|Count|NotNegative|MemoryBytes|Seconds")


def setting_page(made: str) -> str:
    """Every setting of the service: type, default, and the docstring of its declaration."""
    lines = [
        "# Settings",
        "",
        made,
        "",
        "The settings that `tidegate serve` reads from environment variables (`TIDEGATE_` and the name in "
        "capitals, such as `TIDEGATE_AMQP_PORT`) and from `--config FILE` (TOML or JSON), and that programs "
        "set when they embed the service (`tidegate.server.settings.ServerSettings`). [The "
        "service](service.md#settings-file) describes the file and what else it may declare (event hubs, "
        "policies, tier). A port of 0 means any free port; without a port, or with `None`, that protocol is "
        "not served.",
        "",
        "| setting | type | default | |",
        "|---|---|---|---|",
    ]
    words = {member.name: member.words for member in entry_of(settings.__name__, "ServerSettings").members}
    for field in fields(settings.ServerSettings):
        if field.name != "declared":
            kind = _LIMITED.sub(_type_text, str(field.type)).replace("|", "\\|")
            text = _one_line(words[field.name]).replace("|", "\\|")
            lines.append(f"| `{field.name}` | `{kind}` | {_default_text(field.default)} | {text} |")
    return "\n".join(lines) + "\n"


def _type_text(found: re.Match[str]) -> str:
    """A type with limits, such as ``Port``, in full: ``int 0..65535``."""
    kind, limits = get_args(getattr(settings, found[0]))
    if limits.le is not None:
        return f"{kind.__name__} {limits.ge}..{limits.le}"
    bound = f"> {limits.gt}" if limits.ge is None else f">= {limits.ge:,}"
    return f"{kind.__name__} {bound}"


def _default_text(default: object) -> str:
    if isinstance(default, Enum):
        default = default.value
    if default is MISSING:
        return "required"
    return f"`{default:,}`" if isinstance(default, int) and default > 99_999 else f"`{default!r}`"


def state_files(made: str) -> dict[str, str]:
    """File name → text: the page of the state machines, and a picture of each."""
    files = {f"states/{machine.name}.svg": draw_machine(machine) for machine in MACHINES}
    lines = [
        "# States",
        "",
        made,
        "",
        "Tidegate's state machines. The diagrams are drawn from the transitions in the code; the table "
        "below each diagram lists the same transitions.",
    ]
    for machine in MACHINES:
        lines += _machine_lines(machine)
    return files | {"states.md": "\n".join(lines) + "\n"}


def _machine_lines(machine: Machine) -> list[str]:
    lines = ["", f"## {machine.title}", "", machine.words, ""]
    lines += [f"![{machine.title}: states and steps, as in the table below](states/{machine.name}.svg)", ""]
    if machine.name in STATES:
        states = STATES[machine.name]
        words = {each.name: each.words for each in entry_of(states.__module__, states.__name__).members}
        told = [(state, _one_line(words.get(state.name, ""))) for state in states]
        if any(text for _, text in told):
            lines += ["| state | |", "|---|---|"]
            lines += [f"| {state.value} | {text} |" for state, text in told]
            lines.append("")
    lines += ["| from | step | to |", "|---|---|---|"]
    for step in machine.steps:
        side = " (received)" if step.is_peers else ""
        lines.append(f"| {step.start} | {step.label}{side} | {step.end} |")
    return lines


def _one_line(words: str) -> str:
    return " ".join(words.replace("``", "`").split())
