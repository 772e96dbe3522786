"""Tables of plain data to frozen dataclasses and back: the one place where TOML gets its types.

``fill(Evaluation, {"every": 20}, place)`` checks names and types against the annotations of the class;
``plain(evaluation)`` is its inverse; ``to_toml`` writes what ``plain`` gives. A mistake says in which
table it is, what was given, what was expected, and where a misplaced key belongs.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from kolb.errors import RecipeError, nearest

NAMES: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


@dataclass(frozen=True)
class Place:
    """Where in a recipe we are: ``title`` for messages, and which keys live in which other tables."""

    title: str
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def down(self, key: str) -> Place:
        inside = self.title[1:-1] if self.title.startswith("[") else self.title
        return replace(self, title=f"[{inside}.{key}]" if inside else f"[{key}]")

    def unknown(self, key: str, known: Sequence[str]) -> RecipeError:
        """The error for ``key``: where it belongs if another table knows it, else the nearest name."""
        homes = [title for title, names in self.elsewhere.items() if key in names]
        if homes and title_of(self.title) not in map(title_of, homes):
            return RecipeError(f"{self.title}: `{key}` belongs in {' or '.join(homes)}")
        return RecipeError(f"{self.title}: unknown key {key!r}{nearest(key, known)}")

    def wrong(self, key: str, value: Any, expected: str) -> RecipeError:
        return RecipeError(
            f"{self.title}: {key} = {shown(value)} is {kind_of(value)}; expected {expected}"
        )


def title_of(title: str) -> str:
    return title.strip("[]")


def fill(cls: type, table: Any, place: Place, given: Mapping[str, Any] | None = None) -> Any:
    """An instance of ``cls`` from ``table``; ``given`` are fields that the caller has already made."""
    given = given or {}
    values = convert_fields(cls, table, place, hidden=tuple(given))
    missing = [name for name in required_names(cls) if name not in values and name not in given]
    if missing:
        raise RecipeError(f"{place.title}: {', '.join(missing)} must be given")
    return build(cls, {**values, **given}, place)


def overlay(base: Any, table: Any, place: Place) -> Any:
    """``base`` (a frozen dataclass) with the settings of ``table``, nested dataclasses included."""
    if not isinstance(table, Mapping):
        raise RecipeError(f"{place.title}: expected a table, given {shown(table)}")
    nested = {
        key: overlay(getattr(base, key), value, place.down(key))
        for key, value in table.items()
        if isinstance(value, Mapping) and is_dataclass(getattr(base, key, None))
    }
    flat = {key: value for key, value in table.items() if key not in nested}
    values = convert_fields(type(base), flat, place)
    return build(lambda **kw: replace(base, **kw), {**values, **nested}, place)


def build(make: Any, values: Mapping[str, Any], place: Place) -> Any:
    """Calls ``make``; what a constructor refuses with ValueError is the recipe's mistake."""
    try:
        return make(**values)
    except (ValueError, TypeError) as error:
        if isinstance(error, RecipeError) and error.args[0].startswith(("stage ", "[")):
            raise
        raise RecipeError(f"{place.title}: {error}") from error


def convert_fields(
    cls: type, table: Any, place: Place, hidden: tuple[str, ...] = ()
) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise RecipeError(f"{place.title}: expected a table, given {shown(table)}")
    known = {name: hint for name, hint in options_of(cls, place).items() if name not in hidden}
    for key in table:
        if key not in known:
            raise place.unknown(key, [*known, *hidden])
    return {key: convert(value, known[key], key, place) for key, value in table.items()}


def options_of(cls: type, place: Place = Place("")) -> dict[str, Any]:
    """The settings of ``cls`` with their annotations: a dataclass's fields, or ``__init__``'s parameters."""
    source = cls if is_dataclass(cls) else cls.__init__
    try:
        hints = typing.get_type_hints(source)
    except NameError as error:
        raise RecipeError(
            f"{place.title}: an annotation of {cls.__module__}.{cls.__qualname__} cannot be read: {error}"
        ) from error
    if is_dataclass(cls):
        return {f.name: hints[f.name] for f in fields(cls) if f.init}
    parameters = list(inspect.signature(source).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: hints.get(p.name, Any) for p in parameters if p.kind in named}


def required_names(cls: type) -> list[str]:
    parameters = inspect.signature(cls).parameters.values()
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def convert(value: Any, hint: Any, key: str, place: Place) -> Any:
    """``value`` as the annotation ``hint`` wants it; RecipeError with given and expected otherwise."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object or isinstance(hint, typing.TypeVar):
        return value
    if origin in (typing.Union, types.UnionType):
        return convert_union(value, arguments, key, place)
    if origin is typing.Literal:
        if value not in arguments:
            raise RecipeError(
                f"{place.title}: {key} = {shown(value)}{nearest(str(value), map(str, arguments))}"
            )
        return value
    if origin is not None and isinstance(origin, type):
        return convert_container(value, hint, key, place)
    if is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else fill(hint, value, place.down(key))
    return convert_scalar(value, hint, key, place)


def convert_scalar(value: Any, hint: Any, key: str, place: Place) -> Any:
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (int, bool, str) and type(value) is hint:
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        choices = [str(member.value) for member in hint]
        if value not in choices:
            raise RecipeError(
                f"{place.title}: {key} = {shown(value)}{nearest(str(value), choices)}"
            )
        return hint(value)
    if hint in (tuple, list, dict):
        return convert_container(value, hint, key, place)
    raise place.wrong(key, value, expected_name(hint))


def convert_union(value: Any, arguments: Sequence[Any], key: str, place: Place) -> Any:
    choices = [a for a in arguments if a is not type(None)]
    if len(choices) == 1:
        return convert(value, choices[0], key, place)
    for choice in choices:
        try:
            return convert(value, choice, key, place)
        except RecipeError:
            continue
    raise place.wrong(key, value, " or ".join(map(expected_name, choices)))


def convert_container(value: Any, hint: Any, key: str, place: Place) -> Any:
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise place.wrong(key, value, "a table")
        inner = arguments[1] if len(arguments) == 2 else Any
        return {k: convert(v, inner, k, place.down(key)) for k, v in value.items()}
    if not isinstance(value, list | tuple):
        raise place.wrong(key, value, expected_name(hint))
    if origin is tuple and arguments and arguments[-1] is not ...:
        if len(value) != len(arguments):
            raise place.wrong(key, value, f"a list of {len(arguments)}")
        return tuple(convert(v, a, key, place) for v, a in zip(value, arguments, strict=True))
    inner = arguments[0] if arguments else Any
    items = [convert(v, inner, key, place) for v in value]
    return origin(items) if origin in (list, set, frozenset) else tuple(items)


def expected_name(hint: Any) -> str:
    arguments = [a for a in typing.get_args(hint) if a is not ...]
    if hint in NAMES:
        return NAMES[hint]
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list of {expected_name(arguments[0])}" if arguments else "a list"
    return "a table" if is_dataclass(hint) else getattr(hint, "__name__", str(hint))


def kind_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    return NAMES.get(type(value), type(value).__name__)


def shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------- and back


def plain(value: Any) -> Any:
    """``value`` as TOML could hold it: dataclasses become tables, tuples lists, paths text.

    None is left out (TOML has none: an absent key means the default), and so are values that TOML
    cannot hold: those never came from a recipe, so the default brings them back.
    """
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [(f.name, plain(getattr(value, f.name))) for f in fields(value) if f.init]
        return {name: v for name, v in pairs if v is not None}
    if isinstance(value, Mapping):
        return {str(k): p for k, v in value.items() if (p := plain(v)) is not None}
    if isinstance(value, list | tuple):
        return [p for v in value if (p := plain(v)) is not None]
    if isinstance(value, set | frozenset):
        return sorted(p for v in value if (p := plain(v)) is not None)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None
