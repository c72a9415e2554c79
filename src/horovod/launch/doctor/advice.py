"""Findings about speed, settings, tensors and clocks: what would help, with the evidence.

Slow ranks, and what steps spend their time on, come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from horovod.core.base.engine_settings import LINK_COMPRESSIONS, LINK_SHARES
from horovod.launch.doctor.findings import (
    Finding,
    Severity,
    capital,
    duration_text,
    named_ranks,
    note,
    problem,
    title,
)
from horovod.settings import Settings
from horovod.trace.analysis.accounts import Account
from horovod.trace.analysis.clocks import align_clocks
from horovod.trace.analysis.fusion import Alone, Fusion, WhyAlone, find_fusion
from horovod.trace.analysis.slow_ranks import (
    Imbalance,
    RankPace,
    SlowPeer,
    find_imbalance,
    find_slow_peers,
    peer_waits,
)
from horovod.trace.analysis.steps import Steps
from horovod.trace.recording import EventKind
from horovod.trace.report.number_texts import bytes_text
from horovod.trace.worlds import RecordedWorld

# Smaller values are no findings.
_SLOW_SHARE = 0.15  # of a step
_LEAST_NS = 5e5
_SLOWEST_SHARE = 0.7  # of all steps, in which a slow rank is the slowest
_TRANSPORT_SHARE = 0.3
_LINK_SHARE = 0.3
_LOCAL_STEPS = 100
_PEER_SHARE = 0.05  # for one rank, in the middle of collectives


def find_pace(world: RecordedWorld, steps: Steps, accounts: Sequence[Account]) -> Iterator[Finding]:
    """Findings about what makes steps longer than necessary."""
    if (imbalance := find_imbalance(accounts)) is not None:
        if slow := _slow_ranks(imbalance):
            yield _slow(world, imbalance, slow, steps)
        elif imbalance.lost_ns > max(_LEAST_NS, _SLOW_SHARE * imbalance.step_ns):
            yield _uneven(imbalance)
    step_ns = median(account.usual.duration_ns for account in accounts)
    transport_ns = median(account.usual.transport_ns for account in accounts)
    if transport_ns > max(_LEAST_NS, _TRANSPORT_SHARE * step_ns):
        link_ns = median(account.usual.link_ns for account in accounts)
        is_link = link_ns > _LINK_SHARE * step_ns
        yield (
            _link(world, link_ns, step_ns) if is_link else _transport(world, transport_ns, step_ns)
        )
    for slow_peer in find_slow_peers(peer_waits(world.recordings, steps), steps):
        if slow_peer.wait_ns > max(_LEAST_NS, _PEER_SHARE * step_ns):
            yield _slow_peer(world, slow_peer, step_ns)


def _slow_ranks(imbalance: Imbalance) -> list[RankPace]:
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
    return problem(
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
    return _advice(
        "uneven",
        f"Ranks take turns at being the slowest, which costs {duration_text(imbalance.lost_ns)} "
        f"({share:.0%}) of a step of {duration_text(imbalance.step_ns)}.",
        "Inputs of different lengths do that (sort them into batches of one length), or machines "
        "where something else uses the cores.",
        lost_seconds=imbalance.lost_ns / 1e9,
        step_seconds=imbalance.step_ns / 1e9,
    )


def _transport(world: RecordedWorld, transport_ns: float, step_ns: float) -> Finding:
    spans_hosts = len(world.hosts) > 1
    measures = "; horovodrun --check-network measures the links" if spans_hosts else ""
    return _advice(
        "transport",
        f"Moving and reducing data takes {duration_text(transport_ns)} "
        f"({transport_ns / step_ns:.0%}) of a step of {duration_text(step_ns)}.",
        "Send less: compression=hvd.Compression.fp16, or backward_passes_per_step with more work "
        f"between two reductions{measures}.",
        transport_seconds=transport_ns / 1e9,
        step_seconds=step_ns / 1e9,
    )


def _link(world: RecordedWorld, link_ns: float, step_ns: float) -> Finding:
    parts = {f"hvd.DiLoCo with sync_every={_LOCAL_STEPS}": 1 / _LOCAL_STEPS}
    if _settings_of(world).link_compression == LINK_COMPRESSIONS[0]:
        parts = {"compression=hvd.Compression.int8": LINK_SHARES["int8"], **parts}
    shares = {
        what: part * link_ns / (step_ns - (1 - part) * link_ns) for what, part in parts.items()
    }
    return _advice(
        "link",
        f"The network between machines is the limit: for {duration_text(link_ns)} "
        f"({link_ns / step_ns:.0%}) of a step of {duration_text(step_ns)} ranks wait for bytes "
        "from another machine.",
        "Send fewer bytes: "
        + ", ".join(f"{what} would leave about {share:.0%}" for what, share in shares.items())
        + ". horovodrun --check-network measures the links.",
        link_seconds=link_ns / 1e9,
        step_seconds=step_ns / 1e9,
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


# Settings, tensors and clocks.

_MANY = 8  # collectives a step
_SMALL_BYTES = 256 * 1024
_WAIT_SHARE = 0.01  # the share of a step that a setting may cost without a finding
_MOST_SHOWN = 3
_CLOCK_NS = 1e9  # smaller differences of clocks are no finding


def _settings_of(world: RecordedWorld) -> Settings:
    """The settings of the world; the defaults if another version has written them."""
    changed: Mapping[str, str] = world.facts.get("settings") or {}
    try:
        return Settings.from_env(changed)
    except ValueError:
        return Settings()


def find_setting_advice(world: RecordedWorld, step_ns: float) -> Iterator[Finding]:
    """Settings that cost time; ``step_ns`` is the usual step time, 0 if it is not known."""
    settings = _settings_of(world)
    if settings.debug:
        yield _advice(
            "debug",
            "HOROVOD_DEBUG_COLLECTIVES=1 reads every tensor twice more and compares results.",
            "Leave it out once the fault is found.",
        )
    wait_ns = settings.cycle_time_ms * 1e6
    if wait_ns > max(1e6, _WAIT_SHARE * step_ns):
        of_step = f", of a step of {duration_text(step_ns)}" if step_ns else ""
        yield _advice(
            "cycle-time",
            f"HOROVOD_CYCLE_TIME={settings.cycle_time_ms:g}: tensors that are ready may wait "
            f"{duration_text(wait_ns)} for others{of_step}.",
            "Leave it out, or use --cycle-time-ms 0: tensors are fused without it.",
        )
    yield from _cache(world, settings)
    yield from _cores(world)
    yield from _unnamed(world)


def _cache(world: RecordedWorld, settings: Settings) -> Iterator[Finding]:
    recordings, capacity = world.recordings.values(), settings.cache_capacity
    names = {label.key for r in recordings for label in r.labels.values()}
    again = max((len(r.of_kind(EventKind.SUBMIT)) - len(r.labels) for r in recordings), default=0)
    if len(names) > capacity and again > len(names):
        enough = 1 << (len(names) - 1).bit_length()
        yield _advice(
            "cache",
            f"The job uses {len(names)} names of tensors, but remembers {capacity} only: the "
            "others are negotiated anew each time.",
            f"Use --cache-capacity {enough} (HOROVOD_CACHE_CAPACITY).",
            names=len(names),
            capacity=capacity,
        )


def _cores(world: RecordedWorld) -> Iterator[Finding]:
    for host in world.hosts:
        known = (world.recordings[rank].world for rank in host if rank in world.recordings)
        facts = next(known, {})
        cores, threads = int(facts.get("cores") or 0), str(facts.get("threads") or "")
        if not cores:
            continue
        if len(host) > cores:
            yield _advice(
                "cores",
                f"{len(host)} ranks share {cores} core{'s' * (cores > 1)} on the machine of "
                f"rank {host[0]}: they take turns.",
                f"Start {cores} rank{'s' * (cores > 1)} there.",
                ranks_there=len(host),
                cores=cores,
            )
            return
        if threads.isdecimal() and len(threads) < 10 and int(threads) * len(host) > cores:
            yield _advice(
                "threads",
                f"OMP_NUM_THREADS={threads} for each of {len(host)} ranks, but there are "
                f"{cores} cores on the machine of rank {host[0]}.",
                f"Set OMP_NUM_THREADS={max(1, cores // len(host))}.",
                threads=int(threads),
                cores=cores,
            )
            return


def _unnamed(world: RecordedWorld) -> Iterator[Finding]:
    recording = world.recordings[min(world.recordings)]
    names = [label.name for label in recording.labels.values()]
    unnamed = [name for name in names if _is_numbered(name)]
    if len(unnamed) >= _MANY:
        yield _advice(
            "unnamed",
            f"{len(unnamed)} of the last {len(names)} tensors have no name: they are matched by "
            "their order, so one more call on one rank mixes them up, and each is negotiated anew.",
            "Give collectives a name=... that is the same in each step and on all ranks.",
            unnamed=len(unnamed),
        )


def _is_numbered(name: str) -> bool:
    kind, _, number = name.partition(".noname.")
    return number.isdecimal() and kind not in ("barrier", "join")


def find_fusion_advice(world: RecordedWorld, steps: Steps) -> Iterator[Finding]:
    """Small collectives that could be fused."""
    settings = _settings_of(world)
    fusion = find_fusion(world.recordings, steps, settings.fusion_threshold_bytes)
    if fusion is None or fusion.buckets < _MANY or fusion.bucket_bytes > _SMALL_BYTES:
        return
    small = [alone for alone in fusion.alone if alone.size_bytes <= _SMALL_BYTES]
    if len(small) * 2 >= fusion.buckets:
        yield _small_buckets(fusion, small, settings)


def _small_buckets(fusion: Fusion, small: list[Alone], settings: Settings) -> Finding:
    why = max(WhyAlone, key=lambda why: sum(alone.why is why for alone in small))
    shown = ", ".join(title(alone.label) for alone in small[:_MOST_SHOWN])
    dots = ", ..." if len(small) > _MOST_SHOWN else ""
    threshold = bytes_text(settings.fusion_threshold_bytes)
    leave = "Leave it out, or use --fusion-threshold-mb 128."
    reason, advice = {
        WhyAlone.OFF: ("since HOROVOD_FUSION_THRESHOLD is 0", leave),
        WhyAlone.LARGE: (f"since HOROVOD_FUSION_THRESHOLD is {threshold}", leave),
        WhyAlone.NOTHING_ELSE: (
            "since each is submitted when nothing else is under way, as with calls that wait",
            "Submit them all and then wait: DistributedOptimizer, grouped_allreduce, or "
            "allreduce_async and synchronize.",
        ),
        WhyAlone.OTHERS_NOT_READY: (
            "since other ranks submit at other times",
            "Use grouped_allreduce, or num_groups= of DistributedOptimizer, for tensors that "
            "belong together.",
        ),
    }[why]
    return _advice(
        "small-buckets",
        f"A step runs {fusion.buckets:.0f} collectives of {bytes_text(fusion.bucket_bytes)} in the "
        f"middle. {len(small)} small tensors never run together with others ({shown}{dots}), "
        f"{reason}.",
        advice,
        collectives=fusion.buckets,
        never_fused=[alone.label.name for alone in small],
        why=why.value,
    )


def _advice(code: str, text: str, advice: str, **evidence: object) -> Finding:
    return Finding(Severity.ADVICE, code, text, advice, evidence=evidence)


def find_clock_differences(world: RecordedWorld) -> Iterator[Finding]:
    """Hosts whose time of day differs from the first host's."""
    clocks = align_clocks(world.recordings, world.hosts)
    first = next((rank for rank in world.hosts[0] if rank in clocks), None)
    if first is None:
        return
    lines = []
    for host in world.hosts[1:]:
        rank = next((rank for rank in host if rank in clocks), None)
        if rank is None:
            continue
        day_ns = _day_ns(world, rank) - _day_ns(world, first) + clocks[rank].ahead_ns
        if abs(day_ns) > _CLOCK_NS + clocks[rank].error_ns:
            way = "ahead" if day_ns > 0 else "behind"
            lines.append(f"{world.name_of(rank)}: {duration_text(abs(day_ns))} {way}")
    if lines:
        yield note(
            "clocks",
            f"Machines have another time of day than that of {world.name_of(first)}:",
            "Times in their logs cannot be compared before NTP sets their clocks.",
            lines=tuple(lines),
        )


def _day_ns(world: RecordedWorld, rank: int) -> int:
    """The host's time of day minus its monotonic clock."""
    recording = world.recordings[rank]
    return recording.written_epoch_ns - recording.written_ns
