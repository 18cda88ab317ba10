"""Reads a public name's signature, docstring and fields from the source. Nothing is imported.

The source, unlike the objects, has annotations, defaults and the docstrings below fields as they were
written, and reading it requires none of the optional libraries.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import tidegate
from tidegate.exports import declared_exports

_ROOTS: Final = {
    "tidegate": Path(inspect.getfile(tidegate)).parent.parent,
    "tools": Path(__file__).parent.parent.parent,
}
"""Top-level package → the folder that contains it; ``tools`` for the states that only pictures know."""
_LINE_MAX: Final = 88


@dataclass(frozen=True, slots=True)
class Member:
    """A method, property, field or function."""

    name: str
    text: str
    """Its call or declaration, as Python."""
    words: str
    """Its docstring, or the string below the field; empty if there is none."""
    is_field: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A public name of a package."""

    name: str
    module: str
    text: str
    words: str
    members: tuple[Member, ...] = ()


def exported_entries(package: str) -> Iterator[Entry]:
    """The names that ``tidegate.<package>`` exports, in its order."""
    for name, module in declared_exports(_tree(f"tidegate.{package}")).items():
        yield entry_of(module, name)


def module_entries(module: str) -> Iterator[Entry]:
    """The public classes and functions that a module defines, in its order."""
    for node in _tree(module).body:
        is_defined = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        name = getattr(node, "name", "")
        if is_defined and not name.startswith("_"):
            yield entry_of(module, name)


def entry_of(module: str, name: str) -> Entry:
    """The entry of ``name`` from its definition: in ``module``, or where that imports it from."""
    module = _home(module, name)
    node, words = _definition(module, name)
    if isinstance(node, ast.ClassDef):
        return _class_entry(module, node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return Entry(name, module, _signature(module, node), words)
    value = node.value
    assert value is not None, f"{module}.{name} has no value"
    return Entry(name, module, f"{name} = {ast.unparse(value)}", words)


def _home(module: str, name: str) -> str:
    home = _imports(_tree(module)).get(name, "")
    return _home(home, name) if home.startswith("tidegate.") else module


_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


def _definition(module: str, name: str) -> tuple[_Definition, str]:
    body = _tree(module).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node, ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            return node, _words_below(following)
    raise LookupError(f"{module} does not define {name}.")


def _class_entry(module: str, node: ast.ClassDef) -> Entry:
    is_enum = any(_last(base) in {"Enum", "StrEnum", "IntEnum"} for base in node.bases)
    members: dict[str, Member] = {}
    for home, each in reversed(list(_with_bases(module, node))):
        members |= {member.name: member for member in _members(home, each)}
    bases = ", ".join(ast.unparse(base) for base in node.bases if not _last(base).startswith("_"))
    is_value = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    constructor = members.pop("__init__", None)
    if constructor is not None:
        text = constructor.text.replace("def __init__", node.name, 1).removesuffix(" -> None")
    elif is_value or is_enum:
        text = f"class {node.name}"
    else:
        text = f"class {node.name}({bases})" if bases else f"class {node.name}"
    words = ast.get_docstring(node) or ""
    if constructor is not None and constructor.words:
        words += f"\n\n{constructor.words}"
    return Entry(node.name, module, text, words, tuple(members.values()))


def _with_bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """The class, then those of its bases that are ours."""
    yield module, node
    for base in node.bases:
        home = _home(module, _last(base))
        try:
            found, _ = _definition(home, _last(base))
        except LookupError:
            continue  # A class of another library.
        if isinstance(found, ast.ClassDef):
            yield from _with_bases(home, found)


def _members(module: str, node: ast.ClassDef) -> Iterator[Member]:
    for each, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {_last(decorator) for decorator in each.decorator_list}
            if each.name == "__init__" or not each.name.startswith("_"):
                words = ast.get_docstring(each) or ""
                if decorators & {"property", "cached_property"}:
                    kind = "" if each.returns is None else f": {ast.unparse(each.returns)}"
                    yield Member(each.name, f"{each.name}{kind}", words, is_field=True)
                elif not decorators & {"setter", "overload"}:
                    yield Member(each.name, _signature(module, each), words)
            if each.name == "__init__":
                yield from _instance_fields(each)
        elif isinstance(each, ast.AnnAssign | ast.Assign):
            for name in _targets(each):
                if not name.startswith("_") and not _is_hidden(each):
                    yield Member(name, ast.unparse(each), _words_below(following), is_field=True)


def _instance_fields(constructor: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Member]:
    """Each ``self.name = …`` with a docstring below it: a public attribute."""
    for each, following in zip(constructor.body, [*constructor.body[1:], None], strict=True):
        if isinstance(each, ast.Assign | ast.AnnAssign) and _words_below(following):
            target = each.targets[0] if isinstance(each, ast.Assign) else each.target
            if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                annotation = f": {ast.unparse(each.annotation)}" if isinstance(each, ast.AnnAssign) else ""
                yield Member(target.attr, target.attr + annotation, _words_below(following), is_field=True)


def _is_hidden(node: ast.Assign | ast.AnnAssign) -> bool:
    return isinstance(node, ast.AnnAssign) and "init=False" in ast.unparse(node)


def _signature(module: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    prefix = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    parameters = _parameters(node.args, _private_values(_tree(module)))
    line = f"{prefix}{node.name}({', '.join(parameters)}){returns}"
    if len(line) <= _LINE_MAX:
        return line
    inner = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{prefix}{node.name}(\n{inner}){returns}"


def _private_values(tree: ast.Module) -> dict[str, ast.expr]:
    """The module's private constants: a default is shown as its value, since readers cannot look it up."""
    return {
        name: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for name in _targets(node)
        if name.startswith("_")
    }


def _parameters(arguments: ast.arguments, values: Mapping[str, ast.expr]) -> list[str]:
    """The parameters as text, without ``self``, with ``*`` in its place."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults = [None] * missing + list(arguments.defaults)
    parts = [
        _parameter(argument, default, values)
        for argument, default in zip(positional, defaults, strict=True)
        if argument.arg not in ("self", "cls")
    ]
    if arguments.vararg is not None:
        parts.append("*" + _parameter(arguments.vararg, None, values))
    elif arguments.kwonlyargs:
        parts.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(_parameter(argument, default, values))
    if arguments.kwarg is not None:
        parts.append("**" + _parameter(arguments.kwarg, None, values))
    return parts


def _parameter(argument: ast.arg, default: ast.expr | None, values: Mapping[str, ast.expr]) -> str:
    if isinstance(default, ast.Name):
        default = values.get(default.id, default)
    annotation = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    if default is None:
        return f"{argument.arg}{annotation}"
    return f"{argument.arg}{annotation}{' = ' if annotation else '='}{ast.unparse(default)}"


def _words_below(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return inspect.cleandoc(str(node.value.value))
    return ""


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _last(node: ast.expr) -> str:
    """``Generic`` from ``typing.Generic[T]``."""
    if isinstance(node, ast.Subscript):
        return _last(node.value)
    if isinstance(node, ast.Call):
        return _last(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _imports(tree: ast.Module) -> dict[str, str]:
    """Imported name → the module it comes from, including imports for type checkers only."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }


@cache
def _tree(module: str) -> ast.Module:
    parts = module.split(".")
    path = _ROOTS[parts[0]].joinpath(*parts)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
