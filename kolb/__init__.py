"""kolb teaches language-model agents from their own experience.

The public names below are loaded when they are first used: ``import kolb`` itself is instant, and only
what computes imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kolb.errors import KolbError, RecipeError
    from kolb.recipe import load, parse
    from kolb.stage import PolicySpec, Recipe, Stage
    from kolb.types import (
        Completion,
        Episode,
        Group,
        Message,
        StepResult,
        Task,
        Trajectory,
        Turn,
        Update,
    )

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "Episode",
    "Group",
    "KolbError",
    "Message",
    "PolicySpec",
    "Recipe",
    "RecipeError",
    "Stage",
    "StepResult",
    "Task",
    "Trajectory",
    "Turn",
    "Update",
    "load",
    "parse",
]

_MODULES = {
    "kolb.errors": ("KolbError", "RecipeError"),
    "kolb.recipe": ("load", "parse"),
    "kolb.stage": ("PolicySpec", "Recipe", "Stage"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kolb' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "kolb.types")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
