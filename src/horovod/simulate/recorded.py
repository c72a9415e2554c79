"""The workload of a recorded run: the gradients of a step, and when a rank had each of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from horovod.core.operations import Kind
from horovod.simulate.workload import Gradient, Workload
from horovod.trace.analysis.accounts import accounts_of
from horovod.trace.analysis.steps import Steps, find_steps, signature
from horovod.trace.operations import Operation, operations_of
from horovod.trace.recording import Recording


def workload_of(recordings: Mapping[int, Recording], title: str) -> Workload | None:
    """The usual step of a world; None if there are too few steps or no gradients.

    The fastest rank counts: what others need in addition is jitter, which the prediction adds.
    """
    steps = find_steps(recordings)
    if steps is None:
        return None
    accounts = accounts_of(recordings, steps)
    fastest = min(accounts, key=lambda account: account.usual.compute_ns)
    gradients = _gradients(recordings[fastest.rank], steps, fastest.usual.compute_ns / 1e9)
    if not gradients:
        return None
    whole_s = fastest.usual.compute_ns / 1e9
    text = f"{title}, {whole_s * 1e3:.1f} ms of computing a step"
    return Workload(text, gradients, whole_s)


def _gradients(recording: Recording, steps: Steps, compute_s: float) -> list[Gradient]:
    """By the median of their times after the first gradient of a step.

    What comes before it is all computing but the backward pass: the forward pass, and the
    optimizer's step, which a recording does not tell apart and which adds to a step as much there.
    """
    edges = steps.begins[recording.rank]
    sums = {number for number, label in recording.labels.items() if label.kind == Kind.ALLREDUCE}
    found: dict[Hashable, list[tuple[float, int]]] = {}
    for operation in operations_of(recording):
        if operation.label in sums and operation.submitted_ns is not None:
            _note(found, recording, operation, edges.tolist())
    usual = [
        (float(np.median([late for late, _ in times])), times[-1][1], name)
        for name, times in found.items()
        if len(times) * 2 >= steps.count
    ]
    usual.sort(key=lambda each: each[0])
    backward_s = usual[-1][0] / 1e9 if usual else 0.0
    forward_s = max(0.0, compute_s - backward_s)
    names = {signature(label): label.name for label in recording.labels.values()}
    return [Gradient(names[name], size, forward_s + late / 1e9) for late, size, name in usual]


def _note(
    found: dict[Hashable, list[tuple[float, int]]],
    recording: Recording,
    operation: Operation,
    edges: Sequence[int],
) -> None:
    assert operation.submitted_ns is not None
    index = int(np.searchsorted(edges, operation.submitted_ns, side="right")) - 1
    if 0 <= index < len(edges) - 1 and operation.size_bytes:
        name = signature(recording.labels[operation.label])
        late = float(operation.submitted_ns - edges[index])
        found.setdefault(name, []).append((late, operation.size_bytes))
