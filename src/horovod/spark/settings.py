"""The common arguments of ``run`` and ``run_elastic``, checked before a start; needs no Spark."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from horovod.launch.calls.call import Call
from horovod.launch.model.argument_checks import check_seconds
from horovod.launch.model.job_plan import JobPlan
from horovod.settings import Settings

_START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"
_START_TIMEOUT_S = 600.0


def call_of(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Call:
    """The call that every worker makes. Raises TypeError if ``fn`` is not callable."""
    if not callable(fn):
        raise TypeError(f"fn={fn!r}: expected a function")
    return Call(fn, tuple(args), dict(kwargs or {}), tuple(sys.argv))


def job_plan(verbose: int, is_timestamped: bool, **fields: Any) -> JobPlan:
    """A job with these ``fields``, whose workers print to the driver."""
    return JobPlan(
        **fields, is_verbose=verbose > 1, is_silent=verbose < 1, is_timestamped=is_timestamped
    )


def start_timeout_s(given: Any, environ: Mapping[str, str]) -> float:
    """The time that Spark has to start the tasks. Raises ValueError."""
    if given is not None:
        return check_seconds("start_timeout", given) or _START_TIMEOUT_S
    text = environ.get(_START_TIMEOUT, "")
    try:
        return check_seconds(_START_TIMEOUT, text or None) or _START_TIMEOUT_S
    except ValueError:
        raise ValueError(f"{_START_TIMEOUT}={text!r}: expected a number of seconds") from None


def elastic_timeout_s(given: Any) -> float:
    """The time that an elastic job may be without a world. Raises ValueError."""
    return check_seconds("elastic_timeout", given) or Settings.from_env().elastic_timeout_s


def refuse_mpi(use_mpi: Any, extra_mpi_args: Any) -> None:
    """Raise ValueError for MPI's arguments: ``mpirun`` cannot reach Spark's tasks."""
    if use_mpi or extra_mpi_args:
        raise ValueError(
            f"use_mpi={use_mpi!r}, extra_mpi_args={extra_mpi_args!r}: Spark starts the processes, "
            "and their data goes over the native engine; leave both out"
        )


def environment(env: Any) -> dict[str, str]:
    """The variables that are added to those of the tasks. Raises TypeError."""
    if env is None:
        return dict(os.environ)
    if not isinstance(env, Mapping):
        raise TypeError(f"env argument must be a dict, not {type(env).__name__}: {env!r}")
    return {str(name): str(value) for name, value in env.items()}


@contextlib.contextmanager
def descriptors_of(stdout: Any, stderr: Any) -> Iterator[tuple[int | None, int | None]]:
    """Descriptors of pipes to these objects (None for None); all text is written at the end."""
    with contextlib.ExitStack() as open_pipes:
        yield (
            None if stdout is None else open_pipes.enter_context(_pipe_to(stdout)),
            None if stderr is None else open_pipes.enter_context(_pipe_to(stderr)),
        )


@contextlib.contextmanager
def _pipe_to(stream: Any) -> Iterator[int]:
    reader, writer = os.pipe()
    thread = threading.Thread(target=_copy, args=(reader, stream), daemon=True)
    thread.start()
    try:
        yield writer
    finally:
        os.close(writer)
        thread.join()


def _copy(reader: int, stream: Any) -> None:
    with open(reader, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            stream.write(line)
