"""Findings about settings, tensors and clocks: what would help, with the evidence."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.launch.doctor.findings import (
    Finding,
    Severity,
    duration_text,
    title,
)
from horovod.settings import Settings
from horovod.trace.analysis.clocks import align_clocks
from horovod.trace.analysis.fusion import Alone, Fusion, WhyAlone, find_fusion
from horovod.trace.analysis.steps import Steps
from horovod.trace.recording import EventKind
from horovod.trace.report.number_texts import bytes_text
from horovod.trace.worlds import RecordedWorld

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


def find_setting_advice(world: RecordedWorld, step_ns: float) -> list[Finding]:
    """Settings that cost time; ``step_ns`` is the usual step time, 0 if it is not known."""
    settings = _settings_of(world)
    findings = []
    if settings.debug:
        findings.append(
            _advice(
                "debug",
                "HOROVOD_DEBUG_COLLECTIVES=1 reads every tensor twice more and compares results.",
                "Leave it out once the fault is found.",
            )
        )
    wait_ns = settings.cycle_time_ms * 1e6
    if wait_ns > max(1e6, _WAIT_SHARE * step_ns):
        of_step = f", of a step of {duration_text(step_ns)}" if step_ns else ""
        findings.append(
            _advice(
                "cycle-time",
                f"HOROVOD_CYCLE_TIME={settings.cycle_time_ms:g}: tensors that are ready may wait "
                f"{duration_text(wait_ns)} for others{of_step}.",
                "Leave it out, or use --cycle-time-ms 0: tensors are fused without it.",
            )
        )
    findings += [*_cache(world, settings), *_cores(world), *_unnamed(world)]
    return findings


def _cache(world: RecordedWorld, settings: Settings) -> list[Finding]:
    names = {label.key for r in world.recordings.values() for label in r.labels.values()}
    again = 0
    for recording in world.recordings.values():
        submits = recording.of_kind(EventKind.SUBMIT)
        again = max(again, len(submits) - len(recording.labels))
    capacity = settings.cache_capacity
    if len(names) <= capacity or again <= len(names):
        return []
    return [
        _advice(
            "cache",
            f"The job uses {len(names)} names of tensors, but remembers {capacity} only: the "
            "others are negotiated anew each time.",
            f"Use --cache-capacity {_round_up(len(names))} (HOROVOD_CACHE_CAPACITY).",
            names=len(names),
            capacity=capacity,
        )
    ]


def _round_up(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _cores(world: RecordedWorld) -> list[Finding]:
    for host in world.hosts:
        known = [rank for rank in host if rank in world.recordings]
        if not known:
            continue
        facts = world.recordings[known[0]].world
        cores, threads = int(facts.get("cores") or 0), str(facts.get("threads") or "")
        if not cores:
            continue
        if len(host) > cores:
            return [
                _advice(
                    "cores",
                    f"{len(host)} ranks share {cores} core{'s' * (cores > 1)} on the machine of "
                    f"rank {host[0]}: they take turns.",
                    f"Start {cores} rank{'s' * (cores > 1)} there.",
                    ranks_there=len(host),
                    cores=cores,
                )
            ]
        if threads.isdecimal() and len(threads) < 10 and int(threads) * len(host) > cores:
            return [
                _advice(
                    "threads",
                    f"OMP_NUM_THREADS={threads} for each of {len(host)} ranks, but there are "
                    f"{cores} cores on the machine of rank {host[0]}.",
                    f"Set OMP_NUM_THREADS={max(1, cores // len(host))}.",
                    threads=int(threads),
                    cores=cores,
                )
            ]
    return []


def _unnamed(world: RecordedWorld) -> list[Finding]:
    recording = world.recordings[min(world.recordings)]
    names = [label.name for label in recording.labels.values()]
    unnamed = [name for name in names if _is_numbered(name)]
    if len(unnamed) < _MANY:
        return []
    return [
        _advice(
            "unnamed",
            f"{len(unnamed)} of the last {len(names)} tensors have no name: they are matched by "
            "their order, so one more call on one rank mixes them up, and each is negotiated anew.",
            "Give collectives a name=... that is the same in each step and on all ranks.",
            unnamed=len(unnamed),
        )
    ]


def _is_numbered(name: str) -> bool:
    kind, _, number = name.partition(".noname.")
    return number.isdecimal() and kind not in ("barrier", "join")


def find_fusion_advice(world: RecordedWorld, steps: Steps) -> list[Finding]:
    """Small collectives that could be fused."""
    settings = _settings_of(world)
    fusion = find_fusion(world.recordings, steps, settings.fusion_threshold_bytes)
    if fusion is None or fusion.buckets < _MANY or fusion.bucket_bytes > _SMALL_BYTES:
        return []
    small = [alone for alone in fusion.alone if alone.size_bytes <= _SMALL_BYTES]
    if len(small) * 2 < fusion.buckets:
        return []
    return [_small_buckets(fusion, small, settings)]


def _small_buckets(fusion: Fusion, small: list[Alone], settings: Settings) -> Finding:
    why = max(WhyAlone, key=lambda why: sum(alone.why is why for alone in small))
    shown = ", ".join(title(alone.label) for alone in small[:_MOST_SHOWN])
    dots = ", ..." if len(small) > _MOST_SHOWN else ""
    threshold = bytes_text(settings.fusion_threshold_bytes)
    reason, advice = {
        WhyAlone.OFF: (
            "since HOROVOD_FUSION_THRESHOLD is 0",
            "Leave it out, or use --fusion-threshold-mb 128.",
        ),
        WhyAlone.LARGE: (
            f"since HOROVOD_FUSION_THRESHOLD is {threshold}",
            "Leave it out, or use --fusion-threshold-mb 128.",
        ),
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


def find_clock_differences(world: RecordedWorld) -> list[Finding]:
    """Hosts whose time of day differs from the first host's."""
    clocks = align_clocks(world.recordings, world.hosts)
    first = next((rank for rank in world.hosts[0] if rank in clocks), None)
    if first is None:
        return []
    lines = []
    for host in world.hosts[1:]:
        rank = next((rank for rank in host if rank in clocks), None)
        if rank is None:
            continue
        day_ns = _day_ns(world, rank) - _day_ns(world, first) + clocks[rank].ahead_ns
        if abs(day_ns) > _CLOCK_NS + clocks[rank].error_ns:
            way = "ahead" if day_ns > 0 else "behind"
            lines.append(f"{world.name_of(rank)}: {duration_text(abs(day_ns))} {way}")
    if not lines:
        return []
    return [
        Finding(
            Severity.NOTE,
            "clocks",
            f"Machines have another time of day than that of {world.name_of(first)}:",
            "Times in their logs cannot be compared before NTP sets their clocks.",
            lines=tuple(lines),
        )
    ]


def _day_ns(world: RecordedWorld, rank: int) -> int:
    """The host's time of day minus its monotonic clock."""
    recording = world.recordings[rank]
    return recording.written_epoch_ns - recording.written_ns
