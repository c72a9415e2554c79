"""Every setting of the engine and the tools: one frozen dataclass, read once at ``init``.

A field carries its environment variable, unit and meaning as metadata; the environment reader below
derives from it, and a test holds README's table to it. Nothing else reads ``HOROVOD_*`` tunables
from the environment, and the C++ engine reads none at all.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from horovod.errors import SettingError

__all__ = ["LOG_LEVELS", "Settings"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


def _setting(
    env: str,
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    minimum: float = 0,
    maximum: float = 1e9,
) -> Any:
    metadata = {
        "env": env,
        "meaning": meaning,
        "unit": unit,
        "minimum": minimum,
        "maximum": maximum,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """What a user can set. Construct it directly in tests; ``from_env`` reads the environment."""

    fusion_threshold_bytes: int = _setting(
        "HOROVOD_FUSION_THRESHOLD",
        128 * 1024 * 1024,
        "Largest number of bytes that run as one collective; 0 runs every tensor alone.",
        unit="bytes",
        maximum=2**62,
    )
    disable_group_fusion: bool = _setting(
        "HOROVOD_DISABLE_GROUP_FUSION",
        False,
        "1 keeps grouped operations apart from all others when they run.",
    )
    cycle_time_ms: float = _setting(
        "HOROVOD_CYCLE_TIME",
        0.0,
        "Longest time the background thread waits for more tensors before it starts what is ready; "
        "0 leaves it to the engine. A thread that waits for a result never waits for company.",
        unit="ms",
    )
    cache_capacity: int = _setting(
        "HOROVOD_CACHE_CAPACITY",
        1024,
        "Tensor names whose negotiated request is remembered; 0 forgets each one at once.",
        unit="names",
    )
    dynamic_process_sets: bool = _setting(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        False,
        "1 lets add_process_set and remove_process_set change the process sets.",
    )
    stall_check_disable: bool = _setting(
        "HOROVOD_STALL_CHECK_DISABLE", False, "1 turns the stall check off."
    )
    stall_check_time_s: float = _setting(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        60.0,
        "Warn about tensors that some ranks did not submit for this long.",
        unit="s",
    )
    stall_shutdown_time_s: float = _setting(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        0.0,
        "Fail all pending operations when a tensor stalls this long, warned of or not; 0: never.",
        unit="s",
    )
    start_timeout_s: float = _setting(
        "HOROVOD_START_TIMEOUT",
        30.0,
        "Longest time for all ranks to meet in init.",
        unit="s",
        minimum=0.001,
    )
    tensorflow_native_ops: bool = _setting(
        "HOROVOD_TENSORFLOW_NATIVE_OPS",
        True,
        "0 runs TensorFlow's collectives as Python operations instead of the native plugin's.",
    )
    log_level: str = _setting(
        "HOROVOD_LOG_LEVEL", "warning", "trace, debug, info, warning, error or fatal."
    )
    log_hide_time: bool = _setting("HOROVOD_LOG_HIDE_TIME", False, "1 leaves the time out of logs.")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings from ``environ`` (default: the process environment); refuses bad values."""
        environ = os.environ if environ is None else environ
        given = {
            f.name: _parse(f, environ[f.metadata["env"]])
            for f in dataclasses.fields(cls)
            if f.metadata["env"] in environ
        }
        return cls(**given)


def _parse(setting: dataclasses.Field[Any], text: str) -> Any:
    env: str = setting.metadata["env"]
    kind: Any = type(setting.default)
    if kind is bool:
        return _parse_bool(env, text)
    if kind is str:
        if text.lower() not in LOG_LEVELS:
            raise SettingError(f"{env}={text!r}: expected one of {', '.join(LOG_LEVELS)}")
        return text.lower()
    try:
        value = kind(text)
    except ValueError:
        expected = "an integer" if kind is int else "a number"
        raise SettingError(f"{env}={text!r}: expected {expected}") from None
    low, high = setting.metadata["minimum"], setting.metadata["maximum"]
    if not low <= value <= high:  # false for nan
        raise SettingError(f"{env}={text!r}: must be at least {low:g} and at most {high:g}")
    return value


def _parse_bool(env: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SettingError(f"{env}={text!r}: expected 1 or 0")
