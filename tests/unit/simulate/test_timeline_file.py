"""Workloads of timelines, of this version and of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horovod.simulate.timeline_file import workload_in

STEP_US, LATE_US, WAIT_US = 10_000, (1_000, 4_000, 6_000), 500
SHAPES = ("[10, 4]", "[300]", "[7]")


def names() -> list[dict[str, Any]]:
    return [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"grad.{pid}"}}
        for pid in range(3)
    ]


def reduction(pid: int, ts: float, end: float, ranks: dict[str, float]) -> list[dict[str, Any]]:
    """One allreduce as rank 0 of the original Horovod writes it: without threads."""
    begin = {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": min(ranks.values()), "pid": pid}
    had = [{"ph": "X", "name": r, "ts": at, "pid": pid, "dur": 0} for r, at in ranks.items()]
    what = {"dtype": "float32", "shape": SHAPES[pid]}
    return [
        begin,
        *had,
        {"ph": "E", "ts": ts, "pid": pid},
        {"ph": "B", "name": "ALLREDUCE", "ts": ts, "pid": pid},
        {"ph": "B", "name": "NCCL_ALLREDUCE", "ts": ts, "pid": pid},
        {"ph": "E", "ts": end, "pid": pid},
        {"ph": "E", "ts": end, "pid": pid, "args": what},
    ]


def timeline(steps: int = 12, slow: float = 1.0) -> list[dict[str, Any]]:
    """Steps of two ranks. Rank 1 has each gradient later, as if its step took ``slow`` times."""
    events = names()
    for step in range(steps):
        begin = step * STEP_US
        for pid, late in enumerate(LATE_US):
            ready = {"0": begin + late, "1": begin + LATE_US[0] + slow * (late - LATE_US[0])}
            both = max(ready.values())
            end = both + (WAIT_US if pid == 2 else 10)
            events += reduction(pid, both, end, ready)
    return events


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_timeline_of_rank_0(tmp_path: Path) -> None:
    found = workload_in(written(tmp_path / "timeline.json", json.dumps(timeline())))
    assert [gradient.name for gradient in found.gradients] == ["grad.0", "grad.1", "grad.2"]
    assert [gradient.size_bytes for gradient in found.gradients] == [160, 1200, 28]
    assert found.alone_s == pytest.approx((STEP_US - WAIT_US) / 1e6)
    # After the last gradient is computed only the others are waited for.
    assert found.gradients[-1].ready_s == pytest.approx(found.alone_s)
    apart = [
        b.ready_s - a.ready_s for a, b in zip(found.gradients, found.gradients[1:], strict=False)
    ]
    assert apart == pytest.approx([0.003, 0.002])


def test_the_rank_that_computes_least_counts(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1, so what it computes is what is left of a step."""
    found = workload_in(written(tmp_path / "timeline.json", json.dumps(timeline(slow=1.4))))
    assert found.alone_s == pytest.approx((STEP_US - WAIT_US - 0.4 * 5_000) / 1e6)


@pytest.mark.parametrize("end", [",\n", "", "\n]"])
def test_a_killed_job_leaves_the_list_open(tmp_path: Path, end: str) -> None:
    lines = ",\n".join(map(json.dumps, timeline()))
    assert len(workload_in(written(tmp_path / "t.json", f"[\n{lines}{end}")).gradients) == 3


def test_our_own_timeline(tmp_path: Path) -> None:
    script = written(
        tmp_path / "train.py",
        "import numpy as np, horovod.numpy as hvd\n"
        "hvd.init()\n"
        "for _ in range(12):\n"
        "    for name, size in (('a', 100), ('b', 20_000)):\n"
        "        hvd.allreduce(np.ones(size, np.float32), name=name)\n",
    )
    path = tmp_path / "timeline.json"
    job = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--timeline-filename"]
    words = [*job, str(path), sys.executable, str(script)]
    subprocess.run(words, check=True, env=dict(os.environ), timeout=500)
    found = workload_in(path)
    assert sorted(each.size_bytes for each in found.gradients) == [400, 80_000]
    assert {each.name.rpartition(".")[2] for each in found.gradients} == {"a", "b"}
    assert 0 < found.alone_s < 500


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "neither recordings of a job nor a timeline"),
        ("{}", "neither recordings of a job nor a timeline"),
        ("[" * 100_000, "neither recordings of a job nor a timeline"),
        ("[]", r"no 5 steps that reduce gradients.* \(0 tensors"),
        (json.dumps(timeline(4)), r"no 5 steps that reduce gradients.* \(3 tensors"),
        ("[1]", "event 0 is not one of a timeline"),
        ('[{"ph": "B", "pid": Infinity}]', "event 0 is not one of a timeline: cannot convert"),
        (json.dumps([{**event, "ts": 1} for event in timeline()]), "no 5 steps that reduce"),
        (json.dumps([*names(), {"ph": "B", "pid": 0}]), "event 3 is not one of a timeline: 'ts'"),
        (json.dumps([*names(), {"ph": "B", "pid": 0, "ts": "now"}]), "its time is 'now'"),
        (json.dumps(timeline()).replace("300", "9" * 18), "a tensor of 3999999999999999996 bytes"),
    ],
)
def test_what_is_no_timeline(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        workload_in(written(tmp_path / "file.json", text))


def test_a_shape_of_endless_dimensions_is_none(tmp_path: Path) -> None:
    """To multiply them would take more than half an hour."""
    begin = {"ph": "B", "name": "ALLREDUCE", "ts": 1, "pid": 0}
    shape = f"[{','.join(['9' * 18] * 500_000)}]"
    end = {"ph": "E", "ts": 2, "pid": 0, "args": {"dtype": "float32", "shape": shape}}
    with pytest.raises(ValueError, match=r"no 5 steps that reduce gradients.* \(0 tensors"):
        workload_in(written(tmp_path / "t.json", json.dumps([*names(), begin, end])))


def test_many_ranks_and_tensors_that_have_nothing_to_do_with_each_other(tmp_path: Path) -> None:
    """To look at each tensor for each rank would take hours."""
    events, count = names(), 50_000
    for number in range(count):
        events += [
            {"ph": "M", "pid": number, "name": "process_name", "args": {"name": "many"}},
            {"ph": "B", "pid": number, "ts": 1, "name": "ALLREDUCE"},
            {"ph": "E", "pid": number, "ts": 2, "args": {"dtype": "float32", "shape": "[9]"}},
            {"ph": "X", "pid": 0, "ts": 1, "name": str(number)},
        ]
    with pytest.raises(ValueError, match=rf"no 5 steps that reduce.* \({count} tensors"):
        workload_in(written(tmp_path / "t.json", json.dumps(events)))
