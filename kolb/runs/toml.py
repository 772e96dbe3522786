"""TOML out: the half that the standard library leaves to us (``tomllib`` reads).

>>> print(dumps({"steps": 3, "model": {"base": "tiny"}}), end="")
steps = 3

[model]
base = "tiny"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, time
from typing import Any

from kolb.errors import RecipeError

MAX_WIDTH = 96
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {
    "\\": "\\\\",
    '"': '\\"',
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


def dumps(data: Mapping[str, Any]) -> str:
    """``data`` as TOML that ``tomllib.loads`` turns back into an equal dict.

    A key whose value is None is left out, because TOML has no null; tuples become arrays. RecipeError
    names the place of a value that TOML has no form for.
    """
    return "\n".join(_table(data, ())).strip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    items = [(k, v) for k, v in table.items() if v is not None]
    for key, value in items:
        if not _is_table(value) and not _is_table_array(value):
            yield f"{_key(key, path)} = {_value(value, (*path, key), wrap=True)}"
    for key, value in items:
        inner = (*path, key)
        name = ".".join(_key(k, path) for k in inner)
        if _is_table(value):
            # A table of tables needs no header: theirs name it.
            header = () if value and all(map(_is_table, value.values())) else ("", f"[{name}]")
            yield from (*header, *_table(value, inner))
        elif _is_table_array(value):
            for element in value:
                yield from ("", f"[[{name}]]", *_table(element, inner))


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_table_array(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return is_list and all(map(_is_table, value))


def _value(value: Any, path: tuple[str, ...], *, wrap: bool = False) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(float(value)) if isinstance(value, float) else str(int(value))
    if isinstance(value, str):
        return _string(str(value), path, multiline=wrap)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return _array([_value(v, path) for v in value], wrap)
    if _is_table(value):
        items = [(k, v) for k, v in value.items() if v is not None]
        inner = (f"{_key(k, path)} = {_value(v, (*path, k))}" for k, v in items)
        return "{ " + ", ".join(inner) + " }" if items else "{}"
    what = type(value).__name__
    raise RecipeError(f"{'.'.join(map(str, path))} = {value!r} ({what}) has no form in TOML")


def _array(parts: list[str], wrap: bool) -> str:
    line = f"[{', '.join(parts)}]"
    if not wrap or len(line) <= MAX_WIDTH:
        return line
    return "[\n" + "".join(f"  {part},\n" for part in parts) + "]"


def _string(text: str, path: tuple[str, ...], *, multiline: bool = False) -> str:
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise RecipeError(f"{'.'.join(path)} holds half a surrogate pair, which TOML cannot")
    if multiline and "\n" in text:
        return '"""\n' + "\n".join(map(_escape, text.split("\n"))) + '"""'
    return f'"{_escape(text)}"'


def _escape(text: str) -> str:
    text = "".join(ESCAPES.get(c, c) for c in text)
    return UNPRINTABLE.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def _key(key: Any, path: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise RecipeError(f"{'.'.join(path)}: the key {key!r} is not a string, as TOML's keys are")
    return key if BARE_KEY.fullmatch(key) else _string(key, path)
