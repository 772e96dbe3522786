"""``kolb library``: lessons are read, traced, compared, written down, put to use and measured."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from kolb.libraries import open_library
from kolb.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]
NOTES = f"""# A model that keeps notes.

# The engine is a function.
[engine]
use = "scripted"
answer = "./notes.py:answer"
gives_tokens = false

[policies.agent]
base = "nothing"

[environments.guess]
use = "{ROOT}/examples/guess_number.py"
high = 20
max_steps = 5

[[stages]]
name = "notes"
steps = 3
tasks_per_step = 2
  [stages.method]
  use = "tf_grpo"
  group_size = 2
  gate = "none"
  [stages.evaluation]
  episodes = 6

[checkpoints]
every = 1
"""

ANSWERS = """
import json

FIRST = [
    {"operation": "ADD", "content": "Edges: Keep away from edges.", "from": [1]},
    {"operation": "ADD", "content": "Luck: Go anywhere.", "from": [2]},
]
SECOND = [
    {"operation": "UPDATE", "id": "G0", "content": "Edges: Keep far away from edges.", "from": [1]},
    {"operation": "DELETE", "id": "G1", "from": [2]},
    {"operation": "ADD", "content": "Middle: Guess the middle.", "from": [1, 2]},
]


def answer(messages, seed):
    system, asked = messages[0]["content"], messages[-1]["content"]
    if "<experiences>" in system:
        return "<experiences>Look first.</experiences>"
    if "Several people" in system:
        plan = SECOND if "Luck" in asked else [] if "Middle" in asked else FIRST
        return json.dumps(plan)
    if "```json" in system:
        return json.dumps([{"operation": "ADD", "content": "Look first."}])
    if "<attempt>" in asked:
        return "It walked."
    low, high = 1, 20
    for said, heard in zip(messages[2::2], messages[3::2]) if "Middle" in system else ():
        low = int(said["content"]) + 1 if heard["content"].startswith("Higher") else low
        high = int(said["content"]) - 1 if heard["content"].startswith("Lower") else high
    return str((low + high) // 2 if "Middle" in system else 1 + seed % 20)
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "notes.toml").write_text(NOTES)
    (tmp_path / "notes.py").write_text(ANSWERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(notes: Path, kolb, capsys) -> str:
    assert kolb("run", "notes.toml", "--quiet", "--out", "run") == 0
    capsys.readouterr()
    return "run"


@pytest.fixture
def says(kolb, capsys):
    """``says("show", run)`` gives what ``kolb library show run`` prints; its errors where ``code`` is 2."""

    def printed(*words: object, code: int = 0) -> str:
        assert kolb("library", *words) == code
        out = capsys.readouterr()
        return out.err if code else out.out

    return printed


# --------------------------------------------------------------------------------------- show, diff


def test_show_lists_lessons_with_their_history_and_the_versions(run: str, says):
    shown = says("show", run)
    assert shown.startswith("run: version 2, after step 2: 2 lessons, 10 words\n")
    assert "[G0] Edges: Keep far away from edges.\n" in shown
    assert "    added in version 1; revised in version 2; from 1 group (task@step): " not in shown
    assert "    added in version 1; revised in version 2; from 2 groups (task@step): " in shown
    assert "[G1]" not in shown
    assert "  0  at the start: no lessons\n" in shown
    assert "  1  after step 1: 2 lessons, 8 words (2 added)\n" in shown
    assert "  2  after step 2: 2 lessons, 10 words (1 revised, 1 removed, 1 added)\n" in shown
    assert shown.endswith("why a lesson is there: kolb library show run --why G2\n")


def test_an_earlier_version_is_shown_by_either_spelling(run: str, says):
    assert says("show", run, "--version", 1) == says("show", "run@1")
    assert "[G1] Luck: Go anywhere." in says("show", "run@1")
    assert says("show", "run@0").startswith("run: version 0, at the start: no lessons")


def test_why_shows_attempts_comparisons_and_the_plan_with_the_commands_to_view_them(run, says):
    shown = says("show", run, "--why", "G2")
    assert "version 2, after step 2: added" in shown
    groups = RunDirectory.open(run).episode_index(2)
    tasks = {g["task"] for g in groups}
    assert len(tasks) == 2
    for number, group in enumerate(groups):
        assert f"  {group['kind']}  (kolb view run --step 2 --group {number})" in shown
    assert all(f"step 2 of run, task {t}\n" in shown for t in tasks)
    assert "      0  reward 0  " in shown
    assert "lessons: <experiences>Look first.</experiences>" in shown
    assert '"content": "Middle: Guess the middle."' in shown


def test_why_of_a_revised_lesson_has_both_texts_and_both_steps(run: str, says):
    shown = says("show", run, "--why", "[G0]")
    assert "version 1, after step 1: added" in shown
    assert "version 2, after step 2: revised: Edges: Keep {+far+} away from edges." in shown
    assert "step 1 of run, task " in shown
    assert "step 2 of run, task " in shown


def test_why_of_a_removed_lesson_leads_to_the_plan_that_removed_it(run: str, says):
    shown = says("show", run, "--why", "G1")
    assert shown.startswith("[G1] is not in run@2 any more\n")
    _, _, removal = shown.partition("why it was removed\n")
    assert "the edits of step 2: kolb view run --step 2" in removal
    assert '{"operation": "DELETE", "id": "G1", "from": [2]}' in removal


def test_every_lesson_of_every_version_leads_to_groups_of_the_run(run: str, says):
    for version in (1, 2):
        for lesson in open_library(f"run@{version}").library.experiences:
            shown = says("show", f"run@{version}", "--why", lesson.id)
            assert "attempt  (kolb view run --step" in shown
            assert "cannot be shown" not in shown


def test_diff_marks_words_and_says_why(run: str, says):
    shown = says("diff", run)
    assert shown == says("diff", "run@1", "run@2")
    assert shown.startswith("run@1: 2 lessons, 8 words\nrun@2: 2 lessons, 10 words\n")
    assert "revised [G0]  Edges: Keep {+far+} away from edges.\n    from 1 group" in shown
    assert "removed [G1]  Luck: Go anywhere.\n    kolb library show run@2 --why G1" in shown
    assert "added [G2]  Middle: Guess the middle.\n    from 2 groups" in shown
    assert shown.endswith("1 revised, 1 removed, 1 added; 0 the same\n")


def test_diff_backwards_asks_only_for_what_can_be_answered(run: str, says):
    shown = says("diff", "run@2", "run@1")
    assert "removed [G2]  Middle: Guess the middle.\n\n" in shown
    assert "added [G1]  Luck: Go anywhere.\n    from 1 group" in shown
    assert says("show", "run@1", "--why", "G1")


def test_a_lesson_that_came_back_under_another_id_has_two_histories(run: str, says):
    """A run's version 3 in which G2 was removed and its very words were added as G3."""
    data = json.loads((Path(run) / "memory" / "000002.json").read_text())
    data["experiences"][1]["id"] = "G3"
    data |= {"version": 3, "next_id": 4}
    (Path(run) / "memory" / "000003.json").write_text(json.dumps(data))
    assert "    added in version 3; from 2 groups" in says("show", run)
    gone = says("show", run, "--why", "G2")
    assert gone.startswith("[G2] is not in run@3 any more")
    assert "  version 3, after step 3: removed\n" in gone


def test_diff_of_a_library_with_its_copy_finds_nothing(run: str, says):
    says("export", run, "--format", "json", "--to", "lessons.json")
    assert says("diff", run, "lessons.json").endswith("no difference; 2 the same\n")


# ------------------------------------------------------------------------------------------- export


def test_an_exported_library_shows_the_same_and_still_leads_to_its_run(run: str, says):
    says("export", run, "--format", "json", "--to", "lessons.json")
    copied, original = open_library("lessons.json"), open_library(run)
    assert [(e.id, e.text) for e in copied.library.experiences] == [
        (e.id, e.text) for e in original.library.experiences
    ]
    assert says("export", "lessons.json", "--format", "json") == Path("lessons.json").read_text()
    (here,), (there,) = (
        [line for line in says("show", name).splitlines() if line.startswith("[G2]")]
        for name in (run, "lessons.json")
    )
    assert here == there
    assert "attempt  (kolb view run --step 2 --group 0)" in says(
        "show", "lessons.json", "--why", "G2"
    )


def test_a_run_that_is_gone_is_named(run: str, says):
    says("export", run, "--format", "json", "--to", "lessons.json")
    shutil.rmtree(run)
    shown = says("show", "lessons.json", "--why", "G2")
    assert "step 2 of run, tasks " in shown
    assert "which cannot be shown: run does not exist" in shown


def test_a_prompt_has_the_heading_that_the_attempts_had(notes: Path, kolb, says, capsys):
    own = "--set=stages.notes.method.prompts.heading=Mind this:"
    assert kolb("run", "notes.toml", "--quiet", "--out", "run", own) == 0
    capsys.readouterr()
    assert says("export", "run", "--format", "prompt") == (
        "Mind this:\n[G0]. Edges: Keep far away from edges.\n[G2]. Middle: Guess the middle.\n"
    )


def test_export_writes_nothing_over(run: str, says):
    Path("there.md").write_text("mine")
    assert "is there already" in says("export", run, "--to", "there.md", code=2)
    assert "there is no folder nowhere" in says("export", run, "--to", "nowhere/x.md", code=2)
    assert Path("there.md").read_text() == "mine"


# -------------------------------------------------------------------------------------------- apply


def test_apply_writes_a_recipe_that_starts_from_the_lessons(run: str, says, kolb, capsys):
    shown = says("apply", run, "notes.toml")
    written = Path("notes_with_library.toml").read_text()
    assert "kolb run notes_with_library.toml" in shown
    assert written.startswith(
        '# A model that keeps notes.\n\n# The engine is a function.\n\nlibrary = "./notes_with_library.json"\n\n[eng'
    )
    assert {**tomllib.loads(NOTES), "library": "./notes_with_library.json"} == tomllib.loads(
        written
    )
    assert kolb("eval", "notes_with_library.toml") == 0
    with_lessons = capsys.readouterr().out
    assert kolb("eval", run) == 0
    learnt = capsys.readouterr().out
    assert with_lessons.splitlines() == learnt.splitlines()[:-1]
    assert kolb("eval", "notes.toml") == 0
    assert capsys.readouterr().out != with_lessons


def test_apply_replaces_the_library_that_a_recipe_names(run: str, says):
    says("apply", run, "notes.toml", "--to", "one.toml")
    says("apply", "run@1", "one.toml", "--to", "two.toml")
    data = tomllib.loads(Path("two.toml").read_text())
    assert data == {**tomllib.loads(NOTES), "library": "./two.json"}
    assert open_library("two.json").library.version == 1


def test_apply_refuses_what_would_break_or_be_lost(run: str, says):
    Path("elsewhere").mkdir()
    assert "beside notes.toml" in says(
        "apply", run, "notes.toml", "--to", "elsewhere/x.toml", code=2
    )
    says("apply", run, "notes.toml")
    assert "is there already" in says("apply", run, "notes.toml", code=2)
    assert "that of this run is run/recipe.toml" in says("apply", run, run, code=2)
    assert "no recipe at gone.toml" in says("apply", run, "gone.toml", code=2)
    assert not list(Path("elsewhere").iterdir())


# --------------------------------------------------------------------------------------------- eval


def test_eval_plays_the_same_tasks_with_and_without_the_lessons(run: str, says):
    shown = says("eval", run, "--samples", 2, "--seed", 3, "--to", "ab.json")
    found = json.loads(Path("ab.json").read_text())
    without, with_ = found["sides"]
    assert (without["library"], with_["library"]) == ("no library", "run@2")
    assert list(without["outcomes"]) == list(with_["outcomes"])
    assert [len(row) for row in with_["outcomes"].values()] == [2] * 6
    gains = [
        sum(with_["outcomes"][t]) / 2 - sum(without["outcomes"][t]) / 2 for t in with_["outcomes"]
    ]
    assert found["difference"]["mean"] == pytest.approx(sum(gains) / 6)
    assert found["difference"]["mean"] > 0.3
    assert "6 tasks of split 'test', 2 attempts at each, seed 3" in shown
    assert f"task by task: {found['difference']['mean']:+.3f}  (95% interval " in shown
    assert "run@2 is better on these tasks: the interval does not hold 0." in shown
    assert "With 6 tasks the interval is itself uncertain" in shown


def test_eval_of_a_library_is_the_evaluation_of_its_run(run: str, says, kolb, capsys):
    says("eval", run, "--to", "ab.json")
    (*_, last) = RunDirectory.open(run).metrics()
    assert json.loads(Path("ab.json").read_text())["sides"][1]["mean"] == last["eval/mean"]


def test_eval_says_when_no_difference_can_be_seen(run: str, says):
    Path("empty.md").write_text("- Nothing that anybody reads.\n")
    shown = says("eval", "empty.md", "notes.toml", "--set", "stages.notes.sampling.temperature=0.5")
    assert "No difference can be seen: every task came out the same on both sides." in shown
    assert "better on 0 tasks, worse on 0, equal on 6" in shown


def test_eval_says_that_noise_is_no_difference(run: str, says):
    """An agent that no lesson guides, but whose guesses differ with the length of its prompt."""
    Path("noisy.py").write_text(
        "def answer(messages, seed):\n    return str(1 + (seed + len(messages[0]['content'])) % 20)\n"
    )
    sets = ["--set", "engine.answer=./noisy.py:answer"]
    shown = says("eval", "run@1", "notes.toml", "--episodes", 50, "--samples", 4, *sets)
    assert "No difference can be seen: the interval holds 0. More tasks or samples" in shown
    assert "equal on 50" not in shown
    assert "is itself uncertain" not in shown


def test_two_libraries_of_one_file_are_two(run: str, says):
    rows = [{"domain": d, "text": f"{d} tip"} for d in ("math", "web")]
    Path("both.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert says("diff", "both.jsonl@math", "both.jsonl@web").startswith("both.jsonl@math: 1 lesson")
    assert "imported from both.jsonl@web" in says("show", "both.jsonl@web", "--why", "G0")
    assert "\nboth.jsonl@web " in says(
        "eval", "both.jsonl@math", run, "--against", "both.jsonl@web"
    )


def test_eval_against_another_library_and_on_the_split_to_learn_from(run: str, says):
    shown = says("eval", run, "--against", "run@1", "--split", "train", "--episodes", 4)
    assert "\nrun@1 " in shown
    assert "'train' is the split to learn from" in shown
    assert "that is the same library" in says("eval", run, "--against", "run@2", code=2)


def test_mean_and_pass_over_three_attempts_at_two_tasks(run: str, says):
    """Two tasks, [1, 0, 1] and [0, 0, 0]: mean@3 is a third, pass@3 a half."""
    from kolb.cli.library_evaluating import Side, cells
    from kolb.evaluate import summarise
    from kolb.memory.library import ExperienceLibrary
    from kolb.stage import Evaluation
    from kolb.types import Episode, Group, Task

    rows = {"p1": [1.0, 0.0, 1.0], "p2": [0.0, 0.0, 0.0]}
    groups = [
        Group(Task(t), tuple(Episode(t, n, outcome=o) for n, o in enumerate(row)))
        for t, row in rows.items()
    ]
    spec = Evaluation(samples=3)
    side = Side("x", ExperienceLibrary(), summarise(groups, spec), {})
    assert list(cells(side, spec)) == ["0.333", "0.500", "-", "0 of 6", "-"]


def test_broken_episodes_are_counted_and_are_no_zeros(run: str, says):
    """Where the lesson is read the engine breaks on one episode in six; the others succeed or fail as they do."""
    breaks = 'if "Middle" in system and seed % 6 == 0:\n        raise RuntimeError("down")'
    code = ANSWERS.replace("low, high = 1, 20", f"{breaks}\n    low, high = 1, 20")
    Path("breaking.py").write_text(code)
    limits = "stages.notes.limits={retries = 0, max_failure_share = 1.0}"
    sets = ["--set", limits, "--set", "engine.answer=./breaking.py:answer"]
    shown = says("eval", run, "notes.toml", "--samples", 4, *sets, "--to", "ab.json")
    without, with_ = json.loads(Path("ab.json").read_text())["sides"]
    broken = sum(o is None for row in with_["outcomes"].values() for o in row)
    assert broken == with_["statuses"]["sampler_error"] > 0
    assert "sampler_error" not in without["statuses"]
    assert f"{broken} of 24" in shown


# --------------------------------------------------------------------------------------- the errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nowhere"), "no library at nowhere"),
        (("show", "run@7"), "run has no version '7' of its library; it has 0, 1, 2"),
        (("show", "run", "--version", "7"), "run has no version '7'"),
        (("show", "run", "--why", "G9"), "run@2 has no lesson 'G9'"),
        (("show", "."), "is not a run directory"),
        (("show", "notes.py"), "a library is a run's folder, or a file that ends in .json"),
        (("diff", "lessons.md"), "is a file, which has no versions"),
        (("diff", "run@0"), "run@0 is the first version of its run"),
        (("export", "run@0"), "run@0 has no lessons yet"),
        (("export", "broken.json"), "broken.json cannot be read as lessons"),
        (
            ("eval", "lessons.md"),
            "say on what to try it, as in kolb library eval lessons.md RECIPE",
        ),
        (("eval", "lessons.md", "run", "--stage", "x"), "no stage 'x'"),
    ],
)
def test_mistakes_are_answered_in_words(run: str, says, words, message):
    Path("lessons.md").write_text("- Look.\n")
    Path("broken.json").write_text("{")
    assert message in says(*words, code=2)


def test_a_run_that_learnt_nothing_says_so(here: Path, kolb, capsys, says):
    assert kolb("run", "lake.toml", "--quiet", "--out", "bare") == 0
    capsys.readouterr()
    assert "bare has no library: none of its steps taught a lesson" in says("show", "bare", code=2)


def test_a_damaged_version_is_named(run: str, says):
    (Path(run) / "memory" / "000002.json").write_text('{"schema": 1}')
    assert "memory/000002.json cannot be read" in says("show", run, code=2)


def test_a_method_that_hides_the_library_cannot_be_measured(run: str, says):
    Path("erl.toml").write_text(
        NOTES.replace('use = "tf_grpo"', 'use = "erl"')
        .replace('gate = "none"', "")
        .replace("gives_tokens = false", "")
    )
    assert "erl does not show the library to the attempts" in says("eval", run, "erl.toml", code=2)
