"""What autotuning may change, and the values that it tries for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from horovod.settings import Settings

__all__ = ["INITIAL_POINTS", "Knob", "Surroundings", "Values", "knobs_for", "narrowed", "values_of"]

# Values by names of settings.
Values = Mapping[str, float]

_MB = 1024 * 1024
_FUSION, _CYCLE = "fusion_threshold_bytes", "cycle_time_ms"
_BLOCK = "allreduce_block_kb"
_SMALL, _SMALL_BETWEEN_HOSTS = "small_allreduce_kb", "small_allreduce_between_hosts_kb"
_LEVELS: Mapping[str, tuple[float, ...]] = {
    _FUSION: tuple(megabytes * _MB for megabytes in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    _CYCLE: (0, 0.2, 1, 5, 10, 25, 50),
    _BLOCK: (64, 128, 256, 512, 1024),
    _SMALL: (0, 16, 64, 256, 1024),
    _SMALL_BETWEEN_HOSTS: (0, 16, 64, 256, 1024, 4096),
}
# Where the documented interface begins its search, the defaults apart.
INITIAL_POINTS: Sequence[Values] = tuple(
    {_FUSION: megabytes * _MB, _CYCLE: cycle_ms}
    for megabytes, cycle_ms in ((4, 5), (32, 50), (16, 25), (8, 10))
)


@dataclass(frozen=True)
class Knob:
    """A setting, and the values for it, rising."""

    name: str
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Surroundings:
    """What decides which knobs there are."""

    is_native: bool  # the data plane
    spans_hosts: bool


def knobs_for(settings: Settings, given: Collection[str], around: Surroundings) -> tuple[Knob, ...]:
    """What may change: settings that matter here and that the user has not ``given`` a value."""
    names = [_FUSION, _CYCLE]
    if around.is_native:
        names += [_BLOCK, _SMALL_BETWEEN_HOSTS if around.spans_hosts else _SMALL]
    return tuple(
        Knob(name, tuple(sorted({*_LEVELS[name], getattr(settings, name)})))
        for name in names
        if name not in given
    )


def values_of(settings: Settings) -> Values:
    """What holds without autotuning, of all settings that are knobs anywhere."""
    return {name: getattr(settings, name) for name in _LEVELS}


def narrowed(knobs: Sequence[Knob], defaults: Values, step_bytes: float) -> tuple[Knob, ...]:
    """``knobs`` without what makes no difference where a step moves ``step_bytes`` bytes.

    All fusion thresholds that take in a whole step are alike.
    """
    kept = []
    for knob in knobs:
        levels = knob.levels
        if knob.name == _FUSION:
            default = defaults[_FUSION]
            takes_all = default >= step_bytes
            levels = tuple(
                level for level in levels if level == default or level < step_bytes or not takes_all
            )
        if len(levels) > 1:
            kept.append(Knob(knob.name, levels))
    return tuple(kept)
