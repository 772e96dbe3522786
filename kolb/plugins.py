"""Names to objects: ``grpo``, ``mylab.foo``, ``mylab.foo.METHOD``, ``./foo.py`` and ``foo.py:METHOD``.

There is no registry: a short name is a module of kolb, a dotted name is a module or an attribute of one,
and a name with ``.py`` is a file. Relative files are looked up from the current directory (a recipe turns
``./`` into its own folder before it comes here).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from kolb.errors import LOCAL, RecipeError, check_local, nearest

NAME = re.compile(r"\w+")
DOTTED = re.compile(r"\w+(\.\w+)+")
FILE = re.compile(r"(?P<path>.+\.py)(:(?P<name>\w+))?")


def load(use: str, package: str, attribute: str) -> Any:
    """The object that ``use`` names: ``attribute`` of the module, unless the name itself says which.

    ``load("grpo", "kolb.methods", "METHOD")`` is ``kolb.methods.grpo.METHOD``.
    """
    if file := FILE.fullmatch(use):
        return attribute_of(load_file(Path(file["path"])), file["name"] or attribute, use)
    if NAME.fullmatch(use):
        return attribute_of(load_builtin(use, package), attribute, use)
    if not DOTTED.fullmatch(use):
        raise RecipeError(
            f"{use!r}: expected a name, package.module, package.module.NAME or file.py:NAME"
        )
    return load_dotted(use, attribute)


def load_builtin(name: str, package: str) -> ModuleType:
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    known = [
        m.name for m in found if not m.ispkg and m.name not in ("base", "checker", "selection")
    ]
    if name not in known:
        raise RecipeError(
            f"no {package}.{name}{nearest(name, known)} (yours: a dotted name or a file.py)"
        )
    return import_module(f"{package}.{name}", name)


def load_dotted(use: str, attribute: str) -> Any:
    module, _, last = use.rpartition(".")
    with_path()
    if find_module(use):
        return attribute_of(import_module(use, use), attribute, use)
    if not find_module(module):
        raise RecipeError(
            f"{use!r}: there is no module {use} and no module {module}; "
            f"looked in the current directory ({Path.cwd()}) and in the installed packages"
        )
    return attribute_of(import_module(module, use), last, use)


def load_file(path: Path) -> ModuleType:
    """The file as a module of its own; the same file gives the same module."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise RecipeError(
            f"no file {path}; relative names start from the current directory, "
            "in a recipe ./ starts from the recipe's folder"
        )
    name = f"kolb_file_{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # boundary: the user's module may raise anything
        del sys.modules[name]
        raise broken(str(path), error) from error
    return module


def import_module(name: str, use: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # boundary: the user's module may raise anything
        raise broken(use, error) from error


def broken(use: str, error: Exception) -> RecipeError:
    """Points at the last line outside the import machinery: the user's own."""
    if isinstance(error, ModuleNotFoundError) and error.name in LOCAL:
        check_local(use)
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}"
    else:
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if "importlib" not in f.filename and f.filename != __file__
        ]
        where = (
            f"{frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line}" if frames else use
        )
    return RecipeError(f"{use} cannot be imported: {type(error).__name__}: {error}\n  at {where}")


def attribute_of(module: ModuleType, name: str, use: str) -> Any:
    if not hasattr(module, name):
        own = [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        known = [n for n in own if not n.startswith("_")]
        where = getattr(module, "__file__", None) or module.__name__
        raise RecipeError(f"{use!r}: {where} has no {name}{nearest(name, known)}")
    return getattr(module, name)


def find_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
    except Exception as error:  # boundary: finding a.b imports a
        raise broken(name, error) from error


def with_path() -> None:
    """Dotted names of the user's own modules start from the current directory, as ``python -m`` does."""
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
