"""The tasks of Spark's that take in the guests of a job: started as one stage, heard of, ended."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext, TaskContext

from horovod.launch.workers.addresses import resolve, store_addresses
from horovod.launch.workers.python_command import path_ahead
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.store.server import StoreServer
from horovod.spark.task import TASK_FAILED, serve
from horovod.spark.task_info import Invitation, TaskInfo, newest

__all__ = ["GuestStage", "active_context"]

# The last line of a traceback, as far as it names no Java class.
_PYTHON_ERROR = re.compile(r"(?!(org|java|scala|py4j)\.)[\w.]+(Error|Exception): ")
_GPU = "gpu"
_CARD = "card/"
# From the launcher's end to that of the tasks; a guest may have to kill a worker twice over.
_END_S = 15.0
# In an elastic job a task can have come too late for the launcher to tell it anything.
_ELASTIC_END_S = 2.0
# For Spark to notice why a guest was lost.
_VERDICT_S = 2.0
# For executors to come before the tasks are asked for, and between looks.
_SLOTS_S = 14.0
_LOOK_S = 0.05


def active_context() -> SparkContext:
    """The one of this process. Raises Exception, as documented, if there is none."""
    context = SparkContext._active_spark_context
    if context is None:
        raise Exception(
            "Could not find an active SparkContext, are you running in a PySpark session?"
        )
    return context


def _setting(context: SparkContext, key: str) -> str | None:
    """Not by ``getConf``, which asks the JVM for all settings one by one and takes 10 ms."""
    found: str | None = context._conf.get(key)
    return found


class GuestStage:
    """A Spark job with ``count`` tasks, each with a guest; it runs while inside of ``with``.

    The tasks of a job of fixed size run all at the same time or not at all (barrier mode), except
    where executors are allocated dynamically, which Spark's barriers do not support. Those of an
    elastic job come and go. ``heard`` gets the cards of all tasks whenever a task has come, and
    ``ended`` why Spark has ended them, both on other threads.
    """

    def __init__(
        self,
        context: SparkContext,
        count: int,
        interfaces: tuple[str, ...],
        patience_s: float,
        *,
        is_elastic: bool = False,
        heard: Callable[[Sequence[TaskInfo]], None] = lambda cards: None,
        ended: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.problem = ""  # why Spark has ended the tasks
        self._context = context
        self._count = count
        self._interfaces = interfaces
        self._patience_s = patience_s
        self._is_elastic = is_elastic
        self._heard = heard
        self._ended = ended
        self._cards: list[TaskInfo] = []
        self._has_news = threading.Condition()
        self._has_ended = False
        self._is_over = threading.Event()
        self._group = f"horovod.spark.run-{os.getpid()}-{secrets.token_hex(4)}"
        self._server = StoreServer(
            self.secret,
            addresses=[(address, 0) for address in self._own_addresses()],
            on_set=self._take_card,
        )
        self._thread = InheritableThread(target=self._run, name="horovod-spark", daemon=True)

    def __enter__(self) -> GuestStage:
        self._server.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """After a success tasks end by themselves; else, and if they do not, Spark ends them."""
        self._is_over.set()
        try:
            if kind is None:
                self._thread.join(_ELASTIC_END_S if self._is_elastic else _END_S)
            if self._thread.is_alive():
                self._context.cancelJobGroup(self._group)
                self._thread.join(_END_S)
        finally:
            self._server.close()

    def cards(self, count: int, timeout_s: float) -> dict[int, TaskInfo]:
        """Those of ``count`` tasks or more, by index, as soon as so many have started.

        Raises:
            TimeoutError: they have not in time.
            RuntimeError: Spark cannot run them.
        """
        deadline = time.monotonic() + timeout_s
        with self._has_news:
            while len(found := newest(self._cards)) < count:
                if self._has_ended:
                    raise RuntimeError(f"Spark has ended the tasks of the job: {self.problem}")
                if not self._has_news.wait(deadline - time.monotonic()):
                    raise TimeoutError(_too_late(len(found), count, timeout_s))
        return found

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong inside is told with what Spark says about its end, if it is why."""
        try:
            yield
        except RuntimeError as error:
            self._thread.join(_VERDICT_S)
            is_why = TASK_FAILED not in self.problem and self.problem not in str(error)
            if self.problem and is_why:
                raise RuntimeError(f"{error}\nSpark: {self.problem}") from error.__cause__
            raise

    def _own_addresses(self) -> tuple[str, ...]:
        host = _setting(self._context, "spark.driver.host") or "localhost"
        return store_addresses({"driver": resolve(host)}, {}, self._interfaces)

    def _take_card(self, key: str, value: bytes) -> None:
        if not key.startswith(_CARD):
            return
        with self._has_news:
            self._cards.append(TaskInfo.decoded(value))
            self._heard(list(newest(self._cards).values()))
            self._has_news.notify_all()

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "Horovod: workers", interruptOnCancel=True)
            tasks = self._tasks()
            if not self._is_any_number:
                self._wait_for_slots()
            if not self._is_over.is_set():
                tasks.collect()
        except Exception as error:
            self.problem = _reason_of(error)
        finally:
            with self._has_news:
                self._has_ended = True
                self._has_news.notify_all()
            if self.problem:
                self._ended(self.problem)

    def _tasks(self) -> Any:
        invitation = Invitation(
            tuple(self._server.addresses),
            self.secret,
            self._patience_s,
            self._interfaces,
            path_ahead(),
            self._is_elastic,
        )
        numbers = self._context.parallelize(range(self._count), self._count)
        if self._is_any_number:
            return numbers.mapPartitionsWithIndex(_task(invitation))
        return numbers.barrier().mapPartitionsWithIndex(_task(invitation))

    @property
    def _is_any_number(self) -> bool:
        """Whether tasks may run before all of them can."""
        is_dynamic = _setting(self._context, "spark.dynamicAllocation.enabled") == "true"
        return self._is_elastic or is_dynamic

    def _wait_for_slots(self) -> None:
        """Until all tasks can run at once: what does not fit Spark looks at again after 15 s only.

        So a session that has just begun, whose executors are about to come, would take that long.
        Where Spark does not say how many can run, as some platforms forbid, nothing is waited for.
        """
        deadline = time.monotonic() + _SLOTS_S
        with contextlib.suppress(Py4JError):
            scala = self._context._jsc.sc()
            profile = scala.resourceProfileManager().defaultResourceProfile()
            while scala.maxNumConcurrentTasks(profile) < self._count:
                if time.monotonic() > deadline or self._is_over.wait(_LOOK_S):
                    return


def _task(invitation: Invitation) -> Callable[[int, Iterator[int]], Iterator[int]]:
    def run(index: int, _: Iterator[int]) -> Iterator[int]:
        context = TaskContext.get()
        assert context is not None
        resources = context.resources()
        gpus = list(resources[_GPU].addresses) if _GPU in resources else []
        return serve(index, context.taskAttemptId(), invitation, gpus)

    return run


def _too_late(found: int, count: int, timeout_s: float) -> str:
    return (
        f"Timed out waiting for Spark tasks to start. {found} of {count} have started within "
        f"{timeout_s:g} s. Please check that the cluster has {count} free task slots "
        "(spark.executor.instances, spark.executor.cores, spark.cores.max, spark.task.cpus), ask "
        "for fewer processes (num_proc), or wait longer (start_timeout, "
        "HOROVOD_SPARK_START_TIMEOUT)."
    )


def _reason_of(error: Exception) -> str:
    """What Spark says, without the stack of its Java threads."""
    if TASK_FAILED in str(error):
        return f"{TASK_FAILED}, and Spark starts it no more (spark.task.maxFailures)"
    lines = [line.strip() for line in str(error).splitlines()]
    known = [line for line in lines if "SparkException" in line or "cancelled" in line.lower()]
    chosen = known or [line for line in lines if line] or [type(error).__name__]
    reason = chosen[0].partition("SparkException: ")[2] or chosen[0]
    raised = [line for line in lines if _PYTHON_ERROR.match(line)]
    return f"{reason} {raised[-1]}" if raised else reason
