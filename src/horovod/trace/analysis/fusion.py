"""Which tensors are fused, and which always run alone."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from horovod.trace.analysis.steps import Steps, signature
from horovod.trace.operations import buckets_of, operations_of
from horovod.trace.recording import Label, Recording

_BARRIER, _JOIN = 3, 6  # horovod.core.operations.Kind


class WhyAlone(enum.Enum):
    """Why a tensor is never fused with others."""

    OFF = "off"  # the fusion threshold is 0
    LARGE = "large"  # it is as large as the threshold
    NOTHING_ELSE = "nothing else"  # the rank had no other pending operation
    OTHERS_NOT_READY = "others not ready"  # it had, but not of the same kind on all ranks


class Alone(NamedTuple):
    """A tensor, or a group, that ran ``runs`` times and was never fused with others."""

    label: Label
    size_bytes: int
    runs: int
    why: WhyAlone


class Fusion(NamedTuple):
    """The collectives of a rank's step: counts per step, and the median size."""

    buckets: float
    tensors: float
    bucket_bytes: float
    alone: tuple[Alone, ...]


@dataclass
class _Runs:
    label: Label
    size_bytes: int = 0
    runs: int = 0
    alone: int = 0
    with_others_pending: int = 0


def find_fusion(
    recordings: Mapping[int, Recording], steps: Steps, threshold_bytes: int
) -> Fusion | None:
    """The fusion of the lowest rank in its ``steps``; collectives are the same on all ranks."""
    rank = min(steps.begins)
    recording, edges = recordings[rank], steps.begins[rank]
    buckets = [
        bucket
        for bucket in buckets_of(recording)
        if edges[0] <= bucket.started_ns < edges[-1] and bucket.operations
    ]
    if not buckets:
        return None
    pending = _pending_at(recording, [bucket.started_ns for bucket in buckets])
    by_sign: dict[Hashable, _Runs] = {}
    for bucket, others in zip(buckets, pending, strict=True):
        for operation in bucket.operations:
            label = recording.labels.get(operation.label)
            if label is None or label.kind in (_BARRIER, _JOIN):
                continue
            runs = by_sign.setdefault(signature(label), _Runs(label))
            runs.size_bytes = max(runs.size_bytes, operation.size_bytes or 0)
            runs.runs += 1
            runs.alone += len(bucket.operations) == 1
            runs.with_others_pending += others > len(bucket.operations)
    sizes = [sum(op.size_bytes or 0 for op in bucket.operations) for bucket in buckets]
    return Fusion(
        buckets=len(buckets) / steps.count,
        tensors=sum(len(bucket.operations) for bucket in buckets) / steps.count,
        bucket_bytes=float(np.median(sizes)),
        alone=tuple(_alone(runs, threshold_bytes) for runs in by_sign.values() if _is_alone(runs)),
    )


def _is_alone(runs: _Runs) -> bool:
    return runs.runs > 1 and runs.alone == runs.runs


def _alone(runs: _Runs, threshold_bytes: int) -> Alone:
    if threshold_bytes == 0:
        why = WhyAlone.OFF
    elif runs.size_bytes >= threshold_bytes:
        why = WhyAlone.LARGE
    elif runs.with_others_pending * 2 > runs.runs:
        why = WhyAlone.OTHERS_NOT_READY
    else:
        why = WhyAlone.NOTHING_ELSE
    return Alone(runs.label, runs.size_bytes, runs.runs, why)


def _pending_at(recording: Recording, times_ns: list[int]) -> list[int]:
    """The number of submitted operations that had not started, at each of the times."""
    operations = [op for op in operations_of(recording) if op.submitted_ns is not None]
    submitted = np.sort([op.submitted_ns for op in operations])
    started = np.sort([op.started_ns for op in operations if op.started_ns is not None])
    before = np.searchsorted(submitted, times_ns, side="right")
    gone = np.searchsorted(started, times_ns, side="left")
    return [int(count) for count in before - gone]
