"""A job of fixed size: one actor for each rank, in a placement group."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from horovod.core.base.on_error import on_error
from horovod.core.base.rank_info import RankInfo
from horovod.launch.embedded.external_workers import external_environments, positions_on
from horovod.ray.placement import Placement, Shape
from horovod.ray.replies import Callback, WorkersFailedError, collect, first_cause, listening
from horovod.ray.settings import RaySettings
from horovod.ray.worker import ActorInfo, BaseHorovodWorker


class StaticJob:
    """Actors that are ready to call ``hvd.init``; ``workers`` are in the order of ranks.

    Raises:
        TimeoutError: there are no resources, or actors do not start in time.
        ValueError: the current placement group has its resources on unsuitable nodes.
    """

    def __init__(
        self, settings: RaySettings, shape: Shape, environment: Mapping[str, Any], use_current: bool
    ) -> None:
        self._settings = settings
        timeout_s = settings.placement_group_timeout_s
        self._placement = Placement(shape, timeout_s, use_current=use_current)
        self.workers: list[Any] = []
        self._infos: list[ActorInfo] = []
        with on_error(self.end):
            self._start(shape, environment)

    def _start(self, shape: Shape, environment: Mapping[str, Any]) -> None:
        actor = ray.remote(BaseHorovodWorker)
        count = shape.workers
        self.workers = [
            actor.options(**self._placement.options(n)).remote(n, count) for n in range(count)
        ]
        infos = self._ask([worker.actor_info.remote() for worker in self.workers], "start")
        if objection := shape.objection([info.node_id for info in infos]):
            raise ValueError(objection)
        slots = positions_on([info.node_id for info in infos])
        order = sorted(range(count), key=lambda number: slots[number].rank)
        self.workers = [self.workers[number] for number in order]
        self._infos = [infos[number] for number in order]
        self._introduce([slots[number] for number in order], environment)

    def _introduce(self, slots: Sequence[RankInfo], extra: Mapping[str, Any]) -> None:
        """Open the store in rank 0's process, and give all workers their environments."""
        first, infos = self._infos[0], self._infos
        others = {info.node_id: (info.address,) for info in infos if info.node_id != first.node_id}
        nics = self._settings.nics
        rendezvous = self._ask([self.workers[0].open_store.remote(others, nics)], "open a store")[0]
        environments = external_environments(slots, rendezvous, extra, nics)
        gpus = _gpus_by_node(infos)
        for info, environment in zip(infos, environments, strict=True):
            if gpus[info.node_id]:
                environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(gpus[info.node_id]))
        self._ask(
            [
                worker.update_env_vars.remote(environment)
                for worker, environment in zip(self.workers, environments, strict=True)
            ],
            "take its environment",
        )

    def _ask(self, references: Sequence[Any], what: str) -> list[Any]:
        """The workers' replies before there is a world."""
        limit_s = self._settings.timeout_s
        try:
            return collect(references, deadline=time.monotonic() + limit_s)
        except WorkersFailedError as failure:
            raise self._cause(failure) from None
        except TimeoutError as late:
            raise TimeoutError(
                f"{late} of {len(self.workers)} did not {what} within {limit_s:g} s (timeout_s); "
                f"their resources are from {self._placement.describe()}"
            ) from None

    def start_executables(
        self, make: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> None:
        """Make an executable in each worker."""
        self._results(
            [worker.start_executable.remote(make, args, kwargs) for worker in self.workers]
        )

    @property
    def is_over(self) -> bool:
        """Whether the workers have ended."""
        return not self.workers

    def execute_single(self, func: Callable[[Any], Any]) -> Any:
        """``func(executable)`` on rank 0."""
        return self._results([self.workers[0].execute.remote(func)])[0]

    def begin(self, func: Callable[[Any], Any]) -> list[Any]:
        """Start ``func(executable)`` on all workers; references to the results by rank."""
        return [worker.execute.remote(func) for worker in self.workers]

    def execute(self, func: Callable[[Any], Any], callbacks: Sequence[Callback]) -> list[Any]:
        """``func(executable)`` on all workers; ``callbacks`` get their logs."""
        with listening(self.workers, callbacks) as listen:
            return self._results(self.begin(func), listen)

    def _results(
        self, references: Sequence[Any], meanwhile: Callable[[], None] | None = None
    ) -> list[Any]:
        """The replies of all workers, or the error that is the cause of the others.

        A dead actor ends the job, and its resources are released.
        """
        try:
            return collect(references, meanwhile=meanwhile)
        except WorkersFailedError as failure:
            error = self._cause(failure)
            if isinstance(error, RayActorError):
                self.end()
            raise error from None

    def _cause(self, failure: WorkersFailedError) -> Exception:
        """A worker's own error; for a dead worker an error with its rank and node."""
        rank, error = first_cause(failure.errors)
        if not isinstance(error, RayActorError):
            return error
        place = f" on {self._infos[rank].place}" if self._infos else ""
        gone: Exception = RayActorError(
            error.actor_id,
            f"the worker of rank {rank}{place} is gone, which ends the job; its resources are "
            f"released, and start() begins a new one. Ray says: {error}",
            actor_init_failed=error.actor_init_failed,
            preempted=error.preempted,
        )
        return gone

    def end(self) -> None:
        """End the actors and release their resources. May be called again."""
        workers, self.workers = self.workers, []
        for worker in workers:
            ray.kill(worker)
        self._placement.release()


def _gpus_by_node(infos: Sequence[ActorInfo]) -> dict[str, list[str]]:
    """The GPUs of all workers of each node: a worker uses its own and reaches the others."""
    found: dict[str, list[str]] = {}
    for info in infos:
        there = found.setdefault(info.node_id, [])
        there += [number for number in info.gpu_ids if number not in there]
    return found
