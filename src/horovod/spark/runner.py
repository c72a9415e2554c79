"""``horovod.spark.run`` and ``run_elastic``: a function on processes that Spark has placed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from horovod.launch.embedded.agent_news import AgentDirectory, FoundAgent
from horovod.launch.embedded.external_workers import positions_on
from horovod.launch.model.argument_checks import check_count, check_limits, renamed
from horovod.launch.model.hosts import chosen_interfaces
from horovod.launch.model.job_plan import ElasticPlan, EmbeddedAgentAddress, JobPlan, OtherHosts
from horovod.launch.run.function import run_call
from horovod.launch.workers.python_command import python_command
from horovod.spark import (
    needed,  # noqa: F401  # first: it names a missing package
    settings,
)
from horovod.spark.settings import descriptors_of
from horovod.spark.stage import AgentStage, active_context
from horovod.spark.task import AgentNames, TaskInfo

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

    Meanwhile a Spark job runs with a task for each process; a process is a child of its task and
    ends with it. Tasks of one machine have consecutive ranks and share memory. ``fn`` calls
    ``horovod.torch.init()`` or that of another framework. Blocks until all processes have ended;
    any thread may call it. Function, arguments and results are pickled with cloudpickle.

    Args:
        num_proc: default ``SparkContext.defaultParallelism``.
        start_timeout: seconds that Spark has to start all tasks; default
            ``HOROVOD_SPARK_START_TIMEOUT``, or 600.
        env: variables that are added to those of the tasks; default this process's environment.
        stdout, stderr: objects with ``write`` that get the processes' output, line by line with the
            rank in front; default this process's standard output and error.
        verbose: 0 prints nothing about the job itself, 2 prints starts and ends of processes.
        nics: names of the network interfaces that may be used; default all.
        prefix_output_with_timestamp: write the time before each line.
        executable: the processes' Python; default that of the tasks.
        use_gloo: has no effect; the native engine needs no MPI.

    Raises:
        Exception: there is no active SparkContext.
        TimeoutError: the tasks did not start in time.
        RuntimeError: a process raised, exited or died without a result, an executor was lost, or
            Spark has ended the job. The text names the first failure; an exception of ``fn`` is
            ``__cause__`` if it can be pickled. No process is left, also after KeyboardInterrupt
            and after the job's cancellation in Spark.
        ValueError, TypeError: an argument is unusable.
    """
    call = settings.call_of(fn, args, kwargs)
    settings.refuse_mpi(use_mpi, extra_mpi_args)
    context = active_context()
    count = check_count("num_proc", context.defaultParallelism if num_proc is None else num_proc)
    timeout_s = settings.start_timeout_s(start_timeout, os.environ)
    interfaces, environ = chosen_interfaces(nics), settings.environment(env)
    # The launcher starts while Spark starts the tasks; ``complete`` adds the tasks.
    plan = settings.job_plan(
        verbose,
        prefix_output_with_timestamp,
        slots=tuple(positions_on([""] * count)),
        command=tuple(python_command(executable, "calls.worker")) if executable else (),
    )
    stage = AgentStage(context, count, interfaces, timeout_s)

    def complete(plan: JobPlan) -> JobPlan:
        return _with_agents(plan, stage.wait_for_tasks(count, timeout_s), stage.secret, interfaces)

    with stage, descriptors_of(stdout, stderr) as streams, stage.explaining():
        return run_call(call, plan, environ, streams, complete=complete)


def run_elastic(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[T]:
    """``run`` for an ``fn`` that calls a function with the decorator ``hvd.elastic.run``.

    Spark restarts the task of a process that failed or whose executor was lost, as often and where
    its configuration allows (``spark.task.maxFailures``; see ``horovod.spark.conf``). Meanwhile the
    other processes go on from their last commit. The job ends when Spark gives up.

    Args:
        num_proc: processes at the start; default ``SparkContext.defaultParallelism``.
        min_num_proc: the least number of processes; with fewer the job waits. Default ``num_proc``.
            ``min_np`` is its deprecated name.
        max_num_proc: the number of tasks that Spark is asked for; it may start fewer. Default
            ``num_proc``. ``max_np`` is its deprecated name.
        start_timeout: seconds that Spark has to start the first ``num_proc`` tasks; default
            ``HOROVOD_SPARK_START_TIMEOUT``, or 600.
        elastic_timeout: seconds that the job waits for enough processes later; default
            ``HOROVOD_ELASTIC_TIMEOUT``, or 600.
        reset_limit: the number of new worlds after which the job ends; default no limit.

    The other parameters are those of ``run``.

    Returns:
        The results of all ranks of the last world, by rank.

    Raises:
        Exception: there is no active SparkContext.
        TimeoutError: ``num_proc`` tasks did not start in time.
        RuntimeError: the job cannot go on, or Spark has ended it. No process is left.
        ValueError, TypeError: an argument is unusable.
    """
    call = settings.call_of(fn, args, kwargs)
    least = renamed("min_np", min_np, "min_num_proc", min_num_proc, 3)
    most = renamed("max_np", max_np, "max_num_proc", max_num_proc, 3)
    context = active_context()
    count = check_count("num_proc", context.defaultParallelism if num_proc is None else num_proc)
    most = count if most is None else most
    elastic_timeout_s = settings.elastic_timeout_s(elastic_timeout)
    limits = check_limits(count, least, most, reset_limit, elastic_timeout_s)
    timeout_s = settings.start_timeout_s(start_timeout, os.environ)
    interfaces, environ = chosen_interfaces(nics), settings.environment(env)
    plan = settings.job_plan(
        verbose,
        prefix_output_with_timestamp,
        others=OtherHosts(interfaces=interfaces),
        elastic=ElasticPlan(limits, most_results=limits.max_np),
    )
    directory, names = AgentDirectory(), AgentNames()

    def write_agents(tasks: Sequence[TaskInfo]) -> None:
        # A restarted task has another name.
        agents = {names.of(task): _agent_of(task, stage.secret) for task in tasks}
        directory.write({name: FoundAgent(address) for name, address in agents.items()})

    stage = AgentStage(
        context,
        limits.max_np or count,
        interfaces,
        timeout_s,
        is_elastic=True,
        on_tasks=write_agents,
        on_end=directory.give_up,
    )

    def complete(plan: JobPlan) -> JobPlan:
        stage.wait_for_tasks(count, timeout_s)
        return plan

    with stage, descriptors_of(stdout, stderr) as streams, stage.explaining():
        return run_call(call, plan, environ, streams, agents=directory, complete=complete)


def _with_agents(
    plan: JobPlan, tasks: Mapping[int, TaskInfo], secret: bytes, interfaces: tuple[str, ...]
) -> JobPlan:
    """``plan`` with a slot for each of ``tasks``, in the order of their ranks."""
    names = AgentNames()
    by_index = [tasks[index] for index in sorted(tasks)]
    slots = positions_on([names.node_of(task) for task in by_index])
    ranked = sorted(zip(slots, by_index, strict=True), key=lambda pair: pair[0].rank)
    agents = {names.of(task): _agent_of(task, secret) for _, task in ranked}
    others = OtherHosts(
        addresses={name: (address.host,) for name, address in agents.items()},
        agents=agents,
        interfaces=interfaces,
    )
    ranked_slots = tuple(replace(slot, hostname=names.of(task)) for slot, task in ranked)
    return replace(plan, slots=ranked_slots, others=others)


def _agent_of(task: TaskInfo, secret: bytes) -> EmbeddedAgentAddress:
    return EmbeddedAgentAddress(*task.address, secret)
