"""Where estimators train: processes that run a function."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark import SparkContext

import horovod.spark

__all__ = ["Backend", "SparkBackend", "default_num_proc"]


class Backend(ABC):
    """Processes in which Horovod works. Subclass it to train elsewhere than on executors."""

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
        """How many there are."""


class SparkBackend(Backend):
    """Processes of ``horovod.spark.run``.

    Args:
        num_proc: how many; by default Spark's default parallelism.
        env: their environment; by default this process's. ``CUDA_VISIBLE_DEVICES`` of the driver
            means nothing to them and is left out.
        kwargs: what else ``horovod.spark.run`` is called with.
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
        return horovod.spark.run(
            fn,
            args=args,
            kwargs=kwargs,
            num_proc=self.num_processes(),
            env=environment,
            **self._kwargs,
        )

    def num_processes(self) -> int:
        """The number given, or Spark's default parallelism.

        Raises:
            RuntimeError: neither is there.
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
