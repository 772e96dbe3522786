"""Trackers get every step's numbers, and never stop a run."""

import sys
from types import SimpleNamespace

import pytest

from kolb.errors import RecipeError
from kolb.runs.trackers import open_tracker


class FakeService:
    """Has the shape of both wandb and trackio: ``init`` gives a run with ``log`` and ``finish``."""

    def __init__(self):
        self.opened, self.logged, self.finished = [], [], 0

    def init(self, **settings):
        self.opened.append(settings)
        return self

    def log(self, metrics, step=None):
        if "boom" in metrics:
            raise ConnectionError("no route to host")
        self.logged.append((step, metrics))

    def finish(self):
        self.finished += 1


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_gets_name_config_and_every_step(name, tmp_path, monkeypatch):
    service = FakeService()
    monkeypatch.setitem(sys.modules, name, service)
    tracker = open_tracker(name, tmp_path, "lake 1", {"seed": 3})
    tracker.log(1, {"reward/mean": 0.5})
    tracker.log(2, {"reward/mean": 0.75})
    tracker.close()
    (settings,) = service.opened
    assert settings["project"] == "kolb"
    assert settings["config"] == {"seed": 3}
    assert settings["resume"] == "allow"
    assert service.logged == [(1, {"reward/mean": 0.5}), (2, {"reward/mean": 0.75})]
    assert service.finished == 1


@pytest.mark.parametrize(("name", "key"), [("wandb", "id"), ("trackio", "name")])
def test_resuming_goes_on_in_the_same_charts_and_a_namesake_elsewhere_does_not(
    name, key, tmp_path, monkeypatch
):
    service = FakeService()
    monkeypatch.setitem(sys.modules, name, service)
    for folder in ("here", "here", "there"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "env.json").write_text(folder)
        open_tracker(name, tmp_path / folder, "lake-0001")
    first, resumed, namesake = (settings[key] for settings in service.opened)
    assert first == resumed != namesake
    assert first.startswith("lake-0001-")


def test_a_service_that_breaks_is_switched_off_with_one_warning(tmp_path, monkeypatch):
    service = FakeService()
    monkeypatch.setitem(sys.modules, "wandb", service)
    tracker = open_tracker("wandb", tmp_path, "x")
    with pytest.warns(RuntimeWarning, match=r"wandb failed and is off .*no route to host"):
        tracker.log(1, {"boom": 1.0})
    tracker.log(2, {"reward/mean": 1.0})
    tracker.close()
    assert service.logged == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_names_the_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(RecipeError, match=rf"pip install {name}"):
        open_tracker(name, tmp_path, "x")


def test_an_unknown_tracker_is_met_with_the_nearest_name(tmp_path):
    with pytest.raises(RecipeError, match="no tracker 'wand'; did you mean 'wandb'"):
        open_tracker("wand", tmp_path, "x")


def test_jsonl_is_the_run_directory_itself_and_writes_nothing_more(tmp_path):
    tracker = open_tracker("jsonl", tmp_path, "x")
    tracker.log(1, {"a": 1.0})
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_scalars_by_its_own_writer(tmp_path, monkeypatch):
    written = []
    writer = SimpleNamespace(
        add_scalar=lambda name, value, step: written.append((name, value, step)),
        flush=lambda: None,
        close=lambda: written.append("closed"),
    )
    places = []
    module = SimpleNamespace(Writer=lambda place: places.append(place) or writer)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", module)
    monkeypatch.setitem(sys.modules, "tensorboard", SimpleNamespace(summary=module))
    tracker = open_tracker("tensorboard", tmp_path, "x")
    tracker.log(4, {"a/x": 1.5, "a/y": 2.0})
    tracker.close()
    assert places == [str(tmp_path / "tensorboard")]
    assert written == [("a/x", 1.5, 4), ("a/y", 2.0, 4), "closed"]


def test_tensorboard_files_hold_the_numbers(tmp_path):
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed: pip install tensorboard"
    )
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    tracker = open_tracker("tensorboard", tmp_path, "x")
    tracker.log(4, {"reward/mean": 0.25})
    tracker.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    values = [(e.step, v) for e in EventFileLoader(str(file)).Load() for v in e.summary.value]
    ((step, value),) = values
    assert (step, value.tag, value.tensor.float_val[0]) == (4, "reward/mean", 0.25)
