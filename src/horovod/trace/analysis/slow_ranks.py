"""Which rank keeps the others waiting, and by how much a step.

What counts is the time that a rank computes in a step, beside the median of the other ranks. That
needs no common clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horovod.trace.analysis.accounts import Account

__all__ = ["Imbalance", "RankPace", "find_imbalance"]


@dataclass(frozen=True)
class RankPace:
    """How a rank computes beside the others, in the middle of all steps.

    ``extra_ns`` may be negative; ``slowest_share`` of the steps it was the slowest of all.
    """

    rank: int
    compute_ns: float
    extra_ns: float
    slowest_share: float


@dataclass(frozen=True)
class Imbalance:
    """All ranks, the slowest first.

    ``lost_ns``: how much sooner a step could end if its slowest rank, whichever that is, computed
    as long as the median rank; in the middle of all steps, which take ``step_ns``.
    """

    ranks: tuple[RankPace, ...]
    lost_ns: float
    step_ns: float


def find_imbalance(accounts: Sequence[Account]) -> Imbalance | None:
    """How evenly the work is spread; None with fewer than two ranks."""
    if len(accounts) < 2:
        return None
    compute = np.stack([account.compute_ns for account in accounts]).astype(float)
    slowest = np.argmax(compute, axis=0)
    paces = [
        RankPace(
            rank=account.rank,
            compute_ns=float(np.median(compute[row])),
            extra_ns=float(np.median(compute[row] - _others(compute, row))),
            slowest_share=float(np.mean(slowest == row)),
        )
        for row, account in enumerate(accounts)
    ]
    middle = np.median(compute, axis=0) if len(accounts) > 2 else np.min(compute, axis=0)
    return Imbalance(
        ranks=tuple(sorted(paces, key=lambda pace: -pace.extra_ns)),
        lost_ns=float(np.median(np.max(compute, axis=0) - middle)),
        step_ns=float(np.median([account.duration_ns for account in accounts])),
    )


def _others(compute: NDArray[np.float64], row: int) -> NDArray[np.float64]:
    return np.asarray(np.median(np.delete(compute, row, axis=0), axis=0))
