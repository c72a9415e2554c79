"""The settings that autotuning may change, and the values it tries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from horovod.core.base.engine_settings import LINK_COMPRESSIONS
from horovod.settings import Settings

Value = float | str
# Values by names of settings.
Values = Mapping[str, Value]

_MB = 1024 * 1024
_FUSION, _CYCLE = "fusion_threshold_bytes", "cycle_time_ms"
_BLOCK = "allreduce_block_kb"
_SMALL, _SMALL_BETWEEN_HOSTS = "small_allreduce_kb", "small_allreduce_between_hosts_kb"
_COMPRESSION = "link_compression"
_LEVELS: Mapping[str, tuple[float, ...]] = {
    _FUSION: tuple(megabytes * _MB for megabytes in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    _CYCLE: (0, 0.2, 1, 5, 10, 25, 50),
    _BLOCK: (64, 128, 256, 512, 1024),
    _SMALL: (0, 16, 64, 256, 1024),
    _SMALL_BETWEEN_HOSTS: (0, 16, 64, 256, 1024, 4096),
}
# The search begins with these points after the defaults, as documented: first each format alone.
INITIAL_POINTS: Sequence[Values] = (
    *({_COMPRESSION: name} for name in LINK_COMPRESSIONS[1:]),
    *(
        {_FUSION: megabytes * _MB, _CYCLE: cycle_ms}
        for megabytes, cycle_ms in ((4, 5), (32, 50), (16, 25), (8, 10))
    ),
)


class Knob(NamedTuple):
    """A setting and the values to try: numbers ascending, formats as in ``LINK_COMPRESSIONS``."""

    name: str
    levels: tuple[Value, ...]


class Surroundings(NamedTuple):
    """The facts that decide which settings are knobs."""

    is_native: bool  # the data plane
    spans_hosts: bool


def knobs_for(settings: Settings, given: Collection[str], around: Surroundings) -> tuple[Knob, ...]:
    """The settings that have an effect here and that the user has not ``given`` a value."""
    names = [_FUSION, _CYCLE]
    if around.is_native:
        names += [_BLOCK, _SMALL_BETWEEN_HOSTS if around.spans_hosts else _SMALL]
        # It changes results, so the user must have named the formats. No other knob does.
        if around.spans_hosts and settings.autotune_link_compression:
            names.append(_COMPRESSION)
    return tuple(Knob(name, _levels(name, settings)) for name in names if name not in given)


def _levels(name: str, settings: Settings) -> tuple[Value, ...]:
    default = getattr(settings, name)
    if name == _COMPRESSION:
        tried = {default, *settings.autotune_link_compression}
        return tuple(each for each in LINK_COMPRESSIONS if each in tried)
    return tuple(sorted({*_LEVELS[name], default}))


def values_of(settings: Settings) -> Values:
    """The values without autotuning of all settings that can be knobs."""
    return {name: getattr(settings, name) for name in (*_LEVELS, _COMPRESSION)}


def narrowed(knobs: Sequence[Knob], defaults: Values, step_bytes: float) -> tuple[Knob, ...]:
    """``knobs`` without values that change nothing if a step moves ``step_bytes`` bytes.

    All fusion thresholds above a step's bytes have the same effect.
    """
    kept = []
    for knob in knobs:
        levels = knob.levels
        default = defaults[knob.name]
        if knob.name == _FUSION and float(default) >= step_bytes:
            levels = tuple(e for e in levels if e == default or float(e) < step_bytes)
        if len(levels) > 1:
            kept.append(Knob(knob.name, levels))
    return tuple(kept)
