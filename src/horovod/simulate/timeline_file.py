"""The workload of a timeline: a file that ``HOROVOD_TIMELINE`` names, also of other versions.

A timeline is a list of trace events. The process of an event is a tensor. An instant event named
after a rank says when that rank had the tensor; the end of ``ALLREDUCE`` has its type and shape.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from horovod.core.base.checked import is_number
from horovod.simulate.workload import Gradient, Workload

_FEWEST_STEPS = 5
_REDUCTION = "ALLREDUCE"
# Of at most 64 dimensions: multiplying many long numbers takes minutes.
_SHAPE = re.compile(r"\[((\d{1,18}(, ?\d{1,18}){0,63})?,?)\]")
_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
_MOST_BYTES = 1 << 50


@dataclass
class _Tensor:
    """``ready_us``: by rank, when it had the tensor. ``ends_us``: of its reductions, by thread."""

    name: str
    size_bytes: int = 0
    ready_us: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ends_us: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


def workload_in(path: Path) -> Workload:
    """The usual step of the rank in this timeline that computes least.

    Raises:
        ValueError: the file is no timeline, or has too few steps that reduce gradients.
        OSError: it cannot be read.
    """
    tensors = _tensors(path, _events(path))
    of_rank: dict[int, list[_Tensor]] = defaultdict(list)
    for tensor in tensors:
        for rank in tensor.ready_us:
            of_rank[rank].append(tensor)
    steps = (_step(own, rank) for rank, own in sorted(of_rank.items()))
    found = [step for step in steps if step is not None]
    if not found:
        raise ValueError(
            f"{path}: no {_FEWEST_STEPS} steps that reduce gradients; a timeline of ten steps has "
            f"enough ({len(tensors)} tensors with type and shape were found)"
        )
    compute_s, gradients = min(found, key=lambda step: step[0])
    text = f"{path.name}, {compute_s * 1e3:.1f} ms of computing a step"
    return Workload(text, gradients, compute_s)


def _events(path: Path) -> list[Any]:
    """All events. A file whose job has been killed ends without its bracket."""
    text = path.read_text(errors="replace").rstrip().removesuffix(",")
    for ending in ("", "]"):
        try:
            found = json.loads(text + ending)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):  # the other form of trace files
            found = found.get("traceEvents")
        if isinstance(found, list):
            return found
    raise ValueError(f"{path}: neither recordings of a job nor a timeline, a JSON list of events")


def _tensors(path: Path, events: Iterable[Any]) -> list[_Tensor]:
    """Those whose size is known."""
    tensors: dict[int, _Tensor] = {}
    under_way: dict[tuple[int, int], list[str]] = defaultdict(list)
    for number, event in enumerate(events):
        try:
            _note(tensors, under_way, event)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}: event {number} is not one of a timeline: {error}") from None
    return [tensor for tensor in tensors.values() if tensor.size_bytes]


def _note(
    tensors: dict[int, _Tensor], under_way: dict[tuple[int, int], list[str]], event: Any
) -> None:
    kind, pid, name = event["ph"], int(event.get("pid", -1)), str(event.get("name", ""))
    if kind == "M":
        if name == "process_name":
            tensors[pid] = _Tensor(str(event["args"]["name"]))
        return
    tensor, thread = tensors.get(pid), int(event.get("tid", 0))
    if tensor is None:
        return
    if not is_number(event["ts"]):
        raise ValueError(f"its time is {event['ts']!r}")
    if kind == "X" and name.isdecimal():
        tensor.ready_us[int(name)].append(float(event["ts"]))
    elif kind == "B":
        under_way[pid, thread].append(name)
    elif kind == "E" and under_way[pid, thread] and under_way[pid, thread].pop() == _REDUCTION:
        tensor.ends_us[thread].append(float(event["ts"]))
        tensor.size_bytes = _size(event.get("args", {})) or tensor.size_bytes


def _size(args: Any) -> int:
    """In bytes; 0 for what is no gradient."""
    shape = _SHAPE.fullmatch(str(args.get("shape", "")))
    if shape is None:
        return 0
    count = prod(int(word) for word in shape[1].split(",") if word.strip())
    size = count * _SIZES.get(str(args.get("dtype", "")).lower(), 0)
    if size > _MOST_BYTES:
        raise ValueError(f"a tensor of {size} bytes")
    return size


def _step(tensors: Sequence[_Tensor], rank: int) -> tuple[float, list[Gradient]] | None:
    """Seconds of computing in the usual step of a rank, and its gradients; None: too few steps.

    ``tensors``: those that it had.
    """
    counts = Counter(len(tensor.ready_us[rank]) for tensor in tensors)
    counts = Counter({count: count * n for count, n in counts.items() if count > _FEWEST_STEPS})
    if not counts:
        return None
    usual = counts.most_common(1)[0][0]
    # One more or less: the timeline begins and ends within a step.
    own = [tensor for tensor in tensors if abs(len(tensor.ready_us[rank]) - usual) <= 1]
    ready = sorted((time, index) for index, t in enumerate(own) for time in t.ready_us[rank])
    times = [time for time, _ in ready]
    # One thread has the ends of all ranks, or each rank has its own.
    ends = sorted(t for each in own for t in each.ends_us[rank if rank in each.ends_us else 0])
    compute_us, late_us = [], defaultdict(list)
    for begin, following in pairwise(sorted({*own[_anchor(ready)].ready_us[rank]})):
        until = bisect_left(times, following)
        for time, index in ready[bisect_left(times, begin) : until]:
            late_us[index].append(time - begin)
        last = times[until - 1]
        ended = max([last, *ends[bisect_left(ends, last) : bisect_left(ends, following)]])
        compute_us.append(following - begin - (ended - last))
    if len(compute_us) < _FEWEST_STEPS:  # many at one time are one
        return None
    compute_s = median(compute_us) / 1e6
    usual_s = sorted((median(late) / 1e6, index) for index, late in late_us.items())
    forward_s = max(0.0, compute_s - usual_s[-1][0])
    return compute_s, [
        Gradient(own[index].name, own[index].size_bytes, forward_s + late)
        for late, index in usual_s
    ]


def _anchor(ready: Sequence[tuple[float, int]]) -> int:
    """The tensor with the longest pause before it: a step begins where communication starts."""
    pauses: dict[int, list[float]] = defaultdict(list)
    for (before, _), (time, index) in pairwise(ready):
        pauses[index].append(time - before)
    return max(pauses, key=lambda index: median(pauses[index]))
