"""A job of fixed size: one actor for each rank, in a placement group."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from horovod.core.base.rank_info import RankInfo
from horovod.launch.embedded.external_workers import external_environments, positions_on
from horovod.ray.callbacks import Callback, listening
from horovod.ray.placement import Placement, Shape
from horovod.ray.replies import WorkersFailedError, collect, first_cause
from horovod.ray.settings import RaySettings
from horovod.ray.worker import ActorInfo, BaseHorovodWorker

__all__ = ["StaticJob"]


class StaticJob:
    """Actors that are ready to call ``hvd.init``; ``workers`` are in the order of ranks.

    Raises:
        TimeoutError: no resources, or actors do not start in time.
        ValueError: the current placement group has them on other nodes than asked for.
    """

    def __init__(
        self,
        settings: RaySettings,
        shape: Shape,
        *,
        use_current_placement_group: bool,
        environment: Mapping[str, Any],
    ) -> None:
        self._settings = settings
        self._placement = Placement(
            shape, settings.placement_group_timeout_s, use_current=use_current_placement_group
        )
        self.workers: list[Any] = []
        self._cards: list[ActorInfo] = []
        try:
            self._start(shape, environment)
        except BaseException:
            self.end()
            raise

    def _start(self, shape: Shape, environment: Mapping[str, Any]) -> None:
        actor = ray.remote(BaseHorovodWorker)
        count = shape.workers
        self.workers = [
            actor.options(**self._placement.options(n)).remote(n, count) for n in range(count)
        ]
        cards = self._ask([worker.card.remote() for worker in self.workers], "start")
        if objection := shape.objection([card.node_id for card in cards]):
            raise ValueError(objection)
        slots = positions_on([card.node_id for card in cards])
        order = sorted(range(count), key=lambda number: slots[number].rank)
        self.workers = [self.workers[number] for number in order]
        self._cards = [cards[number] for number in order]
        self._introduce([slots[number] for number in order], environment)

    def _introduce(self, slots: Sequence[RankInfo], extra: Mapping[str, Any]) -> None:
        """Give all workers their numbers, and where to meet: in the process of rank 0."""
        first, cards = self._cards[0], self._cards
        others = {card.node_id: (card.address,) for card in cards if card.node_id != first.node_id}
        nics = self._settings.nics
        rendezvous = self._ask([self.workers[0].open_store.remote(others, nics)], "open a store")[0]
        environments = external_environments(slots, rendezvous, extra, nics)
        gpus = _gpus_by_node(cards)
        for card, environment in zip(cards, environments, strict=True):
            if gpus[card.node_id]:
                environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(gpus[card.node_id]))
        self._ask(
            [
                worker.update_env_vars.remote(environment)
                for worker, environment in zip(self.workers, environments, strict=True)
            ],
            "take its environment",
        )

    def _ask(self, references: Sequence[Any], what: str) -> list[Any]:
        """What workers reply before there is a world."""
        limit_s = self._settings.timeout_s
        try:
            return collect(references, deadline=time.monotonic() + limit_s)
        except WorkersFailedError as failure:
            raise self._cause(failure) from None
        except TimeoutError as late:
            raise TimeoutError(
                f"{late} of {len(self.workers)} did not {what} within {limit_s:g} s (timeout_s); "
                f"they have their resources from {self._placement.describe()}"
            ) from None

    def start_executables(
        self,
        make: Callable[..., Any],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> None:
        """Each worker makes one."""
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
        """Start ``func(executable)`` on all workers; references to its results by rank."""
        return [worker.execute.remote(func) for worker in self.workers]

    def execute(self, func: Callable[[Any], Any], callbacks: Sequence[Callback]) -> list[Any]:
        """``func(executable)`` on all workers, while ``callbacks`` get what they log."""
        with listening(self.workers, callbacks) as listen:
            return self._results(self.begin(func), listen)

    def _results(
        self, references: Sequence[Any], meanwhile: Callable[[], None] | None = None
    ) -> list[Any]:
        """What all workers answer, or the error that is the cause of the others.

        An actor that has died ends the job: its resources are free again.
        """
        try:
            return collect(references, meanwhile=meanwhile)
        except WorkersFailedError as failure:
            error = self._cause(failure)
            if isinstance(error, RayActorError):
                self.end()
            raise error from None

    def _cause(self, failure: WorkersFailedError) -> Exception:
        """A worker's own error as it is; the end of one with its rank and node."""
        rank, error = first_cause(failure.errors)
        if not isinstance(error, RayActorError):
            return error
        place = f" on {self._cards[rank].place}" if self._cards else ""
        gone: Exception = RayActorError(
            error.actor_id,
            f"the worker of rank {rank}{place} is gone, which ends the job; its resources are "
            f"given back, and start() begins a new one. Ray says: {error}",
            actor_init_failed=error.actor_init_failed,
            preempted=error.preempted,
        )
        return gone

    def end(self) -> None:
        """End the actors and give back what they had. May be called again."""
        workers, self.workers = self.workers, []
        for worker in workers:
            ray.kill(worker)
        self._placement.release()


def _gpus_by_node(cards: Sequence[ActorInfo]) -> dict[str, list[str]]:
    """All GPUs of the workers of each node: each uses its own, and reaches those of the others."""
    found: dict[str, list[str]] = {}
    for card in cards:
        there = found.setdefault(card.node_id, [])
        there += [number for number in card.gpu_ids if number not in there]
    return found
