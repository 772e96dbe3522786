"""What the terminal viewer shows, and that what models say cannot harm the terminal."""

import io

import pytest
from fabricated_runs import attempt, broken, group
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from kolb.errors import RunDirectoryError
from kolb.runs.directory import RunDirectory
from kolb.types import Episode, Trajectory, Turn
from kolb.view import terminal
from kolb.view.render import message_text, safe, shortened

EVIL = "[bold]x[/bold] [/nope] [link=http://a]y[/link] \x1b[31mred\x1b[0m\x07 \x9b2J \u202eback \r over"


@pytest.fixture
def run(tmp_path):
    recipe = {
        "name": "lake",
        "stages": [
            {"name": "warm", "method": "imitation", "steps": 1},
            {"name": "rl", "method": {"use": "erl"}, "steps": 40},
        ],
    }
    with RunDirectory.create(tmp_path / "lake-0001", recipe) as run:
        run.record(1, [], {"loss/ce": 2.0}, stage="warm")
        run.record(2, [group(attempt(0), broken(1))], {"reward/mean": 0.25}, stage="rl")
        evil = group(attempt(0, text=EVIL), attempt(1, reward=0.0), kind="[red]")
        run.record(
            3, [group(attempt(0)), evil], {"reward/mean": 0.75, "a/b": float("nan")}, stage="rl"
        )
        run.log("step 2: a group was [dropped]")
        yield run


def shown(show, *args, width=100, colour=False, **options):
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    show(*args, console=console, **options)
    return out.getvalue()


def line_with(text, word):
    (line,) = [line for line in text.splitlines() if word in line]
    return " ".join(line.split())


def test_the_summary_tells_stages_metrics_failures_and_the_log(run):
    text = shown(terminal.summary, run.path)
    assert line_with(text, "imitation") == "warm imitation 1/1 loss 2 → 2 ▁"
    assert line_with(text, "erl") == "rl erl 2/40 reward 0.25 → 0.75 ▁█"
    assert "• reward/mean" in text
    assert line_with(text, "metrics of step") == "metrics of step 3"
    assert line_with(text, "a/b") == "a/b - reward/mean 0.75"
    assert "1 of 5 episodes broke: 1 env_error" in text
    assert "the newest is step 2, group 0, episode 1: step raised: [red]no[/red]" in text
    assert "a group was [dropped]" in text


def test_an_experts_reward_is_neither_the_course_of_a_stage_nor_a_point_of_the_curve(tmp_path):
    recipe = {"name": "x", "stages": [{"name": n, "steps": 2} for n in ("warm", "rl")]}
    given, own = {"reward/mean": 1.0, "tokens/sampled": 0}, {"tokens/sampled": 9}
    with RunDirectory.create(tmp_path / "r", recipe) as run:
        run.record(1, [], {**given, "loss/ce": 2.0, "eval_start/mean": 0.01}, stage="warm")
        run.record(2, [], {**given, "loss/ce": 1.0, "eval/mean": 0.03}, stage="warm")
        run.record(3, [], {**own, "reward/mean": 0.05}, stage="rl")
        run.record(4, [], {**own, "reward/mean": 0.25}, stage="rl")
        text = shown(terminal.summary, run)
    assert line_with(text, "warm") == "warm - 2/2 eval 0.01 → 0.03 ▁█"
    assert line_with(text, "rl") == "rl - 2/2 reward 0.05 → 0.25 ▁█"
    assert line_with(text, "0.25 │").startswith("0.25 │")
    assert "   1 │" not in text


def test_an_empty_run_says_so(tmp_path):
    with RunDirectory.create(tmp_path / "r", {"name": "x"}) as run:
        assert "no step is recorded yet" in shown(terminal.summary, run)
        with pytest.raises(RunDirectoryError, match="has no episodes yet"):
            shown(terminal.list_groups, run)


def test_groups_are_listed_with_outcomes_and_broken_episodes(run):
    assert line_with(shown(terminal.list_groups, run, 2), "lake-7") == (
        "0 attempt 2 1 1 - 2 1 env_error lake-7"
    )
    assert "[red]" in shown(terminal.list_groups, run)


def test_a_group_shows_a_line_per_episode(run):
    text = shown(terminal.show_group, run, 2, 0)
    assert line_with(text, "first 1") == "0 ok 1 2 2 first 1 [right] it is"
    assert line_with(text, "env_error") == "1 env_error - 0 0 step raised: [red]no[/red]"


def test_an_episode_is_shown_turn_by_turn(run):
    text = shown(terminal.show_episode, run, 3, 0, 0)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows[0] == "step 3 · group 0 · episode 0 of 1 · task lake-7"
    for row in (
        "system Be brief.",
        "user Go?",
        "says [right] it is",
        "feedback you moved",
        "says 7",
        "turn 1 of 1 · 2 tokens, sampled by version 3",
        "turn 1 of 1 · text without tokens, given",
    ):
        assert row in rows, row
    assert any(r.startswith("solver (first) · policy agent · learns · reward 1 ─") for r in rows)
    assert any(r.startswith("judge · policy frozen · does not learn · reward - ─") for r in rows)


def test_a_broken_episode_shows_boundary_message_and_traceback(run):
    text = shown(terminal.show_episode, run, 2, 0, 1)
    for word in (
        "status env_error",
        "boundary",
        "environment",
        "step raised: [red]no[/red]",
        "line 1",
    ):
        assert word in text, word


def test_what_a_model_says_is_shown_literally_and_harmlessly(run):
    text = shown(terminal.show_episode, run, 3, 1, 0, width=400)
    visible = (
        "[bold]x[/bold] [/nope] [link=http://a]y[/link] ␛[31mred␛[0m␇ \\u009b2J \\u202eback ␍ over"
    )
    assert visible in text
    assert not set("\x1b\x07\x9b\u202e\r") & set(text)


def test_tokens_are_coloured_by_probability_and_underlined_where_they_are_learnt(run):
    plain = shown(terminal.show_episode, run, 3, 0, 0, tokens=True)
    assert "5/90 6/8" in plain
    assert line_with(plain, "3 seen") == "3 seen 1 2 3"
    coloured = shown(terminal.show_episode, run, 3, 0, 0, tokens=True, colour=True)
    assert "\x1b[4;32m5/90\x1b[0m" in coloured
    assert "\x1b[4;31m6/8\x1b[0m" in coloured


def test_tokens_are_spelled_by_the_tokenizer_that_was_trained_for_the_run(run):
    vocabulary = {"<unk>": 0, "a": 1, "b": 2, "c d": 3, "[x]": 5, "e\n": 6}
    home = run.path / "models" / "agent"
    home.mkdir(parents=True)
    Tokenizer(WordLevel(vocabulary, "<unk>")).save(str(home / "tokenizer.json"))
    text = shown(terminal.show_episode, run, 3, 0, 0, tokens=True)
    assert "[x]/90 e⏎/8" in text
    assert line_with(text, "3 seen") == "3 seen a b c␣d"
    assert "green from 90, cyan from 50, yellow from 10, red from 0" in " ".join(text.split())


def test_only_a_later_turn_says_that_it_starts_a_new_segment(tmp_path):
    turn = attempt(0).trajectories[0].turns[0]
    both = Episode("lake-7", 0, (Trajectory("solver", "agent", (turn, turn)),))
    with RunDirectory.create(tmp_path / "r", {}) as run:
        run.record(1, [group(both)], {})
        text = shown(terminal.show_episode, run, 1, 0, 0)
    assert text.count("starts a new segment") == 1
    assert "starts a new segment" in line_with(text, "turn 2 of 2")


def test_tokens_of_a_trajectory_that_does_not_learn_are_not_underlined(tmp_path):
    base = attempt(0).trajectories[0]
    frozen = Trajectory("solver", "agent", base.turns, learns=False)
    with RunDirectory.create(tmp_path / "r", {}) as run:
        run.record(1, [group(Episode("lake-7", 0, (frozen,)))], {})
        text = shown(terminal.show_episode, run, 1, 0, 0, tokens=True, colour=True)
    assert "\x1b[32m5/90\x1b[0m" in text


def test_long_texts_lose_their_middle_unless_asked_for_whole(tmp_path):
    with RunDirectory.create(tmp_path / "r", {}) as run:
        run.record(1, [group(attempt(0, text="a" * 3000 + "b" * 3000))], {})
        assert "2,000 characters left out" in shown(terminal.show_episode, run, 1, 0, 0)
        assert shown(terminal.show_episode, run, 1, 0, 0, max_chars=0).count("b") > 3000
    assert shortened("abcdef", 4) == "ab\n… 2 characters left out …\nef"


def test_messages_of_every_openai_form_become_text():
    assert message_text(
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}
    ) == ("a\n<image_url>")
    call = {"function": {"name": "grade", "arguments": '{"x": 1}'}}
    assert (
        message_text({"role": "assistant", "content": None, "tool_calls": [call]})
        == 'calls grade({"x": 1})'
    )
    assert safe("\ud800").plain == "\\ud800"


def test_a_place_that_does_not_exist_is_named(run):
    with pytest.raises(RunDirectoryError, match="has 1 episodes, so no episode 1"):
        shown(terminal.show_episode, run, 3, 0, 1)
    with pytest.raises(RunDirectoryError, match="has 2 groups, so no group 9"):
        shown(terminal.show_group, run, 3, 9)


def browsed(run, *commands):
    """What each command answered."""
    out, answers, left = io.StringIO(), [], iter(commands)

    def ask(prompt):
        answers.append(out.getvalue())
        out.truncate(0)
        out.seek(0)
        command = next(left, None)
        if command is None:
            raise EOFError
        return command

    terminal.browse(run, Console(file=out, width=100), ask)
    return answers[1:]


def places(answers):
    return [a.splitlines()[0].split(" · task")[0].strip() for a in answers]


def test_browsing_moves_over_groups_and_steps(run):
    answers = browsed(run, "", "n", "n", "n", "p", "s 2", "n", "e 0", "p")
    assert places(answers) == [
        "step 3 · group 0 · episode 0 of 1",
        "step 3 · group 1 · episode 0 of 2",
        "step 3 · group 1 · episode 1 of 2",
        "there is no later episode",
        "step 3 · group 1 · episode 0 of 2",
        "step 2 · group 0 · episode 0 of 2",
        "step 2 · group 0 · episode 1 of 2",
        "step 2 · group 0 · episode 0 of 2",
        "there is no earlier episode",
    ]


def test_browsing_backwards_enters_the_last_episode_of_the_step_before(run):
    assert places(browsed(run, "g 0", "p")) == [
        "step 3 · group 0 · episode 0 of 1",
        "step 2 · group 0 · episode 1 of 2",
    ]


def test_browsing_answers_mistakes_in_words_and_stays(run):
    answers = browsed(run, "g 9", "e x", "s 99", "?", "t")
    assert answers[0].strip() == "step 3 has groups 0 to 1, not 9"
    assert answers[1].strip() == "'e x': expected a whole number after the letter"
    assert "no episodes of step 99" in " ".join(answers[2].split())
    assert answers[3].startswith("n next episode")
    assert "5/90" in answers[4]


def test_browsing_steps_over_a_step_whose_groups_are_empty(tmp_path):
    with RunDirectory.create(tmp_path / "r", {}) as run:
        for step, groups in ((1, group(attempt(0))), (2, group()), (3, group(attempt(0)))):
            run.record(step, [groups], {})
        assert places(browsed(run, "", "p")) == [
            "step 3 · group 0 · episode 0 of 1",
            "step 1 · group 0 · episode 0 of 1",
        ]


def test_browsing_quits_on_q(run):
    assert browsed(run, "q", "n") == []


def test_off_a_terminal_the_summary_and_the_newest_group_are_printed(run):
    out = io.StringIO()
    terminal.browse(run, Console(file=out, width=100))
    assert "rl" in out.getvalue()
    assert "groups of step 3" in out.getvalue()
    assert "step 3 · group 1" in out.getvalue()


def test_turns_without_messages_or_tokens_are_shown_too(tmp_path):
    bare = Episode(
        "lake-7",
        0,
        (Trajectory("solver", turns=(Turn((), attempt(0).trajectories[1].turns[0].completion),)),),
    )
    with RunDirectory.create(tmp_path / "r", {}) as run:
        run.record(1, [group(bare)], {})
        assert "says        7" in shown(terminal.show_episode, run, 1, 0, 0, tokens=True)
