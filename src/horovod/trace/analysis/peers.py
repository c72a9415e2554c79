"""For whom ranks wait in the middle of collectives, and how that compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from horovod.trace.analysis.steps import Steps
from horovod.trace.recording import EventKind, Recording, WaitPhase

__all__ = ["PeerWait", "SlowPeer", "find_slow_peers", "peer_waits"]

_FACTOR = 2.0  # beside the others


@dataclass(frozen=True)
class PeerWait:
    """All long waits of ``rank`` for ``peer`` in one phase, within the steps."""

    rank: int
    peer: int
    phase: WaitPhase
    total_ns: int
    count: int


@dataclass(frozen=True)
class SlowPeer:
    """A rank for which each other one waits ``wait_ns`` a step, and ``usual_ns`` for the others.

    ``is_link``: these are waits for bytes of another host.
    """

    peer: int
    wait_ns: float
    usual_ns: float
    is_link: bool


def peer_waits(recordings: Mapping[int, Recording], steps: Steps) -> list[PeerWait]:
    """Who waited for whom, in the steps."""
    found = []
    for rank, edges in steps.begins.items():
        waited = recordings[rank].of_kind(EventKind.WAITED)
        waited = waited[(waited["time_ns"] >= edges[0]) & (waited["time_ns"] <= edges[-1])]
        kinds, index = np.unique(waited[["subject", "detail"]], return_inverse=True)
        totals = np.bincount(index, weights=waited["value"], minlength=len(kinds))
        counts = np.bincount(index, minlength=len(kinds))
        for (peer, phase), total, count in zip(kinds.tolist(), totals, counts, strict=True):
            if phase not in set(WaitPhase):  # of another version, or damaged
                continue
            found.append(PeerWait(rank, peer, WaitPhase(phase), int(total), int(count)))
    return found


def find_slow_peers(waits: Sequence[PeerWait], steps: Steps) -> list[SlowPeer]:
    """Ranks that others wait for twice as long as for the rest, in the median; needs three."""
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
