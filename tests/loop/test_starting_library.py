"""``library = "..."`` of a recipe: where a run starts from, what it keeps of it, and what an evaluation reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kolb import recipe as recipes
from kolb.cli.opened import read_source
from kolb.errors import RecipeError
from kolb.libraries import open_library
from kolb.loop import run
from kolb.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "recipes" / "smoke" / "tf_grpo_guess.toml"
HALVING = "Halving: When you hear Higher or Lower, guess the middle of the numbers that are left."


@pytest.fixture
def lessons(tmp_path: Path) -> Path:
    path = tmp_path / "lessons.md"
    path.write_text(f"- **G3** {HALVING}\n")
    return path


def load(*sets: str):
    return recipes.load(SMOKE, sets)


def test_the_first_evaluation_reads_the_lessons_that_the_recipe_names(tmp_path: Path, lessons):
    means = {
        name: [e.mean for _, e in run(recipe, tmp_path / name).evaluations]
        for name, recipe in (("bare", load()), ("taught", load(f"library={lessons}")))
    }
    assert means["bare"][0] < 0.6
    assert means["taught"] == [1.0, 1.0, 1.0, 1.0]


def test_the_run_keeps_what_it_started_from_and_goes_on_from_there(tmp_path: Path, lessons):
    recipe = load(f"library={lessons}", "checkpoints.every=1")
    whole = run(recipe, tmp_path / "whole")
    kept = json.loads((tmp_path / "whole" / "memory" / "000000.json").read_text())
    assert [e["id"] for e in kept["experiences"]] == ["G3"]
    assert kept["experiences"][0]["sources"] == [f"imported from {lessons}"]
    assert whole.library.experiences[0].id == "G3"
    assert open_library(str(tmp_path / "whole")).versions[0].step == 0


def test_a_run_resumes_though_the_file_has_moved(tmp_path: Path, lessons):
    """From the start, where no checkpoint was written, and from a checkpoint."""
    recipe = load(f"library={lessons}", "checkpoints.every=1")
    whole = run(recipe, tmp_path / "whole").library
    lessons.unlink()
    folder = tmp_path / "whole"
    for left in ("000003", "000002", "000001"):
        shutil.rmtree(folder / "checkpoints" / left, ignore_errors=True)
    again = recipes.parse(RunDirectory.open(folder).recipe())
    assert run(again, folder, resume=True).library == whole
    with pytest.raises(RecipeError, match="no library at"):
        load(f"library={lessons}")


def test_a_run_may_start_from_another_run_and_its_lessons_say_so(tmp_path: Path):
    first = tmp_path / "first"
    learnt = run(load("stages.notes.steps=1"), first).library
    second = run(load(f"library={first}", "stages.notes.steps=1"), tmp_path / "second").library
    assert second.experiences[0].text == learnt.experiences[0].text
    inherited = [s for s in second.experiences[0].sources if s.startswith(f"{first} > ")]
    assert inherited == [f"{first} > {s}" for s in learnt.experiences[0].sources]


def test_evaluation_of_a_run_reads_its_checkpoint_and_a_given_library_before_it(
    tmp_path: Path, lessons
):
    folder = tmp_path / "run"
    run(load(f"library={lessons}", "stages.notes.steps=1"), folder)
    own = read_source(str(folder)).library
    assert [e.id for e in own.experiences] == ["G3"]
    other = tmp_path / "other.json"
    other.write_text('["Sleep."]')
    assert (
        read_source(str(folder), sets=[f"library={other}"]).library.experiences[0].text == "Sleep."
    )
    shutil.rmtree(folder / "checkpoints")
    lessons.unlink()
    assert read_source(str(folder)).library == own


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere.json", "no library at nowhere.json"),
        ("7", "library = 7 is a whole number; expected text"),
        (str(ROOT), "is not a run directory"),
    ],
)
def test_a_library_that_is_not_there_is_a_mistake_of_the_recipe(value: str, message: str):
    with pytest.raises(RecipeError) as caught:
        load(f"library={value}")
    assert message in str(caught.value)


def test_a_library_without_lessons_is_no_start(tmp_path: Path):
    run(load("stages.notes.steps=1"), tmp_path / "run")
    with pytest.raises(RecipeError, match="run@0 has no lessons"):
        load(f"library={tmp_path / 'run'}@0")


def test_a_recipe_that_is_parsed_elsewhere_fails_before_it_leaves_a_run(tmp_path: Path, lessons):
    recipe = load(f"library={lessons}")
    lessons.unlink()
    with pytest.raises(RecipeError, match="no library at"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
