"""Recipes: what is read, what is refused, and what the refusal says."""

import subprocess
import sys
from pathlib import Path

import pytest

from kolb import recipe
from kolb.errors import CapabilityError, RecipeError
from kolb.runs.toml import dumps


def test_every_table_reaches_its_dataclass_with_defaults_around_it(folder: Path):
    r = recipe.load(folder / "lake.toml")
    stage, agent = r.stages[0], r.policies["agent"]
    assert (r.name, r.seed, r.checkpoints.every, r.checkpoints.keep) == ("lake", 3, 7, 2)
    assert agent.lora is not None
    assert (agent.model.base, agent.lora.rank, agent.lora.alpha) == ("some/model", 8, 32.0)
    assert (agent.optimizer.lr, agent.optimizer.betas) == (1e-4, (0.9, 0.95))
    assert (stage.name, stage.steps, stage.tasks_per_step) == ("rl", 5, 8)
    assert (stage.sampling.max_tokens, stage.sampling.temperature) == (16, 1.0)
    assert stage.evaluation is not None
    assert (stage.evaluation.every, stage.evaluation.episodes) == (2, 100)
    assert r.engine_options == {"answer": "left", "delay_s": 0.0}


def test_options_overlay_the_methods_own_defaults_not_the_classs(folder: Path):
    text = (folder / "lake.toml").read_text()
    (folder / "lake.toml").write_text(text.replace("group_size = 2", ""))
    assert recipe.load(folder / "lake.toml").stages[0].method.group_size == 8
    method = recipe.load(folder / "lake.toml", ["stages.rl.method.inner.depth=5"]).stages[0].method
    assert (method.group_size, method.inner.depth) == (8, 5)


def test_one_policy_takes_every_role_and_learns(folder: Path):
    stage = recipe.load(folder / "lake.toml").stages[0]
    assert (stage.roles, stage.learn) == ({"solver": "agent", "judge": "agent"}, ("agent",))


def test_frozen_policies_play_but_do_not_learn(folder: Path):
    sets = [
        "policies.referee.base=other/model",
        "policies.referee.frozen=true",
        "stages.rl.roles.judge=referee",
        "stages.rl.roles.solver=agent",
    ]
    stage = recipe.load(folder / "lake.toml", sets).stages[0]
    assert stage.roles == {"solver": "agent", "judge": "referee"}
    assert stage.learn == ("agent",)


def test_the_resolved_recipe_reads_back_equal_from_any_folder(folder: Path, tmp_path: Path):
    original = recipe.load(
        folder / "lake.toml", ["stages.rl.steps=2", "environments.guess.hint=0.5"]
    )
    copy = tmp_path / "elsewhere" / "recipe.toml"
    copy.parent.mkdir()
    copy.write_text(dumps(original.resolved))
    assert recipe.load(copy) == original
    assert recipe.parse(original.resolved).resolved == original.resolved


def test_dot_slash_is_beside_the_recipe_and_in_a_set_the_current_directory(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    file = recipe.load(folder / "lake.toml").stages[0].source.file
    assert file == str(folder / "numbers.jsonl")
    sets = ["environments.guess.file=./mine.jsonl"]
    file = recipe.load(folder / "lake.toml", sets).stages[0].source.file
    assert file == str(here / "mine.jsonl")
    sets = ["environments.guess.file=data/mine.jsonl"]
    assert recipe.load(folder / "lake.toml", sets).stages[0].source.file == "data/mine.jsonl"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stages.rl.stepz=2", "[stages.rl]: unknown key 'stepz'; did you mean 'steps'?"),
        ("stages.rl.lr=1", "[stages.rl]: `lr` belongs in [policies.agent.optimizer]"),
        ("policies.agent.rank=1", "[policies.agent]: `rank` belongs in [policies.agent.lora]"),
        ("stages.rl.group_size=1", "[stages.rl]: `group_size` belongs in [stages.method]"),
        ("steps=1", "the recipe: `steps` belongs in [[stages]]"),
        ("sed=1", "the recipe: unknown key 'sed'; did you mean 'seed'?"),
        ("stages.rl.method.group_sise=1", "did you mean 'group_size'?"),
        (
            "stages.rl.method.inner.depth=1.5",
            "[stages.rl.method.inner]: depth = 1.5 is a number; expected a whole",
        ),
        ("stages.rl.steps=two", "[stages.rl]: steps = 'two' is text; expected a whole number"),
        (
            "stages.rl.limits.retries=true",
            "retries = true is true or false; expected a whole number",
        ),
        ("environments.guess.words=warm", "words = 'warm' is text; expected a list of text"),
        ("environments.guess.words=[1]", "words = 1 is a whole number; expected text"),
        ("environments.guess.hint=big", "hint = 'big' is text; expected a number"),
        ("policies.agent.optimizer.betas=[1]", "betas = [1] is a list; expected a list of 2"),
        ("policies.agent.lora.targets=3", "expected text or a list of text"),
        (
            "policies.agent.base=''",
            "give either base (a model's name or folder) or build (a config)",
        ),
        ("policies=3", "policies must be written as [policies.NAME] tables, given 3"),
        ("stages=[]", "the recipe has no [[stages]] table"),
        ("stages.rl.steps=0", "steps must be at least 1, not 0"),
        ("stages.rl.schedule=cosin", "schedule = 'cosin'; did you mean 'cosine'?"),
        ("stages.rl.environment=gues", "there is no environment 'gues'; did you mean 'guess'?"),
        (
            "stages.rl.roles.solvr=agent",
            "[stages.rl.roles]: unknown key 'solvr'; did you mean 'solver'?",
        ),
        ("stages.rl.roles.solver=agnt", "there is no policy 'agnt'; did you mean 'agent'?"),
        ("stages.rl.learn=['agnt']", "learn names 'agnt'; did you mean 'agent'?"),
        ("stages.rl.sampling.top_p=0.9", "set top_p = 1 and top_k = 0"),
        ("engine.anser=x", "[engine]: unknown key 'anser'; did you mean 'answer'?"),
        ("engine.use=scriptd", "no kolb.engines.scriptd"),
        ("engine.use=mylab.engine", "there is no module mylab.engine and no module mylab"),
        ("stages.rl.method.use=json.METHOD", "has no METHOD"),
        ("stages.rl.method.use=json.dumps", "a method is an instance of a frozen dataclass"),
        ("stages.rl.method=3", "say which method it is"),
        ("stages.wrong.steps=1", "no entry 'wrong' in a list of 1; known here: rl"),
        ("seed.x=1", "seed is 3, not a table"),
        ("seed", "write it as path.to.key=value"),
    ],
)
def test_a_mistake_is_refused_in_words(folder: Path, change: str, message: str):
    with pytest.raises(RecipeError) as caught:
        recipe.load(folder / "lake.toml", [change])
    assert message in str(caught.value)


def test_a_second_policy_makes_every_role_explicit(folder: Path):
    with pytest.raises(
        RecipeError, match=r"no policy for role 'solver' of toy; name one under \[stages.roles\]"
    ):
        recipe.load(folder / "lake.toml", ["policies.other.base=x/y"])


def test_a_broken_plugin_shows_the_users_own_line(folder: Path):
    (folder / "guess.py").write_text("import kolb\n\nlimit = 1 / 0\n")
    with pytest.raises(RecipeError) as caught:
        recipe.load(folder / "lake.toml")
    assert "ZeroDivisionError: division by zero" in str(caught.value)
    assert f"{folder / 'guess.py'}, line 3: limit = 1 / 0" in str(caught.value)


def test_what_the_engine_lacks_is_refused_with_a_way_out(folder: Path):
    text = (folder / "engine.py").read_text()
    (folder / "engine.py").write_text(text.replace('"lora", ', ""))
    with pytest.raises(CapabilityError, match="remove `lora`"):
        recipe.load(folder / "lake.toml")


def test_a_method_that_needs_an_expert_is_refused_where_there_is_none(folder: Path):
    text = (folder / "method.py").read_text()
    (folder / "method.py").write_text(
        text.replace('name = "toy"', 'name = "toy"; needs_expert = True')
    )
    with pytest.raises(RecipeError, match=r"environment 'guess' has neither expert\(task\) nor"):
        recipe.load(folder / "lake.toml")
    with (folder / "guess.py").open("a") as file:
        file.write("Guess.expert = lambda self, task: []\n")
    for name in [n for n in sys.modules if n.startswith("kolb_file_guess")]:
        del sys.modules[name]
    assert recipe.load(folder / "lake.toml").stages[0].method.name == "toy"


def test_two_stages_of_one_name_are_refused(folder: Path):
    data = recipe.load(folder / "lake.toml").resolved
    with pytest.raises(RecipeError, match="stages need names of their own"):
        recipe.parse({**data, "stages": data["stages"] * 2})


def test_reading_a_recipe_loads_neither_torch_nor_transformers(folder: Path):
    code = (
        "import sys; from kolb import recipe; recipe.load(sys.argv[1]); import kolb.cli; "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(folder / "lake.toml")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('    name = "toy"\n', "", "has no name; write `name: ClassVar"),
        (
            "    async def collect",
            "    async def colect",
            "has no collect; write `async def collect",
        ),
        ('roles = ("solver", "judge")', 'roles = "solver"', "roles = 'solver' is one text"),
    ],
)
def test_a_method_that_lacks_a_part_is_refused_with_the_line_to_write(
    folder: Path, old: str, new: str, said: str
):
    file = folder / "method.py"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        recipe.load(folder / "lake.toml")
    assert said in str(caught.value)
