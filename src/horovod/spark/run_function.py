"""``horovod.spark.run``: a function on processes that Spark has placed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from horovod.launch.embedded.external_workers import positions_on
from horovod.launch.model.argument_checks import check_count
from horovod.launch.model.job_plan import EmbeddedAgentAddress, JobPlan, OtherHosts
from horovod.launch.run.function import run_call
from horovod.launch.workers.python_command import python_command
from horovod.spark import settings
from horovod.spark.stage import GuestStage, active_context
from horovod.spark.streams import descriptors_of
from horovod.spark.task_info import Names, TaskInfo

__all__ = ["run"]

T = TypeVar("T")


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[T]:
    """Call ``fn(*args, **kwargs)`` in ``num_proc`` processes on a Spark cluster; results by rank.

    A Spark job with a task for each process runs meanwhile; a process is a child of its task and
    ends with it. Tasks of one machine have consecutive ranks and share memory. ``fn`` calls
    ``horovod.torch.init()`` or its like. Blocks until all have ended; from any thread. Function,
    arguments and results are pickled with cloudpickle.

    Args:
        num_proc: default ``SparkContext.defaultParallelism``.
        start_timeout: seconds that Spark has to start all tasks; default
            ``HOROVOD_SPARK_START_TIMEOUT``, or 600.
        env: variables of the processes beside those of their tasks; default this process's.
        stdout, stderr: objects with ``write`` that get what the processes print, line by line with
            the rank in front; default this process's standard output and error.
        verbose: 0 prints nothing about the job itself, 2 which processes start and end.
        nics: names of the network interfaces that may be used; default all.
        prefix_output_with_timestamp: the time goes before each line.
        executable: the processes' Python; default that of the tasks.
        use_gloo: accepted, the native engine needs no MPI.

    Raises:
        Exception: there is no active SparkContext.
        TimeoutError: the tasks have not started in time.
        RuntimeError: a process raised, exited or died before it had a result, an executor was
            lost, or Spark has ended the job. The text says which was the first; an exception of
            ``fn`` is ``__cause__`` if it can be pickled. No process is left. KeyboardInterrupt
            and the job's cancellation in Spark end them in the same way.
        ValueError, TypeError: an argument is not what it should be.
    """
    call = settings.call_of(fn, args, kwargs)
    settings.refuse_mpi(use_mpi, extra_mpi_args)
    context = active_context()
    count = check_count("num_proc", context.defaultParallelism if num_proc is None else num_proc)
    timeout_s = settings.start_timeout_s(start_timeout, os.environ)
    interfaces, environ = settings.interfaces(nics), settings.environment(env)
    # The launcher is on its way while Spark starts the tasks; what they are comes behind.
    plan = settings.job_plan(
        verbose,
        prefix_output_with_timestamp,
        slots=tuple(positions_on([""] * count)),
        command=tuple(python_command(executable, "calls.worker")) if executable else (),
    )
    stage = GuestStage(context, count, interfaces, timeout_s)

    def complete(plan: JobPlan) -> JobPlan:
        return _on_guests(plan, stage.cards(count, timeout_s), stage.secret, interfaces)

    with stage, descriptors_of(stdout, stderr) as streams, stage.blamed():
        return run_call(call, plan, environ, streams, complete=complete)


def _on_guests(
    plan: JobPlan, cards: Mapping[int, TaskInfo], secret: bytes, interfaces: tuple[str, ...]
) -> JobPlan:
    """``plan`` with a slot for each of ``cards``, in the order of their ranks."""
    names = Names()
    by_index = [cards[index] for index in sorted(cards)]
    places = positions_on([names.node_of(card) for card in by_index])
    ranked = sorted(zip(places, by_index, strict=True), key=lambda pair: pair[0].rank)
    guests = {names.of(card): EmbeddedAgentAddress(*card.address, secret) for _, card in ranked}
    slots = [replace(slot, hostname=names.of(card)) for slot, card in ranked]
    others = OtherHosts(
        addresses={name: (address.host,) for name, address in guests.items()},
        agents=guests,
        interfaces=interfaces,
    )
    return replace(plan, slots=tuple(slots), others=others)
