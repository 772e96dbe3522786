"""gymnasium as text: FrozenLake-v1 exactly, describable observations, refusals that name the way out."""

from __future__ import annotations

import asyncio
import builtins

import pytest
from playing import play

gymnasium = pytest.importorskip("gymnasium")

from kolb.envs.gym_text import GymText, fitting_kwargs, parse_choice, plain_text  # noqa: E402
from kolb.errors import RecipeError  # noqa: E402

ANSI = {"render_mode": "ansi"}


def test_frozenlake_brackets_the_agents_cell_and_names_the_actions():
    source = GymText(train_tasks=1)
    (system, user), [after] = play(source, source.tasks("train")[0], ["I go Right!"])
    assert user["content"] == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert "Left, Down, Right, Up" in system["content"]
    assert after.observation[0]["content"] == "  (Right)\nS[F]FF\nFHFH\nFFFH\nHFFG"


@pytest.mark.parametrize("name", ["4x4", "8x8"])
def test_the_expert_reaches_the_goal_of_frozenlake_by_a_shortest_path(name):
    source = GymText(kwargs={"is_slippery": False, "map_name": name, **ANSI}, train_tasks=1)
    [task] = source.tasks("train")
    replies = source.expert(task)
    _, results = play(source, task, replies)
    assert len(replies) == {"4x4": 6, "8x8": 14}[name]
    assert (results[-1].reward, results[-1].terminated) == (1.0, True)


def test_there_is_no_expert_where_the_ice_is_slippery():
    source = GymText(kwargs={"is_slippery": True, **ANSI})
    with pytest.raises(RecipeError, match=r"no deterministic transition table.*is_slippery"):
        source.expert(source.tasks("train")[0])


def test_a_seeded_task_is_deterministic_on_slippery_ice_and_other_seeds_differ():
    source = GymText(kwargs={"is_slippery": True, **ANSI}, train_tasks=8)
    replies = ["Right", "Down"] * 10
    tasks = source.tasks("train")
    assert play(source, tasks[0], replies) == play(source, tasks[0], replies)
    endings = {repr(play(source, task, replies)[1]) for task in tasks}
    assert len(endings) > 1


def test_a_fork_on_slippery_ice_meets_the_same_chance_as_its_original():
    source = GymText(kwargs={"is_slippery": True, **ANSI})

    async def go():
        world = source.environment(source.tasks("train")[3])
        await world.reset()
        await world.step("Down")
        twin = await world.fork()
        for reply in ("Left", "Down", "Left", "Up"):
            ours, theirs = await world.step(reply), await twin.step(reply)
            assert ours == theirs
            if ours.terminated:
                return

    asyncio.run(go())


def test_a_reply_without_an_action_is_not_sent_and_costs_a_step():
    source = GymText(max_steps=2)
    _, results = play(source, source.tasks("train")[0], ["no idea", "none", "Right"])
    assert len(results) == 2
    assert results[1].truncated
    assert not results[1].terminated
    assert results[0].observation[0]["content"].startswith("[S]FFF")
    assert results[0].feedback == "No valid action in the reply; they are: Left, Down, Right, Up."


def test_a_discrete_observation_is_its_number_and_unnamed_actions_are_numbers():
    class Counting(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(10)
        action_space = gymnasium.spaces.Discrete(2)
        render_mode = None

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.n = 3
            return self.n, {}

        def step(self, action):
            self.n += int(action)
            return self.n, float(action), self.n == 5, self.n == 5, {}

    gymnasium.register("KolbCounting-v0", entry_point=Counting)
    source = GymText(env_id="KolbCounting-v0", kwargs={})
    (_, user), results = play(source, source.tasks("train")[0], ["1", "take 0", "1"])
    assert user["content"] == "3"
    assert [r.observation[0]["content"] for r in results] == ["4", "4", "5"]
    assert sum(r.reward for r in results) == 2.0
    assert (results[-1].terminated, results[-1].truncated) == (True, False)


def test_describe_puts_any_observation_into_words(tmp_path):
    (tmp_path / "words.py").write_text("def words(o): return f'pole at {o[2]:.1f}'\n")
    source = GymText(
        env_id="CartPole-v1",
        kwargs={},
        actions=("push left", "push right"),
        describe=f"{tmp_path}/words.py:words",
    )
    (_, user), [after] = play(source, source.tasks("train")[0], ["Push Right"])
    assert user["content"] in ("pole at 0.0", "pole at -0.0")
    assert after.info["action"] == "push right"
    assert after.reward == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_id": "CartPole-v1", "kwargs": {}}, "give describe ="),
        ({"env_id": "Pendulum-v1", "kwargs": {}}, "ActionWrapper"),
        ({"env_id": "FrozenLak-v1"}, "failed"),
        ({"kwargs": {"slippery": False}}, "slippery"),
        ({"actions": ("a", "b")}, "has 4 actions, but 2 names"),
        ({"actions": ("a", "A", "b", "c")}, "a name of its own"),
        ({"describe": "nowhere.py:f"}, "no file"),
    ],
)
def test_what_cannot_be_put_into_words_is_refused_with_the_way_out(options, words):
    with pytest.raises(RecipeError, match=words):
        GymText(**options)


def test_without_gymnasium_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "gymnasium":
            raise ModuleNotFoundError("No module named 'gymnasium'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RecipeError, match=r"pip install gymnasium"):
        GymText()


def test_colours_go_and_only_a_coloured_background_becomes_brackets():
    assert plain_text("\n\x1b[41mS\x1b[0mF\x1b[34;1mR\x1b[0m\n") == "[S]FR"


@pytest.mark.parametrize(
    ("reply", "choice"),
    [("pick up", 2), ("PICK then up", 0), ("```up``` or pick", 0), ("pickup", None), ("", None)],
)
def test_the_last_named_action_counts_and_longer_names_win(reply, choice):
    assert parse_choice(reply, ("up", "pick", "Pick up")) == choice


def test_defaults_fit_the_environment_and_what_is_given_comes_on_top():
    assert fitting_kwargs("FrozenLake-v1") == {"is_slippery": False, "render_mode": "ansi"}
    assert fitting_kwargs("Taxi-v4") == {"render_mode": "ansi"}
    assert fitting_kwargs("Blackjack-v1") == {}
    wide = GymText(kwargs={"map_name": "8x8"}, train_tasks=1)
    assert len(wide.expert(wide.tasks("train")[0])) == 14
    with pytest.raises(RecipeError, match=r"Blackjack-v1 observes .*give describe ="):
        GymText(env_id="Blackjack-v1")
    with pytest.raises(RecipeError, match=r"with kwargs = .*'slippery': 1"):
        GymText(kwargs={"slippery": 1})
