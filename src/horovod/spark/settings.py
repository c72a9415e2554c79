"""Parameters that ``run`` and ``run_elastic`` have in common, checked before a start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from horovod.launch.calls.call import Call
from horovod.launch.model.argument_checks import check_seconds
from horovod.launch.model.hosts import interface_names
from horovod.launch.model.job_plan import JobPlan
from horovod.settings import Settings

__all__ = [
    "call_of",
    "elastic_timeout_s",
    "environment",
    "interfaces",
    "job_plan",
    "refuse_mpi",
    "start_timeout_s",
]

_START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"
_START_TIMEOUT_S = 600.0


def call_of(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Call:
    """What every worker does. Raises TypeError if nobody can call ``fn``."""
    if not callable(fn):
        raise TypeError(f"fn={fn!r}: expected a function")
    return Call(fn, tuple(args), dict(kwargs or {}), tuple(sys.argv))


def job_plan(verbose: int, is_timestamped: bool, **fields: Any) -> JobPlan:
    """A job with these ``fields``, whose workers print to the driver."""
    return JobPlan(
        **fields, is_verbose=verbose > 1, is_silent=verbose < 1, is_timestamped=is_timestamped
    )


def start_timeout_s(given: Any, environ: Mapping[str, str]) -> float:
    """How long Spark may take to start the tasks. Raises ValueError."""
    if given is not None:
        return check_seconds("start_timeout", given) or _START_TIMEOUT_S
    text = environ.get(_START_TIMEOUT, "")
    try:
        return check_seconds(_START_TIMEOUT, text or None) or _START_TIMEOUT_S
    except ValueError:
        raise ValueError(f"{_START_TIMEOUT}={text!r}: expected a number of seconds") from None


def elastic_timeout_s(given: Any) -> float:
    """How long an elastic job may be without a world. Raises ValueError."""
    return check_seconds("elastic_timeout", given) or Settings.from_env().elastic_timeout_s


def interfaces(nics: Any) -> tuple[str, ...]:
    """Names of network interfaces, of a set or a list of names, or one comma string."""
    texts: Iterable[str] = [nics] if isinstance(nics, str) else sorted(nics or ())
    return interface_names(texts)


def refuse_mpi(use_mpi: Any, extra_mpi_args: Any) -> None:
    """Raises ValueError: Spark's tasks are no hosts that an ``mpirun`` could reach."""
    if use_mpi or extra_mpi_args:
        raise ValueError(
            f"use_mpi={use_mpi!r}, extra_mpi_args={extra_mpi_args!r}: Spark starts the processes, "
            "and their data goes over the native engine; leave both out"
        )


def environment(env: Any) -> dict[str, str]:
    """What the workers get beside what their tasks have. Raises TypeError."""
    if env is None:
        return dict(os.environ)
    if not isinstance(env, Mapping):
        raise TypeError(f"env argument must be a dict, not {type(env).__name__}: {env!r}")
    return {str(name): str(value) for name, value in env.items()}
