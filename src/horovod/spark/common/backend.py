"""The processes in which estimators train."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import horovod.spark
from horovod.spark import needed  # noqa: F401  # first: it names a missing package

# isort: split
from pyspark import SparkContext

__all__ = ["Backend", "SparkBackend", "default_num_proc"]


class Backend(ABC):
    """Processes with Horovod. Subclass it to train elsewhere than on Spark's executors."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """``fn(*args, **kwargs)`` in each process; the results in the order of the ranks."""

    @abstractmethod
    def num_processes(self) -> int:
        """The number of processes."""


class SparkBackend(Backend):
    """Processes of ``horovod.spark.run``.

    Args:
        num_proc: the number of processes; by default Spark's default parallelism.
        env: their environment; by default this process's. The driver's ``CUDA_VISIBLE_DEVICES`` is
            left out, because it does not apply to executors.
        kwargs: further arguments of ``horovod.spark.run``.
    """

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        self._num_proc = num_proc
        self._env = env
        self._kwargs = kwargs

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """As ``Backend.run``; ``env`` is added to the environment."""
        environment = {**(os.environ if self._env is None else self._env), **(env or {})}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        options = {"num_proc": self.num_processes(), "env": environment, **self._kwargs}
        return horovod.spark.run(fn, args=args, kwargs=kwargs, **options)

    def num_processes(self) -> int:
        """The number given, or Spark's default parallelism.

        Raises:
            RuntimeError: there is neither a number nor a SparkContext.
        """
        return default_num_proc() if self._num_proc is None else self._num_proc


def default_num_proc() -> int:
    """Spark's default parallelism.

    Raises:
        RuntimeError: there is no SparkContext.
    """
    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError("there is no active SparkContext, and num_proc is not given")
    return int(context.defaultParallelism)
