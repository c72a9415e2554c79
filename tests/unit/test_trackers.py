"""What trackers send, when, and on which rank, with stand-ins for the libraries.

tests/engines/trackers has the libraries themselves.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from horovod import trackers
from horovod.trackers import MlflowLogger, TensorBoardWriter, Tracker, WandbLogger, flat

NUMBERS = {"steps": 3, "waited_seconds": 0.5}
WANDB = """
calls = []
run = None
class Run:
    def define_metric(self, name, step_metric): calls.append(("define", name, step_metric))
    def log(self, numbers): calls.append(numbers)
    def finish(self): calls.append("finish")
def init(**options):
    calls.append(options)
    return Run()
"""
MLFLOW = """
from types import SimpleNamespace
calls = []
active = None
def active_run(): return active
def start_run(**options):
    calls.append(options)
    return SimpleNamespace(info=SimpleNamespace(run_id="new"))
def log_metrics(numbers, step, run_id): calls.append((numbers, step, run_id))
def end_run(): calls.append("end")
"""
TENSORBOARD = """
calls = []
class Writer:
    def __init__(self, folder): calls.append(folder)
    def add_scalar(self, name, value, step): calls.append((name, value, step))
    def close(self): calls.append("close")
"""


class Sent(Tracker):
    """Keeps what is sent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sent: list[tuple[int, dict[str, float]]] = []

    def _write(self, numbers: Any, step: int) -> None:
        self.sent.append((step, dict(numbers)))


@pytest.fixture(autouse=True)
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the rank of this process; 0 at first."""

    def set_rank(rank: int) -> None:
        monkeypatch.setattr(trackers.world, "rank", lambda: rank)

    monkeypatch.setattr(trackers, "metrics", lambda: NUMBERS)
    set_rank(0)
    return set_rank


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a module of this name and code, and imports it."""
    made: list[str] = []

    def make(name: str, code: str) -> ModuleType:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        if path.parent != tmp_path:
            (path.parent / "__init__.py").touch()  # so that it comes before an installed package
        path.write_text(code)
        for known in [known for known in sys.modules if known.split(".")[0] == name.split(".")[0]]:
            monkeypatch.delitem(sys.modules, known)
        monkeypatch.syspath_prepend(tmp_path)
        made.append(name)
        return importlib.import_module(name)

    yield make
    for name in made:
        for known in [known for known in sys.modules if known.split(".")[0] == name.split(".")[0]]:
            del sys.modules[known]


def test_metrics_are_flat_finite_floats() -> None:
    nested = {"a": 1, "b": {"c": 2.5, "d": {"e": True}}, "text": "3", "none": float("nan")}
    assert flat(nested, "x/") == {"x/a": 1.0, "x/b/c": 2.5, "x/b/d/e": 1.0}
    assert {type(value) for value in flat(nested).values()} == {float}


def test_every_nth_step_and_the_last_one_are_sent_once() -> None:
    tracker = Sent(every=2)
    for _ in range(5):
        tracker.step()
    tracker.send()
    tracker.send()
    assert [step for step, _ in tracker.sent] == [2, 4, 5]
    assert tracker.sent[0][1] == {"horovod/steps": 3.0, "horovod/waited_seconds": 0.5}
    with pytest.raises(ValueError, match="every=0; expected at least 1"):
        Sent(every=0)


def test_steps_of_the_program() -> None:
    tracker = Sent(every=10)
    for step in (9, 20, 25, 30):
        tracker.step(step)
    assert [step for step, _ in tracker.sent] == [20, 30]


def test_rank_0_alone_sends_or_each_under_its_name(rank: Any) -> None:
    tracker, each = Sent(every=1), Sent(every=1, all_ranks=True, prefix="")
    rank(1)
    tracker.step()
    each.step()
    assert tracker.sent == []
    assert each.sent == [(1, {"rank1/steps": 3.0, "rank1/waited_seconds": 0.5})]
    rank(0)  # in the next world of an elastic job
    tracker.step()
    assert [step for step, _ in tracker.sent] == [2]


@pytest.mark.parametrize("kind", [TensorBoardWriter, WandbLogger, MlflowLogger])
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, rank: Any, kind: type[Tracker]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    rank(1)  # which may be rank 0 one day
    with pytest.raises(ImportError, match=rf"{kind.__name__} needs (\w+), .*: pip install \1$"):
        kind("there")  # type: ignore[call-arg]


def test_tensorboard_gets_scalars(library: Any, rank: Any, tmp_path: Path) -> None:
    calls = library("tensorboard.summary", TENSORBOARD).calls
    with TensorBoardWriter(tmp_path, every=2) as tracker:
        rank(1)
        tracker.step()
        assert calls == []
        rank(0)
        tracker.step()
    tracker.close()
    scalars = [("horovod/steps", 3.0, 2), ("horovod/waited_seconds", 0.5, 2)]
    assert calls == [str(tmp_path), *scalars, "close"]


def test_a_writer_of_the_program_stays_open(library: Any) -> None:
    module = library("writers", TENSORBOARD)
    tracker = TensorBoardWriter(module.Writer("mine"), every=1)
    tracker.step()
    tracker.close()
    assert ("horovod/steps", 3.0, 1) in module.calls
    assert "close" not in module.calls


def test_wandb_has_a_step_of_ours(library: Any) -> None:
    module = library("wandb", WANDB)
    define = ("define", "horovod/*", "horovod/step")
    numbers = {"horovod/steps": 3.0, "horovod/waited_seconds": 0.5, "horovod/step": 1}
    with WandbLogger(init={"project": "digits"}, every=1) as tracker:
        tracker.step()
    assert module.calls == [{"project": "digits"}, define, numbers, "finish"]

    module.calls.clear()
    module.run = module.Run()  # the program's
    with WandbLogger(every=1) as tracker:
        tracker.step()
    assert module.calls == [define, numbers]


def test_mlflow_logs_to_the_active_run_or_a_new_one(library: Any) -> None:
    module = library("mlflow", MLFLOW)
    numbers = {"horovod/steps": 3.0, "horovod/waited_seconds": 0.5}
    with MlflowLogger(start_run={"run_name": "digits"}, every=1) as tracker:
        tracker.step()
    assert module.calls == [{"run_name": "digits"}, (numbers, 1, "new"), "end"]

    module.calls.clear()
    with MlflowLogger("mine", every=1) as tracker:
        tracker.step()
    assert module.calls == [(numbers, 1, "mine")]
