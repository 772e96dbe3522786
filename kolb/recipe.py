"""A recipe: strict TOML in, a validated Recipe of Stages out.

Every mistake surfaces here, before any weight loads: unknown and misplaced keys, wrong types, roles
without a policy, a method that needs what the engine lacks. ``Recipe.resolved`` is the whole recipe as
plain data with its defaults filled in; parsing it again gives an equal Recipe.

Paths have one rule: text that starts with ``./`` or ``../`` is a file beside the recipe (in ``--set``: in
the current directory) and becomes absolute here; everything else is passed on as it is written.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kolb.checks import check_recipe, open_engine
from kolb.errors import RecipeError, nearest
from kolb.libraries import starting_library
from kolb.models.prepare import trainings
from kolb.overrides import apply_sets, copied
from kolb.readers import TOP_KEYS, StageReader, engine_options, homes, options, plug, read_policy
from kolb.stage import CheckpointSpec, PolicySpec, Recipe, Stage
from kolb.tables import Place, fill, plain


def load(path: str | Path, sets: Sequence[str] = ()) -> Recipe:
    """The Recipe in the TOML file ``path``, changed by ``sets`` (``"stages.rl.steps=2"``)."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"no recipe at {path} (looked from {Path.cwd()})") from None
    except IsADirectoryError:
        raise RecipeError(f"{path} is a folder; a recipe is a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from None
    data = {"name": path.stem, **anchored(data, path.parent)}
    recipe = parse(anchored(apply_sets(spelled_out(data), sets), Path.cwd()))
    starting_library(recipe)  # so that a mistake shows now
    return recipe


def parse(data: Mapping[str, Any]) -> Recipe:
    """The Recipe that ``data`` (a TOML document as a dict) describes. Raises RecipeError."""
    data = spelled_out(data)
    for key in ("policies", "environments", "stages"):
        if not data.get(key):
            title = "[[stages]]" if key == "stages" else f"[{key}.NAME]"
            raise RecipeError(f"the recipe has no {title} table")
    sources = {
        n: plug(t, "environment", f"[environments.{n}]") for n, t in data["environments"].items()
    }
    methods = [plug(t.get("method"), "method", "[stages.method]") for t in data["stages"]]
    place = Place("", homes(data, sources, methods))
    for key in data:
        if key not in TOP_KEYS:
            raise replace(place, title="the recipe").unknown(key, TOP_KEYS)
    policies = {
        n: read_policy(t, place.down("policies").down(n)) for n, t in data["policies"].items()
    }
    environments = {
        n: fill(sources[n], options(t), place.down("environments").down(n))
        for n, t in data["environments"].items()
    }
    reader = StageReader(place, policies, environments)
    stages = [
        reader.read(i, t, m) for i, (t, m) in enumerate(zip(data["stages"], methods, strict=True))
    ]
    given = {
        "policies": policies,
        "stages": tuple(stages),
        "engine": data["engine"]["use"],
        "engine_options": engine_options(data["engine"], place.down("engine")),
        "checkpoints": fill(CheckpointSpec, data["checkpoints"], place.down("checkpoints")),
    }
    rest = {k: v for k, v in data.items() if k not in (*given, "environments")}
    recipe = fill(Recipe, rest, replace(place, title="the recipe"), {**given, "resolved": {}})
    recipe = replace(recipe, resolved=resolved(recipe, data, environments))
    check(recipe)
    return recipe


def spelled_out(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with its short forms written out (``method = "grpo"`` is ``method.use = "grpo"``)."""
    data = {"name": "recipe", "engine": "torch_local", "checkpoints": {}, **copied(data)}
    expect(data, dict, "policies", "environments", "checkpoints")
    expect(data, list, "stages")
    data["engine"] = table_of(data["engine"])
    data["environments"] = {n: table_of(t) for n, t in data.get("environments", {}).items()}
    for stage in data.get("stages", []):
        if not isinstance(stage, dict):
            raise RecipeError("stages must be tables: write [[stages]]")
        if "method" in stage:
            stage["method"] = table_of(stage["method"])
        if isinstance(stage.get("terms"), list):
            stage["terms"] = [table_of(t) for t in stage["terms"]]
    return data


def table_of(value: Any) -> Any:
    return {"use": value} if isinstance(value, str) else value


def expect(data: Mapping[str, Any], kind: type, *keys: str) -> None:
    for key in keys:
        if not isinstance(data.get(key, kind()), kind):
            title = (
                f"[[{key}]]"
                if kind is list
                else f"[{key}.NAME]"
                if key != "checkpoints"
                else f"[{key}]"
            )
            raise RecipeError(f"{key} must be written as {title} tables, given {data[key]!r}")


def anchored(value: Any, folder: Path) -> Any:
    """``value`` with every text that starts with ./ or ../ made an absolute path from ``folder``."""
    if isinstance(value, Mapping):
        return {k: anchored(v, folder) for k, v in value.items()}
    if isinstance(value, list):
        return [anchored(v, folder) for v in value]
    if isinstance(value, str) and value.startswith(("./", "../")):
        return str((folder / value).resolve())
    return value


# ------------------------------------------------------------------------------------- the checks


def check(recipe: Recipe) -> None:
    """What no single table can know. Raises RecipeError or CapabilityError."""
    for stage in recipe.stages:
        has_expert = hasattr(stage.source, "expert") or hasattr(stage.source, "demonstration")
        if getattr(stage.method, "needs_expert", False) and not has_expert:
            raise RecipeError(
                f"[stages.{stage.name}]: {stage.method.name} learns from an expert, and environment "
                f"{stage.environment!r} has neither expert(task) nor demonstration(task)"
            )
    environments = [stage.environment for stage in recipe.stages]
    for policy, training in trainings(recipe).items():
        if training.train_on not in environments:
            raise RecipeError(
                f"[policies.{policy}.tokenizer]: train_on = {training.train_on!r} is no environment of a stage"
                f"{nearest(training.train_on, environments)}"
            )
    engine = open_engine(recipe)
    try:
        check_recipe(recipe, engine)
    finally:
        engine.close()


# ------------------------------------------------------------------------------------- and back


def resolved(
    recipe: Recipe, data: Mapping[str, Any], environments: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole recipe as plain data, defaults filled in: ``parse`` of it gives an equal Recipe."""
    used = data["environments"]
    return {
        "name": recipe.name,
        "seed": recipe.seed,
        "record_episodes": recipe.record_episodes,
        "library": recipe.library,
        "trackers": list(recipe.trackers),
        "engine": {"use": recipe.engine, **plain(recipe.engine_options)},
        "checkpoints": plain(recipe.checkpoints),
        "policies": {
            name: policy_table(spec, data["policies"][name])
            for name, spec in recipe.policies.items()
        },
        "environments": {
            name: {"use": used[name]["use"], **plain(source)}
            for name, source in environments.items()
        },
        "stages": [stage_table(s, t) for s, t in zip(recipe.stages, data["stages"], strict=True)],
    }


def policy_table(spec: PolicySpec, given: Mapping[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in plain(spec).items() if k != "model"}
    tokenizer = {"tokenizer": copied(given["tokenizer"])} if "tokenizer" in given else {}
    return {**plain(spec.model), **tokenizer, **rest}


def stage_table(stage: Stage, given: Mapping[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in plain(stage).items() if k not in ("method", "source", "terms")}
    terms = zip(stage.terms, given.get("terms", ()), strict=True)
    return {
        **rest,
        "method": {"use": given["method"]["use"], **plain(stage.method)},
        "terms": [{"use": t["use"], **plain(term)} for term, t in terms],
    }
