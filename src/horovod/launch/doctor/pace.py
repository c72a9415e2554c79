"""Findings about speed: slow ranks, and what steps spend their time on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from horovod.launch.doctor.findings import Finding, Severity, capital, duration_text, named_ranks
from horovod.trace.analysis.accounts import Account
from horovod.trace.analysis.slow_ranks import (
    Imbalance,
    RankPace,
    SlowPeer,
    find_imbalance,
    find_slow_peers,
    peer_waits,
)
from horovod.trace.analysis.steps import Steps
from horovod.trace.worlds import RecordedWorld

# Smaller values are no findings.
_SLOW_SHARE = 0.15  # of a step
_LEAST_NS = 5e5
_SLOWEST_SHARE = 0.7  # of all steps, in which a slow rank is the slowest
_TRANSPORT_SHARE = 0.3
_WAIT_SHARE = 0.05  # for one rank, in the middle of collectives


def find_pace(world: RecordedWorld, steps: Steps, accounts: Sequence[Account]) -> list[Finding]:
    """Findings about what makes steps longer than necessary."""
    findings = []
    imbalance = find_imbalance(accounts)
    if imbalance is not None:
        slow = _slow_ranks(imbalance, steps)
        if slow:
            findings.append(_slow(world, imbalance, slow, steps))
        elif imbalance.lost_ns > max(_LEAST_NS, _SLOW_SHARE * imbalance.step_ns):
            findings.append(_uneven(imbalance))
    step_ns = median(account.usual.duration_ns for account in accounts)
    transport_ns = median(account.usual.transport_ns for account in accounts)
    if transport_ns > max(_LEAST_NS, _TRANSPORT_SHARE * step_ns):
        findings.append(_transport(world, transport_ns, step_ns))
    for slow_peer in find_slow_peers(peer_waits(world.recordings, steps), steps):
        if slow_peer.wait_ns > max(_LEAST_NS, _WAIT_SHARE * step_ns):
            findings.append(_slow_peer(world, slow_peer, step_ns))
    return findings


def _slow_ranks(imbalance: Imbalance, steps: Steps) -> list[RankPace]:
    """The ranks that others wait for in most steps, if they are a minority."""
    limit_ns = max(_LEAST_NS, _SLOW_SHARE * imbalance.step_ns)
    slow = [pace for pace in imbalance.ranks if pace.extra_ns > limit_ns]
    is_steady = sum(pace.slowest_share for pace in slow) >= _SLOWEST_SHARE
    return slow if is_steady and len(slow) * 2 <= len(imbalance.ranks) else []


def _slow(
    world: RecordedWorld, imbalance: Imbalance, slow: Sequence[RankPace], steps: Steps
) -> Finding:
    ranks = tuple(pace.rank for pace in slow)
    worst = slow[0]
    usual_ns = worst.compute_ns - worst.extra_ns
    share = worst.extra_ns / imbalance.step_ns
    others = "the other computes" if len(imbalance.ranks) == 2 else "the others compute"
    verb = "is slow: it computes" if len(slow) == 1 else "are slow: the slowest computes"
    text = (
        f"{capital(named_ranks(ranks, world.names))} {verb} "
        f"for {duration_text(worst.compute_ns)} a step, {others} for {duration_text(usual_ns)}. "
        f"Every step of {duration_text(imbalance.step_ns)} could be up to "
        f"{duration_text(worst.extra_ns)} ({share:.0%}) shorter. "
        f"It was the slowest in {round(worst.slowest_share * steps.count)} of {steps.count} steps."
    )
    return Finding(
        Severity.PROBLEM,
        "slow-rank",
        text,
        _where_to_look(world, ranks),
        ranks,
        evidence={
            "extra_seconds": worst.extra_ns / 1e9,
            "step_seconds": imbalance.step_ns / 1e9,
            "slowest_share": worst.slowest_share,
            "steps": steps.count,
        },
    )


def _where_to_look(world: RecordedWorld, ranks: Sequence[int]) -> str:
    for host in world.hosts:
        if len(host) > 1 and set(host) == set(ranks) and len(world.hosts) > 1:
            return (
                "These are all ranks of one machine: look at what else runs there, its clock rate "
                "and temperature, and where its data comes from."
            )
    own = "what only rank 0 does, such as logging, validation and checkpoints; " * (0 in ranks)
    return (
        f"Look at {own}its data loader and its share of the data, and whether something else uses "
        "its cores (top, py-spy dump --pid)."
    )


def _uneven(imbalance: Imbalance) -> Finding:
    share = imbalance.lost_ns / imbalance.step_ns
    return Finding(
        Severity.ADVICE,
        "uneven",
        f"Ranks take turns at being the slowest, which costs {duration_text(imbalance.lost_ns)} "
        f"({share:.0%}) of a step of {duration_text(imbalance.step_ns)}.",
        "Inputs of different lengths do that (sort them into batches of one length), or machines "
        "where something else uses the cores.",
        evidence={
            "lost_seconds": imbalance.lost_ns / 1e9,
            "step_seconds": imbalance.step_ns / 1e9,
        },
    )


def _transport(world: RecordedWorld, transport_ns: float, step_ns: float) -> Finding:
    across = len(world.hosts) > 1
    return Finding(
        Severity.ADVICE,
        "transport",
        f"Moving and reducing data takes {duration_text(transport_ns)} "
        f"({transport_ns / step_ns:.0%}) of a step of {duration_text(step_ns)}.",
        "Send less: compression=hvd.Compression.fp16, or backward_passes_per_step with more work "
        "between two reductions"
        + ("; horovodrun --check-network measures the links." * across)
        + ("." * (not across)),
        evidence={"transport_seconds": transport_ns / 1e9, "step_seconds": step_ns / 1e9},
    )


def _slow_peer(world: RecordedWorld, slow: SlowPeer, step_ns: float) -> Finding:
    name = world.name_of(slow.peer)
    what = "bytes of" if slow.is_link else "the part of"
    advice = (
        "The link to its machine is slow: horovodrun --check-network with -H measures it."
        if slow.is_link
        else "It starts late on its share of each collective: look whether something else uses its "
        "cores, or whether its threads hold Python's lock for long."
    )
    return Finding(
        Severity.PROBLEM if slow.wait_ns > _SLOW_SHARE * step_ns else Severity.ADVICE,
        "slow-link" if slow.is_link else "slow-peer",
        f"In the middle of collectives, ranks wait {duration_text(slow.wait_ns)} a step for {what} "
        f"{name}, and {duration_text(slow.usual_ns)} for others.",
        advice,
        (slow.peer,),
        evidence={"wait_seconds": slow.wait_ns / 1e9, "usual_seconds": slow.usual_ns / 1e9},
    )
