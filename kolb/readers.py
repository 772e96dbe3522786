"""The tables of a recipe, one reader each: policies, engine, environments, stages.

``kolb.recipe`` calls them in order. Plug-ins are loaded here; nothing is built that costs time or memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from kolb import plugins
from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec
from kolb.errors import RecipeError, nearest
from kolb.models.prepare import TokenizerTraining
from kolb.stage import CheckpointSpec, Evaluation, Limits, PolicySpec, Stage
from kolb.tables import Place, convert, convert_fields, fill, options_of, overlay, plain
from kolb.types import SamplingParams

TOP_KEYS = (
    *("name", "seed", "engine", "policies", "environments", "stages"),
    *("checkpoints", "trackers", "record_episodes", "library"),
)
STAGE_KEYS = tuple(f.name for f in fields(Stage) if f.name != "source")
MODEL_KEYS = tuple(f.name for f in fields(ModelSpec))
POLICY_KEYS = (*MODEL_KEYS, "frozen", "lora", "optimizer")
SHARED_TABLES: Mapping[str, type] = {
    "[policies.NAME.lora]": LoraSpec,
    "[policies.NAME.optimizer]": OptimizerSpec,
    "[stages.sampling]": SamplingParams,
    "[stages.evaluation]": Evaluation,
    "[stages.limits]": Limits,
    "[checkpoints]": CheckpointSpec,
}


def options(table: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in table.items() if k != "use"}


PLUGS = {
    "engine": ("kolb.engines", "ENGINE"),
    "environment": ("kolb.envs", "ENVIRONMENT"),
    "method": ("kolb.methods", "METHOD"),
    "term": ("kolb.terms", "TERM"),
}


MEMBERS: Mapping[str, Mapping[str, str]] = {
    "method": {
        "name": 'name: ClassVar[str] = "mine"',
        "roles": 'roles: ClassVar[tuple[str, ...]] = ("solver",)',
        "needs": 'needs: ClassVar[frozenset[str]] = frozenset({"sample", "train"})',
        "terms": "terms: ClassVar[tuple[Any, ...]] = (PolicyGradient(),)",
        "collect": "async def collect(self, tasks, world)",
        "credit": "def credit(self, groups, state)",
    },
    "environment": {
        "tasks": "def tasks(self, split)",
        "environment": "def environment(self, task)",
    },
}
"""What every plug-in of a kind has, and how it is written."""


def plug(table: Any, kind: str, title: str) -> Any:
    """What ``table["use"]`` names: a Method, or the class of an environment, engine or term."""
    if not isinstance(table, Mapping) or not isinstance(table.get("use"), str):
        raise RecipeError(f'{title}: say which {kind} it is: use = "NAME"')
    package, attribute = PLUGS[kind]
    try:
        found = plugins.load(table["use"], package, attribute)
    except RecipeError as error:
        raise RecipeError(f"{title}: {error}") from error
    instances = {
        "method": "an instance of a frozen dataclass",
        "term": "a frozen dataclass or an instance",
    }
    is_class = kind != "method" and isinstance(found, type)
    is_instance = kind in instances and is_frozen_instance(found)
    if not (is_class or is_instance):
        wanted = instances.get(kind, "a class")
        raise RecipeError(f"{title}: {table['use']} gives {found!r}; a {kind} is {wanted}")
    check_members(found, kind, f"{title}: {table['use']}")
    return found


def check_members(found: Any, kind: str, where: str) -> None:
    """RecipeError for a method or an environment that lacks something which every one of them has."""
    missing = [name for name in MEMBERS.get(kind, {}) if not hasattr(found, name)]
    if missing:
        raise RecipeError(
            f"{where} has no {', '.join(missing)}; "
            + "; ".join(f"write `{MEMBERS[kind][name]}`" for name in missing)
        )
    for name in ("roles", "needs") if kind == "method" else ():
        if isinstance(getattr(found, name), str):
            raise RecipeError(
                f"{where}: {name} = {getattr(found, name)!r} is one text; write `{MEMBERS[kind][name]}`"
            )


def is_frozen_instance(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def homes(
    data: Mapping[str, Any], sources: Mapping[str, type], methods: Sequence[Any]
) -> dict[str, Sequence[str]]:
    """Which keys live in which table, so that a misplaced key can be told where it belongs."""
    policy = next(iter(data["policies"])) if len(data["policies"]) == 1 else "NAME"
    found: dict[str, Sequence[str]] = {
        "the top of the recipe": TOP_KEYS,
        f"[policies.{policy}]": POLICY_KEYS,
        "[[stages]]": STAGE_KEYS,
    }
    for title, cls in SHARED_TABLES.items():
        found[title.replace("NAME", policy)] = list(options_of(cls))
    for name, source in sources.items():
        found[f"[environments.{name}]"] = list(options_of(source))
    for method in methods:
        found["[stages.method]"] = [*found.get("[stages.method]", ()), *options_of(type(method))]
    return found


def read_policy(table: Any, place: Place) -> PolicySpec:
    """``[policies.NAME]``: the fields of ModelSpec inline, ``frozen``, and the tables lora and optimizer."""
    if not isinstance(table, Mapping):
        raise RecipeError(f"{place.title}: expected a table, given {table!r}")
    for key in table:
        if key not in POLICY_KEYS:
            raise place.unknown(key, POLICY_KEYS)
    model = {k: v for k, v in table.items() if k in MODEL_KEYS}
    training = model.get("tokenizer") if isinstance(model.get("tokenizer"), Mapping) else None
    if training is not None:
        fill(TokenizerTraining, training, place.down("tokenizer"))
        model["tokenizer"] = ""
    if bool(model.get("base")) == bool(model.get("build")):
        raise RecipeError(
            f"{place.title}: give either base (a model's name or folder) or build (a config)"
        )
    if model.get("build") and training is None and not model.get("tokenizer"):
        raise RecipeError(
            f"{place.title}: a policy that is built from nothing needs a tokenizer: a name or folder, "
            'or { train_on = "ENVIRONMENT", vocab_size = 512 }'
        )
    rest = {k: v for k, v in table.items() if k not in MODEL_KEYS}
    return fill(PolicySpec, rest, place, {"model": fill(ModelSpec, model, place)})


def engine_options(table: Mapping[str, Any], place: Place) -> dict[str, Any]:
    cls = plug(table, "engine", place.title)
    return {**defaults_of(cls), **convert_fields(cls, options(table), place)}


def defaults_of(cls: type) -> dict[str, Any]:
    """The defaults of the constructor of ``cls``, those that TOML can say."""
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if plain(p.default) is not None}


@dataclass(frozen=True)
class StageReader:
    """Turns ``[[stages]]`` tables into Stages, given what the recipe has named so far."""

    place: Place
    policies: Mapping[str, PolicySpec]
    environments: Mapping[str, Any]

    def read(self, index: int, table: Mapping[str, Any], method: Any) -> Stage:
        name = table.get("name", f"stage{index + 1}")
        place = self.place.down("stages").down(str(name))
        method = overlay(method, options(table["method"]), place.down("method"))
        environment = self.environment(table, place)
        roles = self.roles(table, method, place)
        learning = [p for p in dict.fromkeys(roles.values()) if not self.policies[p].frozen]
        learn = table.get("learn", learning if "train" in method.needs else [])
        given = {
            "name": name,
            "method": method,
            "source": self.environments[environment],
            "environment": environment,
            "roles": roles,
            "learn": tuple(learn),
            "terms": tuple(self.terms(table, place)),
        }
        return fill(Stage, {k: v for k, v in table.items() if k not in given}, place, given)

    def environment(self, table: Mapping[str, Any], place: Place) -> str:
        if "environment" not in table and len(self.environments) == 1:
            return next(iter(self.environments))
        if "environment" not in table:
            raise RecipeError(
                f"{place.title}: environment must be given; known: {', '.join(self.environments)}"
            )
        return self.named(table["environment"], self.environments, "environment", place)

    def named(self, name: Any, known: Mapping[str, Any], what: str, place: Place) -> str:
        if not isinstance(name, str):
            raise place.wrong(what, name, "text")
        if name not in known:
            raise RecipeError(f"{place.title}: there is no {what} {name!r}{nearest(name, known)}")
        return name

    def roles(self, table: Mapping[str, Any], method: Any, place: Place) -> dict[str, str]:
        """Every role's policy: the only policy by default; with several, each role must be given."""
        given = convert(table.get("roles", {}), Mapping[str, str], "roles", place)
        for role, policy in given.items():
            if role not in method.roles:
                raise place.down("roles").unknown(role, method.roles)
            self.named(policy, self.policies, "policy", place.down("roles"))
        default = dict.fromkeys(method.roles, next(iter(self.policies)))
        return {**default, **given} if len(self.policies) == 1 else given

    def terms(self, table: Mapping[str, Any], place: Place) -> list[Any]:
        found = []
        for i, term in enumerate(convert(table.get("terms", []), list[Any], "terms", place)):
            here = place.down("terms").down(str(i))
            named = plug(term, "term", here.title)
            read = fill if isinstance(named, type) else overlay
            found.append(read(named, options(term), here))
        return found
