"""Reduces the same gradients in each of some steps under HOROVOD_LINK_COMPRESSION=int4.

Notes ``report.R``: by kind of call, how far the sum of all results is from what it should be, in
units of a step's largest error; and whether inputs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import notes
import numpy as np

import horovod.numpy as hvd

STEPS = 24
COUNT = 4096
HALF_STEP = 1 / 12  # of int4, of the largest of a block

hvd.init()
inputs = [
    np.random.default_rng(rank).standard_normal(COUNT).astype(np.float32)
    for rank in range(hvd.size())
]
mine = inputs[hvd.rank()]
exact = np.mean(inputs, axis=0)
unit = HALF_STEP * max(map(np.max, map(np.abs, inputs)))
before = mine.copy()


def in_place(step: int) -> np.ndarray:
    return hvd.allreduce_(mine.copy(), name="in place")


def grouped(step: int) -> np.ndarray:
    wide = np.concatenate([mine, mine])
    first, second = hvd.grouped_allreduce([mine, wide], name="grouped")
    assert np.isfinite(second).all()
    return first


def shapes_change(step: int) -> np.ndarray:
    """Before the last steps the name had another shape, whose errors are of no use."""
    if step < 2:
        hvd.allreduce(1e4 * mine.reshape(64, 64), name="reshaped")
        return exact
    return hvd.allreduce(mine, name="reshaped")


KINDS: dict[str, Callable[[int], np.ndarray]] = {
    "named": lambda step: hvd.allreduce(mine, name="named"),
    "half": lambda step: hvd.allreduce(mine.astype(np.float16), name="half").astype(np.float32),
    "in place": in_place,
    "grouped": grouped,
    "reshaped": shapes_change,
    "running number": lambda step: hvd.allreduce(mine),
    "exact by name": lambda step: hvd.allreduce(mine, name="layer.bias"),
}

report: dict[str, float | bool] = {}
for kind, call in KINDS.items():
    total = sum(call(step).astype(np.float64) for step in range(STEPS))
    report[kind] = float(np.abs(total - STEPS * exact).max() / unit)
report["input is kept"] = bool(np.array_equal(mine, before))
notes.leave(f"report.{hvd.rank()}", report)
hvd.shutdown()
