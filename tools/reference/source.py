"""Reads a public name's signature, docstring and fields from the source, with Griffe.

The source, unlike the objects, has annotations, defaults and the docstrings below fields as they were
written, and reading it requires none of the optional libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import griffe

_FOLDERS: Final = [Path(__file__).parents[2] / "src", Path(__file__).parents[2]]
"""Of the package ``tidegate`` and, for the states that only pictures know, of ``tools``."""
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
    """The names of ``__all__`` of ``tidegate.<package>``, in its order."""
    for name in import_module(f"tidegate.{package}").__all__:  # a package imports no module of its own
        yield entry_of(f"tidegate.{package}", name)


def module_entries(module: str) -> Iterator[Entry]:
    """The public classes and functions that a module defines, in its order."""
    for name, found in _module(module).members.items():
        if not found.is_alias and (found.is_class or found.is_function) and not name.startswith("_"):
            yield entry_of(module, name)


def entry_of(module: str, name: str) -> Entry:
    """The entry of ``name`` from its definition: in ``module``, or where that imports it from."""
    found = _module(module)[name]
    found = found.final_target if found.is_alias else found
    if isinstance(found, griffe.Class):
        return _class_entry(found)
    text = _signature(found) if isinstance(found, griffe.Function) else f"{name} = {found.value}"
    return Entry(name, found.module.path, text, _words(found))


def _class_entry(found: griffe.Class) -> Entry:
    members = {
        member.name: member
        for owner in (*reversed(found.mro()), found)
        for each in owner.members.values()
        if (member := _member(each)) is not None
    }
    text, words = f"class {found.name}", _words(found)
    bases = [str(base) for base in found.bases if not str(base).startswith("_")]
    constructor = members.pop("__init__", None)
    if constructor is not None and not constructor.words.startswith("For `"):  # others make it for the user
        text = constructor.text.replace("def __init__", found.name, 1).removesuffix(" -> None")
        words += constructor.words and f"\n\n{constructor.words}"
    elif bases and "dataclass" not in found.labels and not bases[0].endswith("Enum"):
        text += f"({', '.join(bases)})"
    return Entry(found.name, found.module.path, text, words, tuple(members.values()))


def _member(found: griffe.Object | griffe.Alias) -> Member | None:
    """A class's constructor or public member; None for anything else."""
    name, words = found.name, _words(found)
    if isinstance(found, griffe.Function) and (name == "__init__" or not name.startswith("_")):
        return Member(name, _signature(found), words)
    if not isinstance(found, griffe.Attribute) or name.startswith("_") or "init=False" in str(found.value):
        return None
    if not words and found.annotation is None and "class-attribute" not in found.labels:
        return None  # set in ``__init__``, and not meant for users
    text = name if found.annotation is None else f"{name}: {found.annotation}"
    text += f" = {found.value}" if "class-attribute" in found.labels and found.value is not None else ""
    return Member(name, text, words, is_field=True)


def _signature(found: griffe.Function) -> str:
    """The definition's first line; the parameters on lines of their own if it is too long."""
    prefix = f"{'async ' if 'async' in found.labels else ''}def {found.name}"
    returns = "" if found.returns is None else f" -> {found.returns}"
    parameters = list(_parameters(found))
    line = f"{prefix}({', '.join(parameters)}){returns}"
    if len(line) <= _LINE_MAX:
        return line
    inner = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{prefix}(\n{inner}){returns}"


def _parameters(found: griffe.Function) -> Iterator[str]:
    """The parameters without ``self``. Readers cannot look up a private constant: its value is shown."""
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    has_star = False
    for parameter in found.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not has_star:
            yield "*"
        has_star |= parameter.kind in (griffe.ParameterKind.var_positional, griffe.ParameterKind.keyword_only)
        text = f"{stars.get(parameter.kind, '')}{parameter.name}"
        text += "" if parameter.annotation is None else f": {parameter.annotation}"
        if parameter.default is not None and parameter.kind not in stars:
            constant = found.module.members.get(str(parameter.default))
            default = parameter.default
            if isinstance(constant, griffe.Attribute) and constant.name.startswith("_"):
                default = constant.value or default
            text += f"{'=' if parameter.annotation is None else ' = '}{default}"
        yield text


def _words(found: griffe.Object | griffe.Alias) -> str:
    return "" if found.docstring is None else found.docstring.value


@cache
def _packages() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(
        extensions=griffe.Extensions(), search_paths=_FOLDERS, allow_inspection=False
    )
    for package in ("tidegate", "tools"):
        loader.load(package)
    loader.resolve_aliases(implicit=True, external=False)
    return loader.modules_collection


def _module(name: str) -> griffe.Module:
    found = _packages()[name]
    assert isinstance(found, griffe.Module)
    return found
