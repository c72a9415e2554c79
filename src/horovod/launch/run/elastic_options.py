"""The parameters of ``horovod.run`` for elastic jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from horovod.launch.model.argument_checks import check_count, check_integer
from horovod.launch.model.hosts import HostSlots
from horovod.launch.model.job_plan import ElasticPlan, Limits, check_hosts
from horovod.settings import Settings

# What changes nothing without the parameters that make a job elastic.
ELASTIC_PARAMETERS = ("max_num_proc", "reset_limit", "cooldown_range")


def is_elastic_run(values: Mapping[str, Any]) -> bool:
    """Whether the arguments of ``horovod.run`` describe an elastic job.

    Raises:
        ValueError: such a job cannot be what else is asked for.
    """
    is_elastic = values["min_num_proc"] is not None or values["host_discovery_script"] is not None
    if is_elastic and values["use_mpi"]:
        raise ValueError(
            "use_mpi=True and an elastic job: the processes that mpirun starts are always the same"
        )
    return is_elastic


def elastic_plan(
    values: Mapping[str, Any], process_count: int, hosts: tuple[HostSlots, ...]
) -> ElasticPlan:
    """The elastic plan of arguments that ``is_elastic_run`` has checked.

    Raises:
        ValueError: they contradict each other, or a value is out of its range.
        TypeError: one is of another kind than documented.
    """
    limits = _limits(values, process_count)
    script = values["host_discovery_script"]
    if script is None:
        check_hosts(hosts, limits, "cooldown_range=(1, 60)")
        return ElasticPlan(limits)
    command = os.fspath(script)
    if not command.strip():
        raise ValueError(
            f"host_discovery_script={script!r}: expected a command, for example './hosts.sh'"
        )
    slots = values["slots"]
    return ElasticPlan(limits, command, None if slots is None else check_count("slots", slots))


def _limits(values: Mapping[str, Any], np: int) -> Limits:
    min_np = _optional_count("min_num_proc", values) or np
    if min_np > np:
        raise ValueError(f"min_num_proc={min_np}: expected 1 to {np}, which is num_proc")
    max_np = _optional_count("max_num_proc", values)
    if max_np is not None and max_np < np:
        raise ValueError(f"max_num_proc={max_np}: expected {np}, which is num_proc, or more")
    reset_limit = values["reset_limit"]
    if reset_limit is not None and check_integer("reset_limit", reset_limit) < 0:
        raise ValueError(f"reset_limit={reset_limit!r}: expected a number of resets, 0 or more")
    cooldown = _cooldown(values["cooldown_range"])
    timeout_s = Settings.from_env().elastic_timeout_s
    try:
        return Limits(np, min_np, max_np, reset_limit, timeout_s, cooldown)
    except ValueError as error:  # the range itself
        raise ValueError(f"cooldown_range={values['cooldown_range']!r}: {error}") from None


def _optional_count(name: str, values: Mapping[str, Any]) -> int | None:
    return None if values[name] is None else check_count(name, values[name])


def _cooldown(bounds: Any) -> tuple[float, float] | None:
    if bounds is None:
        return None
    try:
        lower, upper = map(float, bounds)
    except (TypeError, ValueError):
        raise ValueError(
            f"cooldown_range={bounds!r}: expected two numbers of seconds, for example (1, 60)"
        ) from None
    return lower, upper
