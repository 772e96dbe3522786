"""gymnasium environments with a Discrete action space, as text.

What the agent reads is, in this order: what ``describe`` makes of the observation; the observation itself
where it is text; the rendering as text, if there is one (colours removed, what was highlighted
set in brackets: in FrozenLake that is the agent's cell); the number of a Discrete observation.

Every task is the same environment under another seed. The seed goes to gymnasium's ``reset``, so a task is
deterministic even where the environment draws at random, and ``fork`` replays.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from kolb import plugins
from kolb.envs.base import SPLITS, Replayable
from kolb.errors import RecipeError, nearest
from kolb.types import Environment, Message, StepResult, Task, derive_seed

ACTION_NAMES: Mapping[str, tuple[str, ...]] = {
    "FrozenLake": ("Left", "Down", "Right", "Up"),
    "FrozenLake8x8": ("Left", "Down", "Right", "Up"),
    "CliffWalking": ("Up", "Right", "Down", "Left"),
    "Taxi": ("South", "North", "East", "West", "Pickup", "Dropoff"),
    "Blackjack": ("Stick", "Hit"),
}
"""What gymnasium's own environments call their action numbers, by name without version. Elsewhere: ``actions``, or the numbers."""


@dataclass(frozen=True)
class GymText:
    """Options of a gymnasium environment as text.

    ``kwargs`` go to ``gymnasium.make``. Where they do not say otherwise, ``render_mode = "ansi"`` goes with
    them if the environment renders text, and ``is_slippery = false`` if it is FrozenLake. ``actions`` name the action numbers from 0. ``describe`` is a function
    ``observation -> str``, as ``"package.module.function"`` or ``"file.py:function"``. ``system`` replaces the
    system prompt. ``max_steps = 0`` leaves the limit to gymnasium.
    """

    env_id: str = "FrozenLake-v1"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    actions: tuple[str, ...] = ()
    describe: str = ""
    system: str = ""
    max_steps: int = 0
    train_tasks: int = 1000
    dev_tasks: int = 100
    test_tasks: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        names = [name.lower() for name in self.actions]
        if len(set(names)) != len(names) or not all(names):
            raise RecipeError(f"actions = {list(self.actions)}: each needs a name of its own")
        # Mistakes in the names and in describe show now, not at the first episode.
        _ = self.action_names, self.text_of

    def tasks(self, split: str) -> Sequence[Task]:
        counts = dict(zip(SPLITS, (self.train_tasks, self.dev_tasks, self.test_tasks), strict=True))
        if split not in counts:
            raise RecipeError(f"no split {split!r}{nearest(split, SPLITS)}")
        return [
            Task(f"{self.env_id}-{split}-{i}", seed=derive_seed(self.seed, self.env_id, split, i))
            for i in range(counts[split])
        ]

    def environment(self, task: Task) -> Environment:
        return Replayable(lambda: GymWorld(self, task))

    def expert(self, task: Task) -> list[str]:
        """The shortest way to the most reward, where gymnasium publishes the dynamics (``env.unwrapped.P``)
        and they do not depend on chance. Raises RecipeError otherwise."""
        env = self.make()
        state, _ = env.reset(seed=task.seed)
        model = getattr(env.unwrapped, "P", None)
        env.close()
        if model is None or any(len(t) > 1 for row in model.values() for t in row.values()):
            raise RecipeError(
                f"{self.env_id} has no deterministic transition table to plan in; imitate a JSONL file of "
                "demonstrations instead (environment 'dataset'), or set kwargs.is_slippery = false on FrozenLake"
            )
        values = _values(model)
        replies = []
        is_over = False
        while not is_over and len(replies) < len(model):
            action = max(model[state], key=lambda a: _worth(model[state][a][0], values))
            _, state, _, is_over = model[state][action][0]
            replies.append(self.action_names[action])
        return replies

    @cached_property
    def action_names(self) -> tuple[str, ...]:
        env = self.make()
        count = int(env.action_space.n)
        known = ACTION_NAMES.get(env.spec.name, ())
        env.close()
        names = self.actions or known or tuple(map(str, range(count)))
        if len(names) != count:
            raise RecipeError(
                f"{self.env_id} has {count} actions, but {len(names)} names were given: {list(names)}"
            )
        return names

    @cached_property
    def system_prompt(self) -> str:
        choices = ", ".join(self.action_names)
        return self.system or f"Choose the next action. Answer with one of: {choices}."

    @cached_property
    def text_of(self) -> Callable[[Any], str] | None:
        return plugins.load(self.describe, "kolb.envs", "describe") if self.describe else None

    def make(self) -> Any:
        """A fresh gymnasium environment, checked to be one that can be put into words."""
        gymnasium = import_gymnasium()
        kwargs = dict(self.kwargs)
        try:
            kwargs = {**fitting_kwargs(self.env_id), **kwargs}
            env = gymnasium.make(self.env_id, **kwargs)
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            raise RecipeError(
                f"gymnasium.make({self.env_id!r}) with kwargs = {kwargs} failed: {error}"
            ) from error
        if not isinstance(env.action_space, gymnasium.spaces.Discrete) or env.action_space.start:
            raise RecipeError(
                f"{self.env_id} has the action space {env.action_space}; gym_text takes Discrete(n) from 0. "
                "Register a gymnasium.ActionWrapper that offers a list of actions, or write a small "
                "environment of your own"
            )
        readable = (gymnasium.spaces.Discrete, gymnasium.spaces.Text)
        if not (
            self.describe
            or env.render_mode == "ansi"
            or isinstance(env.observation_space, readable)
        ):
            raise RecipeError(
                f"{self.env_id} observes {env.observation_space}, which is not text; give describe = "
                "'file.py:function' (observation -> str)"
            )
        return env


ENVIRONMENT = GymText


def import_gymnasium() -> Any:
    """gymnasium, which is an optional extra; RecipeError with the way to install it."""
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise RecipeError(
            "environment 'gym_text' needs gymnasium; run: pip install gymnasium"
        ) from error
    return gymnasium


def fitting_kwargs(env_id: str) -> dict[str, Any]:
    """What ``gymnasium.make`` is given for ``env_id`` where the recipe does not say. Raises as it does."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = gymnasium.spec(name)
    maker = spec.entry_point
    maker = load_env_creator(maker) if isinstance(maker, str) else maker
    kwargs: dict[str, Any] = {}
    if spec.name in ("FrozenLake", "FrozenLake8x8"):
        kwargs["is_slippery"] = False
    if "ansi" in getattr(maker, "metadata", {}).get("render_modes", ()):
        kwargs["render_mode"] = "ansi"
    return kwargs


class GymWorld:
    """One episode. A reply without a known action is not sent to gymnasium: nothing happens, a step is gone."""

    def __init__(self, options: GymText, task: Task) -> None:
        self._options = options
        self._seed = task.seed
        self._env = options.make()
        self._steps = 0
        self._text = ""

    async def reset(self) -> tuple[Message, ...]:
        observation, _ = self._env.reset(seed=self._seed)
        self._text = self._describe(observation)
        return ({"role": "system", "content": self._options.system_prompt}, self._shown())

    async def step(self, message: str) -> StepResult:
        self._steps += 1
        names = self._options.action_names
        action = parse_choice(message, names)
        reward, terminated, truncated = 0.0, False, False
        if action is not None:
            observation, reward, terminated, truncated, _ = self._env.step(action)
            self._text = self._describe(observation)
        limit = self._options.max_steps
        truncated = bool(truncated) or (limit > 0 and self._steps >= limit)
        is_invalid = action is None
        return StepResult(
            observation=(self._shown(),),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=truncated and not terminated,
            feedback=f"No valid action in the reply; they are: {', '.join(names)}."
            if is_invalid
            else "",
            info={"action": None if is_invalid else names[action]},
        )

    async def close(self) -> None:
        self._env.close()

    def _shown(self) -> Message:
        return {"role": "user", "content": self._text}

    def _describe(self, observation: Any) -> str:
        if self._options.text_of is not None:
            return str(self._options.text_of(observation))
        if isinstance(observation, str):
            return observation
        if self._env.render_mode == "ansi":
            return plain_text(self._env.render())
        return str(int(observation))


_HIGHLIGHT = re.compile(r"\x1b\[(?:\d+;)*4[0-7](?:;\d+)*m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def plain_text(rendering: str) -> str:
    r"""A terminal rendering without escape codes; a coloured background becomes brackets.

    >>> plain_text("\x1b[41mS\x1b[0mFH")
    '[S]FH'
    """
    return _ESCAPE.sub("", _HIGHLIGHT.sub(r"[\1]", rendering)).strip("\n")


def parse_choice(reply: str, names: Sequence[str]) -> int | None:
    """The number of the action that a reply names last, in any case; between triple backticks if it has any."""
    spans = re.findall(r"```(.*?)```", reply, re.DOTALL)
    longest_first = sorted(names, key=len, reverse=True)
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    found = re.findall(pattern, spans[-1] if spans else reply, re.IGNORECASE)
    lowered = [name.lower() for name in names]
    return lowered.index(found[-1].lower()) if found else None


# ---------------------------------------------------------------------------------------- the expert

_DISCOUNT = 0.99
"""Below 1, so that of two ways to the same reward the shorter one is better."""


def _worth(transition: tuple[float, int, float, bool], values: np.ndarray) -> float:
    _, state, reward, is_over = transition
    return float(reward) + (0.0 if is_over else _DISCOUNT * float(values[state]))


def _values(model: Mapping[int, Mapping[int, Any]]) -> np.ndarray:
    """Value iteration (Bellman optimality, discount 0.99) on a deterministic table, to 1e-9."""
    values = np.zeros(len(model))
    while True:
        new = np.array(
            [max(_worth(t[0], values) for t in model[s].values()) for s in range(len(model))]
        )
        if np.abs(new - values).max() < 1e-9:
            return new
        values = new
