"""The Spark stage whose tasks run the embedded agents of a job."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext, TaskContext

from horovod.launch.workers.addresses import resolve, store_addresses
from horovod.launch.workers.python_command import path_ahead
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.store.server import StoreServer
from horovod.spark.task import TASK_FAILED, AgentOptions, TaskInfo, newest, serve

# The last line of a Python traceback, not of a Java class.
_PYTHON_ERROR = re.compile(r"(?!(org|java|scala|py4j)\.)[\w.]+(Error|Exception): ")
_GPU = "gpu"
_TASK = "task/"
# From the launcher's end to the tasks' end; an agent may have to send a worker two signals.
_END_S = 15.0
# The launcher of an elastic job may not know a late task, and so cannot end it.
_ELASTIC_END_S = 2.0
# Time for Spark to notice why an agent was lost.
_REASON_S = 2.0
# Time for executors to start before the tasks are submitted, and between checks.
_SLOTS_S = 14.0
_POLL_S = 0.05


def active_context() -> SparkContext:
    """The SparkContext of this process. Raises Exception, as documented, if there is none."""
    context = SparkContext._active_spark_context
    if context is None:
        raise Exception(
            "Could not find an active SparkContext, are you running in a PySpark session?"
        )
    return context


def _setting(context: SparkContext, key: str) -> str | None:
    """A setting without ``getConf``, which copies all settings from the JVM and takes 10 ms."""
    found: str | None = context._conf.get(key)
    return found


@dataclass(eq=False, repr=False)
class AgentStage:
    """A Spark job with ``count`` tasks that each run an agent; it runs within ``with``.

    The tasks of a job of fixed size start together or not at all (barrier mode), except with
    dynamic allocation of executors, which Spark's barriers do not support. Tasks of an elastic job
    come and go. ``on_tasks`` gets all tasks whenever a task has started, and ``on_end`` the reason
    why Spark has ended them; other threads call both.
    """

    _context: SparkContext
    _count: int
    _interfaces: tuple[str, ...]
    _patience_s: float
    _: KW_ONLY
    is_elastic: bool = False
    on_tasks: Callable[[Sequence[TaskInfo]], None] = lambda tasks: None
    on_end: Callable[[str], None] = lambda reason: None

    def __post_init__(self) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.problem = ""  # the reason why Spark has ended the tasks
        self._infos: list[TaskInfo] = []
        self._has_news = threading.Condition()
        self._has_ended = False
        self._is_over = threading.Event()
        self._group = f"horovod.spark.run-{os.getpid()}-{secrets.token_hex(4)}"
        self._server = StoreServer(
            self.secret,
            addresses=[(address, 0) for address in self._own_addresses()],
            on_set=self._take_info,
        )
        self._thread = InheritableThread(target=self._run, name="horovod-spark", daemon=True)

    def __enter__(self) -> AgentStage:
        self._server.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the tasks after a success; otherwise, and if they do not end, cancel them."""
        self._is_over.set()
        try:
            if kind is None:
                self._thread.join(_ELASTIC_END_S if self.is_elastic else _END_S)
            if self._thread.is_alive():
                self._context.cancelJobGroup(self._group)
                self._thread.join(_END_S)
        finally:
            self._server.close()

    def wait_for_tasks(self, count: int, timeout_s: float) -> dict[int, TaskInfo]:
        """The tasks by index, as soon as at least ``count`` have started.

        Raises:
            TimeoutError: they did not start in time.
            RuntimeError: Spark cannot run them.
        """
        deadline = time.monotonic() + timeout_s
        with self._has_news:
            while len(found := newest(self._infos)) < count:
                if self._has_ended:
                    raise RuntimeError(f"Spark has ended the tasks of the job: {self.problem}")
                if not self._has_news.wait(deadline - time.monotonic()):
                    raise TimeoutError(_too_late(len(found), count, timeout_s))
        return found

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Add Spark's reason to a RuntimeError inside, if Spark's end is its cause."""
        try:
            yield
        except RuntimeError as error:
            self._thread.join(_REASON_S)
            is_cause = TASK_FAILED not in self.problem and self.problem not in str(error)
            if self.problem and is_cause:
                raise RuntimeError(f"{error}\nSpark: {self.problem}") from error.__cause__
            raise

    def _own_addresses(self) -> tuple[str, ...]:
        host = _setting(self._context, "spark.driver.host") or "localhost"
        return store_addresses({"driver": resolve(host)}, {}, self._interfaces)

    def _take_info(self, key: str, value: bytes) -> None:
        if not key.startswith(_TASK):
            return
        with self._has_news:
            self._infos.append(TaskInfo.from_bytes(value))
            self.on_tasks(list(newest(self._infos).values()))
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
                self.on_end(self.problem)

    def _tasks(self) -> Any:
        stores = tuple(self._server.addresses)
        options = AgentOptions(
            stores, self.secret, self._patience_s, self._interfaces, path_ahead(), self.is_elastic
        )
        numbers = self._context.parallelize(range(self._count), self._count)
        if self._is_any_number:
            return numbers.mapPartitionsWithIndex(_task(options))
        return numbers.barrier().mapPartitionsWithIndex(_task(options))

    @property
    def _is_any_number(self) -> bool:
        """Whether tasks may start one by one."""
        is_dynamic = _setting(self._context, "spark.dynamicAllocation.enabled") == "true"
        return self.is_elastic or is_dynamic

    def _wait_for_slots(self) -> None:
        """Block until all tasks can run at once: Spark retries a barrier stage only after 15 s.

        Executors of a new session may still start. Some platforms do not let Spark tell the number
        of concurrent tasks; then this does not wait.
        """
        deadline = time.monotonic() + _SLOTS_S
        with contextlib.suppress(Py4JError):
            scala = self._context._jsc.sc()
            profile = scala.resourceProfileManager().defaultResourceProfile()
            while scala.maxNumConcurrentTasks(profile) < self._count:
                if time.monotonic() > deadline or self._is_over.wait(_POLL_S):
                    return


def _task(options: AgentOptions) -> Callable[[int, Iterator[int]], Iterator[int]]:
    def run(index: int, _: Iterator[int]) -> Iterator[int]:
        context = TaskContext.get()
        assert context is not None
        resources = context.resources()
        gpus = list(resources[_GPU].addresses) if _GPU in resources else []
        return serve(index, context.taskAttemptId(), options, gpus)

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
    """Spark's reason, without the stack of its Java threads."""
    if TASK_FAILED in str(error):
        return f"{TASK_FAILED}, and Spark does not restart it (spark.task.maxFailures)"
    lines = [line.strip() for line in str(error).splitlines()]
    known = [line for line in lines if "SparkException" in line or "cancelled" in line.lower()]
    chosen = known or [line for line in lines if line] or [type(error).__name__]
    reason = chosen[0].partition("SparkException: ")[2] or chosen[0]
    raised = [line for line in lines if _PYTHON_ERROR.match(line)]
    return f"{reason} {raised[-1]}" if raised else reason
