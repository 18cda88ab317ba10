"""Plain values and JSON as declared types, by msgspec, from any thread; and what was wrong with a request's.

The rule: a type is declared where the values are used; this module only turns msgspec's error into one
sentence that names the location. No sentence repeats a value, which may be a key.

What msgspec (0.22.0) finds out about a class at its first use is put into the class before it is complete, as
a class may contain itself. Another thread that meets it then crashes the process. So the first use of each
class is here, under a lock.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import NAME_CHARACTERS_MAX

NOT_GIVEN: Final = {"is_given": False}
"""Metadata of a dataclass field that plain values may not set."""

T = TypeVar("T")

_PATH: Final = re.compile(r" - at `(?:key in `)?\$\.?(?P<path>[\w.\[\]]{0,200})`\Z")
"""It ends the refusal; an unknown name or a value that is quoted before it may contain anything."""
_PATH_CHARACTERS: Final = 250
"""The pattern matches in so many at the end; what is quoted before may have a quarter of a million."""
_TYPES: Final = re.compile(r"Expected `(?P<wanted>.*?)`(?P<bound> .*?)?(?:, got `(?P<found>.*)`)?", re.DOTALL)
_NAMED: Final = re.compile(r"Object (?P<kind>contains|missing) \w+ field `(?P<name>.*)`", re.DOTALL)
_QUOTED_MAX: Final = 120
"""Characters of a refusal that quotes a value."""
_STEP: Final = re.compile(r"\w+|\[")
_WORDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
}


_lock: Final = threading.Lock()
_known: Final[set[type]] = set()


def from_json(data: bytes | str, kind: type[T]) -> T:
    """As ``msgspec.json.decode``."""
    _prepare(kind)
    return msgspec.json.decode(data, type=kind)


def from_values(
    value: object,
    kind: type[T],
    *,
    strict: bool = True,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """As ``msgspec.convert``."""
    _prepare(kind)
    return msgspec.convert(value, kind, strict=strict, dec_hook=dec_hook)


def _prepare(kind: type) -> None:
    if kind in _known:
        return
    with _lock:
        msgspec.msgpack.Decoder(kind)  # finds out about the class, and all that it contains
        _known.add(kind)


def validated(value: object, kind: type[T], where: str = "", *, is_text: bool = False) -> T:
    """The value as ``kind``: a msgspec Struct, or any type that msgspec converts to.

    where: names the value to its author, such as ``event_hubs[0]``; empty for a whole file or body.
    is_text: also take ``5672``, ``true`` and ``null`` as strings, from where there is nothing else.

    Raises InvalidArgumentError naming the field that is missing, unknown or of another type.
    """
    try:
        return from_values(value, kind, dec_hook=_path, strict=not is_text)
    except msgspec.ValidationError as error:
        raise _refusal(error, kind, where) from None


def given_fields(values: Mapping[str, object], kind: type, where: str = "") -> dict[str, Any]:
    """The fields of a dataclass that ``values`` has, by name and of their types; tuples for lists.

    Raises InvalidArgumentError as ``validated``, and if a field without a default is missing.
    """
    found = msgspec.structs.asdict(validated(values, _shape(kind), where))
    return {name: value for name, value in found.items() if value is not msgspec.UNSET}


def decoded(body: bytes, kind: type[T]) -> T:
    """The JSON value of a request's body.

    Raises InvalidArgumentError as ``validated``, and for bytes that are not JSON.
    """
    try:
        return from_json(body, kind)
    except msgspec.ValidationError as error:
        raise _refusal(error, kind, "") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"The body is not JSON: {str(error)[:200]}.") from None


def check_name_length(name: str, what: str) -> None:
    """Raise InvalidArgumentError if a name in a request is longer than any can be.

    Call it before anything else is done with a name: a long one costs its length several times.
    """
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidArgumentError(f"{what} has more than {NAME_CHARACTERS_MAX} characters, the maximum.")


def utf8(text: str, what: str) -> bytes:
    """``text`` in UTF-8. Raises InvalidArgumentError for half a surrogate pair, which JSON can escape."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} holds half a character: {error.reason}.") from error


def type_name(value: object) -> str:
    """The name of a value's type in errors."""
    names = {bool: "bool", dict: "object", float: "float", int: "int", list: "array", str: "str"}
    return "null" if value is None else _WORDS.get(names.get(type(value), ""), type(value).__name__)


@cache
def _shape(kind: type) -> type[msgspec.Struct]:
    types = get_type_hints(kind, include_extras=True)
    fields: list[Any] = []
    for field in dataclasses.fields(kind):
        if field.metadata == NOT_GIVEN:
            continue
        is_required = field.default is field.default_factory is dataclasses.MISSING
        name, type_ = field.name, types[field.name]
        fields.append((name, type_) if is_required else (name, type_ | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, kw_only=True)


def _path(kind: type, value: object) -> Path:
    if kind is not Path or not isinstance(value, (str, Path)):
        raise TypeError(f"Expected `str`, got `{type_name(value)}`")
    return Path(value)


def _refusal(error: msgspec.ValidationError, kind: object, where: str) -> InvalidArgumentError:
    message = str(error)
    found = _PATH.search(message, max(0, len(message) - _PATH_CHARACTERS))
    problem, path = (message, "") if found is None else (message[: found.start()], found["path"])
    place = f"{where}.{path}" if where and path and path[0] != "[" else where + path
    if (named := _NAMED.fullmatch(problem)) is not None:
        name = named["name"][:80]
        if named["kind"] == "missing":
            return InvalidArgumentError(f"{f'{place}.' if place else ''}{name} is missing.")
        return InvalidArgumentError(
            f"{f'{place}: unknown' if place else 'Unknown'} field {name!r}.",
            next_step=f"Known: {', '.join(_names_at(kind, path)) or 'nothing'}.",
        )
    place = place or "The body"
    types = _TYPES.fullmatch(problem)
    if types is None:
        known = ", ".join(_choices_at(kind, path))
        # "Invalid enum value 'x'" is the only message that quotes the value.
        invalid = problem[0].lower() + problem[1:_QUOTED_MAX].replace("enum ", "", 1)
        return InvalidArgumentError(f"{place}: {invalid}.", next_step=f"Known: {known}." if known else "")
    wanted = " or ".join(_WORDS.get(each, each) for each in types["wanted"].split(" | "))
    if types["found"] is None:
        return InvalidArgumentError(f"{place} must be {wanted}{types['bound'] or ''}.")
    return InvalidArgumentError(
        f"{place} must be {wanted}, got {_WORDS.get(types['found'], types['found'])}."
    )


def _names_at(kind: object, path: str) -> list[str]:
    return [field.encode_name for field in _found_at(kind, path, lambda each: getattr(each, "fields", ()))]


def _choices_at(kind: object, path: str) -> list[str]:
    def of(each: Any) -> list[object]:
        if isinstance(each, msgspec.inspect.EnumType):
            return [member.value for member in each.cls]
        if isinstance(each, msgspec.inspect.LiteralType):
            return list(each.values)
        kinds = (msgspec.inspect.IntType, "an integer"), (msgspec.inspect.DictType, "an object")
        return [word for kind, word in kinds if isinstance(each, kind)]

    return [str(value) for value in _found_at(kind, path, of)]


def _found_at(kind: object, path: str, of: Callable[[Any], Any]) -> list[Any]:
    """Everything that ``of`` finds in the types at a path such as ``event_hubs[0].name``."""
    types: list[Any] = _members(msgspec.inspect.type_info(kind))
    for step in _STEP.findall(re.sub(r"\[.*?\]", "[", path)):
        inner = []
        for each in types:
            if step == "[":
                inner += [each.item_type] if hasattr(each, "item_type") else []
            else:
                inner += [field.type for field in getattr(each, "fields", ()) if field.encode_name == step]
        types = [member for each in inner for member in _members(each)]
    return [found for each in types for found in of(each)]


def _members(kind: Any) -> list[Any]:
    if isinstance(kind, msgspec.inspect.Metadata):  # what Annotated adds
        return _members(kind.type)
    return list(kind.types) if isinstance(kind, msgspec.inspect.UnionType) else [kind]
