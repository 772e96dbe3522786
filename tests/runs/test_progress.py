"""Progress on a terminal, in a log, in silence, and when printing fails."""

import io
import sys

import pytest

from kolb.errors import RecipeError
from kolb.runs.plots import plot_png, plot_text, scatter_png, sparkline
from kolb.runs.progress import Progress, duration


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_log_gets_a_line_per_stage_then_one_every_five_seconds_and_the_last(monkeypatch):
    out, clock = io.StringIO(), Clock()
    with Progress(20, stream=out, clock=clock) as progress:
        for step in range(1, 21):
            clock.now += 1
            metrics = {"reward/mean": step / 20, "tokens/sampled": 2000, "time/step_s": 1.0}
            progress.activity("collecting")
            progress.step("imitate" if step < 4 else "rl", step, metrics)
    shown = [line.split()[1] for line in out.getvalue().splitlines()]
    assert shown == ["1/20", "4/20", "9/20", "14/20", "19/20", "20/20"]
    assert out.getvalue().splitlines()[2] == "step 9/20  rl  reward 0.450  2,000 tok/s  11s left"
    assert out.getvalue().splitlines()[-1] == "step 20/20  rl  reward 1.000  2,000 tok/s"


def test_the_last_evaluation_stays_on_show():
    out, clock = io.StringIO(), Clock()
    with Progress(3, stream=out, clock=clock) as progress:
        for step, metrics in enumerate([{"eval/mean": 0.25, "success/mean": 0.5}, {}, {}], 1):
            clock.now += 10
            progress.step("rl", step, metrics)
    lines = out.getvalue().splitlines()
    assert "success 50%  eval 0.250" in lines[0]
    assert "eval 0.250" in lines[1]
    assert "success" not in lines[1]


def test_broken_episodes_are_counted_up_from_the_first():
    out, clock = io.StringIO(), Clock()
    steps = [
        {"errors/environment": 0.0},
        {"errors/environment": 2, "errors/reward": 1},
        {"errors/environment": 0, "eval/errors/deadline": 4},
    ]
    with Progress(3, stream=out, clock=clock) as progress:
        for step, metrics in enumerate(steps, 1):
            clock.now += 10
            progress.step("rl", step, metrics)
    lines = out.getvalue().splitlines()
    assert "broken" not in lines[0]
    assert "broken 3" in lines[1]
    assert "broken 7" in lines[2]


def test_a_resumed_run_judges_the_time_left_by_its_own_steps():
    out, clock = io.StringIO(), Clock()
    with Progress(100, stream=out, clock=clock) as progress:
        clock.now += 500  # loading
        progress.step("rl", 91, {"time/step_s": 2.0})
        clock.now += 6
        progress.step("rl", 92, {})
    assert "18s left" in out.getvalue().splitlines()[0]
    assert "32s left" in out.getvalue().splitlines()[1]


def test_quiet_shows_nothing_at_all():
    out = Terminal()
    with Progress(1, quiet=True, stream=out) as progress:
        progress.note("hello")
        progress.activity("collecting")
        progress.step("rl", 1, {"reward/mean": 1.0})
    assert out.getvalue() == ""


def test_a_terminal_shows_stage_steps_facts_activity_and_literal_notes():
    out = Terminal()
    with Progress(7, stream=out) as progress:
        progress.activity("updating [agent]")
        progress._live._bar.refresh()
        progress.note("odd [bold]text[/bold]")
        progress.step("rl [hard]", 3, {"reward/mean": 0.5, "eval/mean": 0.25})
    shown = out.getvalue()
    for text in (
        "updating [agent]",
        "odd [bold]text[/bold]",
        "rl [hard]",
        "3/7",
        "reward 0.500",
        "eval 0.250",
    ):
        assert text in shown, text


class Closed(io.StringIO):
    def write(self, text):
        raise BrokenPipeError("the reader is gone")


def test_a_closed_pipe_turns_progress_off_and_the_run_goes_on():
    with Progress(2, stream=Closed()) as progress:
        progress.step("rl", 1, {})
        progress.note("still here")
        progress.step("rl", 2, {"reward/mean": None})


def test_a_stream_that_cannot_write_a_character_gets_an_escape():
    raw = io.BytesIO()
    with Progress(
        1, stream=io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    ) as progress:
        progress.note("größer → 你")
    assert raw.getvalue() == b"gr\\xf6\\xdfer \\u2192 \\u4f60\n"


def test_times_read_at_a_glance():
    assert [duration(s) for s in (0.4, 59.6, 3599.4, 3600, 90000)] == [
        "0s",
        "1m00s",
        "59m59s",
        "1h00m",
        "25h00m",
    ]


# ------------------------------------------------------------------------------------------ plots


def test_a_sparkline_scales_to_its_range_and_leaves_gaps():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, None, float("nan"), 3.0]) == "▁  █"
    assert sparkline([2, 2, 2]) == "▁▁▁"
    assert sparkline([]) == ""
    assert sparkline([0, 7], ascii_only=True) == "_@"


def test_a_long_sparkline_is_averaged_down_to_its_width():
    assert sparkline([0, 0, 7, 7, None, 14], width=3) == "▁▅█"


def test_a_plot_puts_points_where_they_belong():
    plot = plot_text(
        {"a": [(0, 0.0), (5, 0.5), (10, 1.0)], "b": [(0, 1.0), (5, None)]},
        width=11,
        height=3,
        ascii_only=True,
    )
    assert plot.splitlines() == [
        "1 |+         *",
        "  |     *",
        "0 |*",
        "  +-----------",
        "   0        10",
        "   * a   + b",
    ]


def test_a_plot_of_nothing_or_of_one_value_is_still_a_plot():
    assert plot_text({"a": [(1, None)]}) == "(nothing to plot)"
    assert plot_text({"a": [(1, 2.0), (2, 2.0)]}, width=4, height=2).splitlines()[1] == "2 │•  •"


def test_a_png_is_written_or_the_missing_package_is_named(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    path = plot_png({"reward": [(1, 0.1), (2, None), (3, 0.4)]}, tmp_path / "curve", "lake")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RecipeError, match=r"pip install matplotlib"):
        plot_png({}, tmp_path / "x.png")


def test_a_scatter_is_written_with_and_without_points(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    cloud = [(0.1, 2.0), (0.0, 1.0), (1e-9, None)]
    full = scatter_png({"wait": cloud}, cloud, tmp_path / "full.png", labels=("p", "entropy"))
    empty = scatter_png({}, [], tmp_path / "empty.png", labels=("p", "entropy"))
    assert len(full.read_bytes()) > len(empty.read_bytes()) > 1000
