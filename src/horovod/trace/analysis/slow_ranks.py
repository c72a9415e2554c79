"""The ranks that keep others waiting: by computing longer, or in the middle of collectives.

The computing time of a rank in a step is compared with the median of the other ranks, which needs
no common clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from horovod.trace.analysis.accounts import Account
from horovod.trace.analysis.steps import Steps
from horovod.trace.recording import EventKind, Recording, WaitPhase

_FACTOR = 2.0  # a slow peer's wait, in times of the usual one


class RankPace(NamedTuple):
    """A rank's median computing time, and its excess over the other ranks.

    ``extra_ns`` may be negative; the rank was the slowest in ``slowest_share`` of the steps.
    """

    rank: int
    compute_ns: float
    extra_ns: float
    slowest_share: float


class Imbalance(NamedTuple):
    """All ranks, the slowest first; times are medians of all steps.

    A step takes ``step_ns``; it could end ``lost_ns`` sooner if its slowest rank, which may be
    another one in each step, computed as long as the median rank.
    """

    ranks: tuple[RankPace, ...]
    lost_ns: float
    step_ns: float


def find_imbalance(accounts: Sequence[Account]) -> Imbalance | None:
    """How evenly the work is distributed; None with fewer than two ranks."""
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


class PeerWait(NamedTuple):
    """All long waits of ``rank`` for ``peer`` in one phase, within the steps."""

    rank: int
    peer: int
    phase: WaitPhase
    total_ns: int


class SlowPeer(NamedTuple):
    """A rank for which each other rank waits ``wait_ns`` a step, and ``usual_ns`` for others.

    ``is_link``: these are waits for bytes from another host.
    """

    peer: int
    wait_ns: float
    usual_ns: float
    is_link: bool


def peer_waits(recordings: Mapping[int, Recording], steps: Steps) -> list[PeerWait]:
    """The waits of each rank for each peer, in the steps."""
    found = []
    for rank, edges in steps.begins.items():
        waited = recordings[rank].of_kind(EventKind.WAITED)
        waited = waited[(waited["time_ns"] >= edges[0]) & (waited["time_ns"] <= edges[-1])]
        kinds, index = np.unique(waited[["subject", "detail"]], return_inverse=True)
        totals = np.bincount(index, weights=waited["value"], minlength=len(kinds))
        for (peer, phase), total in zip(kinds.tolist(), totals, strict=True):
            if phase in set(WaitPhase):  # else of another version, or damaged
                found.append(PeerWait(rank, peer, WaitPhase(phase), int(total)))
    return found


def find_slow_peers(waits: Sequence[PeerWait], steps: Steps) -> list[SlowPeer]:
    """Ranks that others wait for twice as long as for the median rank; needs three ranks."""
    found = []
    for is_link in (False, True):
        by_peer: dict[int, dict[int, int]] = {}
        for wait in waits:
            if (wait.phase is WaitPhase.LINK) == is_link and wait.phase is not WaitPhase.DATA_PLANE:
                of_peer = by_peer.setdefault(wait.peer, {})
                of_peer[wait.rank] = of_peer.get(wait.rank, 0) + wait.total_ns
        if len(steps.begins) < 3 or len(by_peer) < 2:
            continue
        means = {peer: sum(of.values()) / len(of) / steps.count for peer, of in by_peer.items()}
        for peer, wait_ns in means.items():
            others = [value for other, value in means.items() if other != peer]
            usual_ns = median([*others, *[0.0] * (len(steps.begins) - 1 - len(others))])
            if wait_ns > _FACTOR * usual_ns:
                found.append(SlowPeer(peer, wait_ns, usual_ns, is_link))
    return sorted(found, key=lambda slow: -slow.wait_ns)
