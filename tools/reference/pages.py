"""The reference pages, generated from the code.

``cli.md`` from the commands, ``errors.md`` from the error tree and its table of conditions, ``limits.md``
from the module of quotas, ``http-api.md`` from the table of administrative operations, ``metrics.md`` from
the table of metrics, ``settings.md`` from the service's settings, ``states.md`` and its pictures from the
state machines, ``python-….md`` from the signatures and docstrings of exported names.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import click

import tidegate
from tidegate.cli.app import EXIT_CODE_HELP, app
from tidegate.cli.hosts.metrics import HOST_METRICS, RESTARTS
from tidegate.cli.hosts.metrics import PREFIX as HOST_METRIC_PREFIX
from tidegate.cli.shell.exit_codes import exit_code_of
from tidegate.gateway.administration.operations import OPERATIONS, PREFIX
from tidegate.gateway.administration.shapes import Shape, schemas
from tidegate.gateway.metrics import METRICS
from tidegate.gateway.metrics import PREFIX as METRIC_PREFIX
from tidegate.metric_rows import MetricRow
from tidegate.model import errors, limits
from tidegate.spark.progress.metrics import PIPELINE_METRICS
from tidegate.spark.progress.metrics import PREFIX as PIPELINE_METRIC_PREFIX
from tidegate.wire.conditions import row_for
from tools.reference.api import api_pages
from tools.reference.settings import setting_page, state_files

_MADE = "Made by `make docs`; do not edit."


def iter_commands(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name (``hub create``), in the order of the help."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from iter_commands(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


def reference_pages() -> dict[str, str]:
    """File name → text, of every page."""
    return {
        "cli.md": _command_page(),
        "errors.md": _error_page(),
        "limits.md": _limit_page(),
        "http-api.md": _http_api_page(),
        "metrics.md": _metric_page(),
        "settings.md": setting_page(_MADE),
        **state_files(_MADE),
        **api_pages(_MADE),
    }


def _command_page() -> str:
    lines = [
        "# Command line",
        "",
        _MADE,
        "",
        "The connection options (`--connection-string`, `--profile`, `--ca-file`) can be given before or "
        "after the command: `tidegate --profile staging hub list`. "
        "Commands that connect to a service look for it in this order: `--connection-string` or "
        "`--profile`, `TIDEGATE_CONNECTION_STRING`, the profile named by `TIDEGATE_PROFILE`, the profile "
        "chosen with `tidegate profile use`, and the profile that `tidegate serve` wrote for this user. "
        "Profiles are stored in `TIDEGATE_CONFIG_DIR` or, by default, in `tidegate` in the user's "
        "configuration directory, readable only by this user.",
        "",
        "Results go to standard output as a table, or as `--json` (one value), `--nl` (one object per line) "
        "or `--csv`; progress and warnings go to standard error.",
        "",
        f"Exit codes: {EXIT_CODE_HELP}.",
    ]
    for name, command in iter_commands(app):
        lines += ["", f"## tidegate {name}", "", *_help_lines(command.help or "")]
        rows = [_parameter_row(parameter, click.Context(command)) for parameter in command.params]
        lines += ["", "| | |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _help_lines(text: str) -> list[str]:
    """The paragraphs of a docstring; the one after ``\\b`` is an example, as a code block."""
    prose, _, example = text.partition("\b")
    lines = [line.strip() for line in prose.strip().splitlines()]
    commands = [line.strip() for line in example.strip().splitlines()[1:]]
    return [*lines, "", "```sh", *commands, "```"]


def _parameter_row(parameter: click.Parameter, context: click.Context) -> str:
    words = [parameter.help or ""]
    if isinstance(parameter, click.Argument):
        names = f"`{parameter.make_metavar(context)}`"
    else:
        spelled = (*parameter.opts, *parameter.secondary_opts)
        names = ", ".join(f"`{f'{option} {parameter.metavar or str()}'.strip()}`" for option in spelled)
    if isinstance(parameter.type, click.Choice):
        words.append("One of " + ", ".join(f"`{choice}`" for choice in parameter.type.choices) + ".")
    default = parameter.default
    if isinstance(default, int | float | str | Path) and default is not False:
        words.append(f"Default: `{default}`.")
    if parameter.required:
        words.append("Required.")
    # A bar within a cell (``N|off``) would begin another cell.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (names, " ".join(words))) + " |"


def _error_page() -> str:
    lines = [
        "# Errors",
        "",
        _MADE,
        "",
        "Every error is a `TidegateError`. Import it and the most commonly caught errors "
        f"({_exported_errors()}) from `tidegate`, the others from `tidegate.model.errors`. "
        "*Fault* says who caused it; *retry* says whether the same call may succeed later "
        "without any change. A client gets the condition over AMQP and the status over "
        "HTTP; a command ends with the exit code.",
        "",
        "| error | meaning | fault | retry | AMQP condition | HTTP | exit |",
        "|---|---|---|---|---|---|---|",
    ]
    for error_type in _error_types(errors.TidegateError):
        error = error_type("")
        row = row_for(error)
        meaning = (inspect.getdoc(error_type) or "").partition("\n\n")[0].replace("\n", " ")
        lines.append(
            f"| `{error_type.__name__}` | {meaning} | {error_type.fault.value} | "
            f"{'yes' if error_type.is_transient else 'no'} | `{row.condition}` | {row.http_status} | "
            f"{exit_code_of(error)} |"
        )
    return "\n".join(lines) + "\n"


def _exported_errors() -> str:
    names = [error_type.__name__ for error_type in _error_types(errors.TidegateError)][1:]
    return ", ".join(f"`{name}`" for name in names if name in tidegate.__all__)


def _error_types(error_type: type[errors.TidegateError]) -> Iterator[type[errors.TidegateError]]:
    """The tree below a type, each type before its subtypes; only the product's common errors."""
    if error_type.__module__ == errors.__name__:
        yield error_type
        for derived in error_type.__subclasses__():
            yield from _error_types(derived)


def _limit_page() -> str:
    lines = ["# Limits", "", _MADE, "", "| limit | value | |", "|---|---|---|"]
    names: list[str] = []
    for node in ast.parse(inspect.getsource(limits)).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and names:
            # The docstring below several names describes all of them.
            words = " ".join(str(node.value.value).split())
            lines += [f"| `{name}` | {_value_text(getattr(limits, name))} | {words} |" for name in names]
            names = []
    lines += [
        "",
        "## By tier",
        "",
        "The namespace's `tier` decides. Changing the tier does not affect existing entities.",
        "",
    ]
    lines += ["| limit | " + " | ".join(tier.value for tier in limits.Tier) + " |"]
    lines += ["|---|" + "---|" * len(limits.Tier)]
    for field in dataclasses.fields(limits.TierLimits):
        values = [_value_text(getattr(limits.TIER_LIMITS[tier], field.name)) for tier in limits.Tier]
        lines.append(f"| `{field.name}` | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def _value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return "see below"
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


def _http_api_page() -> str:
    lines = [
        "# Administration over HTTP",
        "",
        _MADE,
        "",
        f"All paths begin with `{PREFIX}`. [http.md](http.md#administration) describes how to send requests. "
        "The service provides the same as OpenAPI 3.1 at `/openapi.json`.",
        "",
        "| | | claims | body, or query of a GET | answer |",
        "|---|---|---|---|---|",
    ]
    for operation in OPERATIONS:
        claims = " and ".join(
            " or ".join(claim.value for claim in group) for group in operation.needs.alternatives
        )
        request = "" if operation.request is None else _shape_link(operation.request)
        answer = "" if operation.answer is None else _shape_link(operation.answer)
        answer = f"{operation.status} {'list of ' if operation.is_list else ''}{answer}".strip()
        address = f"`{operation.method} {operation.path}`"
        lines.append(f"| {address} | {operation.summary} | {claims} | {request} | {answer} |")
    found = schemas()
    for name, schema in found.items():
        if "properties" in schema:
            lines += ["", f"## {name}", "", "| | | |", "|---|---|---|"]
            lines += [_field_line(each, schema, found) for each in schema["properties"]]
    return "\n".join(lines) + "\n"


def _field_line(name: str, schema: dict[str, Any], found: dict[str, Any]) -> str:
    """A field of an object, from its JSON Schema. found: all schemas."""
    field = schema["properties"][name]
    kinds = field.get("anyOf", [field])
    items = kinds[0].get("items", kinds[0])
    reference = items.get("$ref", "").rpartition("/")[2]
    choices = found[reference].get("enum", ()) if reference else ()
    words = {"integer": "an integer", "string": "a string", "boolean": "true or false"}
    kind = words["string"] if choices else words.get(items.get("type", ""), f"an object: {reference}")
    if items is not kinds[0]:
        is_object = reference and not choices
        kind = f"a list of {f'objects: {reference}' if is_object else items.get('type', 'string') + 's'}"
    kind += ", or null" if len(kinds) > 1 else ""
    kind += "" if name in schema["required"] else "; optional"
    one_of = f" One of {', '.join(choices)}." if choices else ""
    return f"| `{name}` | {kind} | {field['description']}{one_of} |"


def _metric_page() -> str:
    lines = [
        "# Metrics",
        "",
        _MADE,
        "",
        "`GET /metrics` on the HTTP and HTTPS ports, in Prometheus' text format, or in OpenMetrics if the",
        "request asks for it. A request from this machine to a loopback name or address needs no token; any",
        "other, and any that comes through a recognised proxy, needs a token for the namespace with Listen",
        "or Manage. List every proxy and forwarder on this machine in",
        "[`trusted_proxies`](../guides/hardening.md#a-proxy-for-https): one that adds no header and sends a",
        "loopback `Host` cannot be recognised.",
        "Counters start when the service starts. *Azure* is the Azure Monitor metric with the same meaning.",
        "The metrics of prometheus-client about the process (`process_…`) are served, too.",
        "",
        "| metric | kind | labels | | Azure |",
        "|---|---|---|---|---|",
    ]
    for row in METRICS:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(
            f"| `{METRIC_PREFIX}{row.name}` | {row.kind} | {labels} | {row.description} | {row.azure_name} |"
        )
    lines += [
        "",
        "In Prometheus' configuration, the token is set as",
        "",
        "```yaml",
        "authorization:",
        "  type: SharedAccessSignature",
        "  credentials: sr=…&sig=…&se=…&skn=…",
        "```",
        "",
        "## Of a pipeline on Spark",
        "",
        "`tidegate pipeline run --metrics-port N` serves these at `/metrics` on that port, without a token.",
        "All have the label `pipeline`; the numbers are those of the pipeline's",
        "[status](pipelines.md#the-status). Counters are since its process started.",
        "",
        "| metric | kind | further labels | |",
        "|---|---|---|---|",
    ]
    lines += map(partial(_metric_line, PIPELINE_METRIC_PREFIX), PIPELINE_METRICS)
    lines += [
        "",
        "## Of Event Processor Hosts",
        "",
        "`tidegate host run --metrics-port N` serves these at `/metrics` on that port, without a token, for",
        "all hosts of `--processes`. All but the last have the label `host`.",
        "",
        "This is where to look for hosts with checkpoints in a directory or a container: the service does",
        "not see those. Their lag is the difference to the service's own number:",
        "",
        "```promql",
        "tidegate_partition_next_sequence_number - on (event_hub, partition) group_right ()",
        "  max by (event_hub, consumer_group, partition) (tidegate_host_partition_next_sequence_number)",
        "```",
        "",
        "| metric | kind | further labels | |",
        "|---|---|---|---|",
    ]
    lines += map(partial(_metric_line, HOST_METRIC_PREFIX), HOST_METRICS)
    lines.append(f"| `{HOST_METRIC_PREFIX}{RESTARTS[0]}` | counter | | {RESTARTS[1]} |")
    return "\n".join(lines) + "\n"


def _metric_line(prefix: str, row: MetricRow[Any]) -> str:
    labels = ", ".join(f"`{label}`" for label in row.labels)
    return f"| `{prefix}{row.name}` | {row.kind} | {labels} | {row.description} |"


def _shape_link(shape: type[Shape]) -> str:
    return f"[{shape.__name__}](#{shape.__name__.lower()})"
