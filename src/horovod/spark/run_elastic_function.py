"""``horovod.spark.run_elastic``: a function on processes that may be lost, and are replaced."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pyspark import SparkContext

from horovod.launch.embedded.agent_news import AgentDirectory, FoundAgent
from horovod.launch.model.argument_checks import check_count, check_integer
from horovod.launch.model.job_plan import (
    ElasticPlan,
    EmbeddedAgentAddress,
    JobPlan,
    Limits,
    OtherHosts,
)
from horovod.launch.run.function import run_call
from horovod.spark import settings
from horovod.spark.stage import GuestStage, active_context
from horovod.spark.streams import descriptors_of
from horovod.spark.task_info import Names, TaskInfo

__all__ = ["run_elastic"]

T = TypeVar("T")


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
    """``run`` for an ``fn`` that calls a function which ``hvd.elastic.run`` decorates.

    Spark starts the task of a process that failed, or whose executor is lost, once more, as often
    and where its configuration allows that (``spark.task.maxFailures``; see
    ``horovod.spark.conf``); the others go on meanwhile from their last commit. When Spark gives up,
    so does the job.

    Args:
        num_proc: processes to begin with; default ``SparkContext.defaultParallelism``.
        min_num_proc: the job goes on with so many, and waits with fewer; default ``num_proc``.
            ``min_np`` is its deprecated name.
        max_num_proc: tasks that Spark is asked for, of which it need not start all; default
            ``num_proc``. ``max_np`` is its deprecated name.
        start_timeout: seconds that Spark has to start the first ``num_proc`` tasks; default
            ``HOROVOD_SPARK_START_TIMEOUT``, or 600.
        elastic_timeout: seconds that the job waits for enough processes later on; default
            ``HOROVOD_ELASTIC_TIMEOUT``, or 600.
        reset_limit: end the job instead of making a new world more often; default never.

    The other parameters are those of ``run``.

    Returns:
        The results of all ranks of the last world, by rank.

    Raises:
        Exception: there is no active SparkContext.
        TimeoutError: ``num_proc`` tasks have not started in time.
        RuntimeError: the job cannot go on, or Spark has ended it. No process is left.
        ValueError, TypeError: an argument is not what it should be.
    """
    call = settings.call_of(fn, args, kwargs)
    least = _alias("min_np", min_np, "min_num_proc", min_num_proc)
    most = _alias("max_np", max_np, "max_num_proc", max_num_proc)
    context = active_context()
    count = check_count("num_proc", context.defaultParallelism if num_proc is None else num_proc)
    limits = _limits(count, least, most, reset_limit, elastic_timeout)
    timeout_s = settings.start_timeout_s(start_timeout, os.environ)
    interfaces, environ = settings.interfaces(nics), settings.environment(env)
    plan = settings.job_plan(
        verbose,
        prefix_output_with_timestamp,
        others=OtherHosts(interfaces=interfaces),
        elastic=ElasticPlan(limits, most_results=limits.max_np),
    )
    guests = _Guests()
    stage = guests.stage(context, limits.max_np or count, interfaces, timeout_s)

    def complete(plan: JobPlan) -> JobPlan:
        stage.cards(count, timeout_s)
        return plan

    with stage, descriptors_of(stdout, stderr) as streams, stage.blamed():
        return run_call(call, plan, environ, streams, agents=guests.book, complete=complete)


class _Guests:
    """What the launcher is told of the tasks."""

    def __init__(self) -> None:
        self.book = AgentDirectory()
        self._secret = b""
        self._names = Names()

    def stage(
        self, context: SparkContext, count: int, interfaces: tuple[str, ...], patience_s: float
    ) -> GuestStage:
        """The one that this hears of."""
        stage = GuestStage(
            context,
            count,
            interfaces,
            patience_s,
            is_elastic=True,
            heard=self._hear,
            ended=self.book.give_up,
        )
        self._secret = stage.secret
        return stage

    def _hear(self, cards: Sequence[TaskInfo]) -> None:
        """These are the tasks now; one that Spark has started again has another name."""
        found = {
            self._names.of(card): EmbeddedAgentAddress(*card.address, self._secret)
            for card in cards
        }
        self.book.write({name: FoundAgent(address) for name, address in found.items()})


def _alias(old: str, value: int | None, new: str, given: int | None) -> int | None:
    if value is None:
        return given
    if given not in (None, value):
        raise ValueError(f"give {new} or {old}, not both: {given!r} and {value!r}")
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
    return value


def _limits(
    count: int,
    least: int | None,
    most: int | None,
    reset_limit: int | None,
    elastic_timeout: float | None,
) -> Limits:
    """Raises ValueError or TypeError."""
    min_np = count if least is None else check_count("min_num_proc", least)
    if min_np > count:
        raise ValueError(f"min_num_proc={min_np}: expected 1 to {count}, which is num_proc")
    max_np = count if most is None else check_count("max_num_proc", most)
    if max_np < count:
        raise ValueError(f"max_num_proc={max_np}: expected {count}, which is num_proc, or more")
    if reset_limit is not None and check_integer("reset_limit", reset_limit) < 0:
        raise ValueError(f"reset_limit={reset_limit!r}: expected a number of resets, 0 or more")
    timeout_s = settings.elastic_timeout_s(elastic_timeout)
    return Limits(count, min_np, max_np, reset_limit, timeout_s, cooldown=None)
