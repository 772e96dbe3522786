"""The tree on the page of errors is the tree of classes."""

from __future__ import annotations

import re

from kolb import errors

LINE = re.compile(
    r"^(?P<branch>[│ ]*[├└]── )?(?P<name>\w+)(?: +\((?P<builtin>\w+)\))? *(?P<says>.*)$"
)


def drawn() -> dict[str, tuple[str, str]]:
    """Class name -> (its parent in the drawing, the builtin error that it also is)."""
    assert errors.__doc__ is not None
    block = errors.__doc__.split("\n\n")[1]
    found: dict[str, tuple[str, str]] = {}
    path: list[str] = []
    for line in block.splitlines():
        match = LINE.match(line)
        assert match, f"not a line of the tree: {line!r}"
        depth = len(match["branch"] or "") // 4
        path = [*path[:depth], match["name"]]
        assert len(path) == depth + 1, f"{line!r} hangs from nothing"
        assert match["says"] or depth == 0, f"{line!r} does not say what it is for"
        found[match["name"]] = (path[-2] if depth else "", match["builtin"] or "")
    return found


def defined() -> dict[str, tuple[str, str]]:
    """The same of the classes in the module."""
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    found: dict[str, tuple[str, str]] = {}
    for c in classes:
        ours = [b.__name__ for b in c.__bases__ if b in classes]
        builtin = [b.__name__ for b in c.__bases__ if b not in classes and b is not Exception]
        assert len(ours) <= 1
        found[c.__name__] = ("".join(ours), "".join(builtin))
    return found


def test_the_drawn_tree_is_the_tree_of_classes_in_the_same_order() -> None:
    assert list(drawn().items()) == list(defined().items())


def test_every_error_is_a_kolb_error_and_says_in_its_docstring_when_it_is_raised() -> None:
    for name in drawn():
        kind = getattr(errors, name)
        assert issubclass(kind, errors.KolbError)
        assert kind.__doc__


def test_what_breaks_outside_has_a_boundary_of_its_own() -> None:
    kinds = [
        k
        for k in vars(errors).values()
        if isinstance(k, type) and issubclass(k, errors.BoundaryError)
    ]
    boundaries = [k.boundary for k in kinds]
    assert len(set(boundaries)) == len(boundaries) == 5
