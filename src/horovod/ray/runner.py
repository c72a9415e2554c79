"""The import path of the executor and the worker, and a ``Coordinator`` for users' own actors.

A ``Coordinator`` gives users' actors what ``RayExecutor`` gives its workers: their ranks and the
address of the job's store.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from horovod.core.base.rank_info import RankInfo
from horovod.core.base.replaced import names_of
from horovod.launch.embedded.external_workers import (
    ExternalWorkerStore,
    external_environments,
    positions_on,
)
from horovod.launch.model.host_plan import Rendezvous
from horovod.launch.model.hosts import chosen_interfaces
from horovod.ray.executor import RayExecutor
from horovod.ray.settings import RaySettings
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "Coordinator", "MiniSettings", "RayExecutor"]

__getattr__ = names_of(__name__)


_RANK_NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
_RANK_VARIABLES = frozenset(f"HOROVOD_{name}" for name in _RANK_NAMES)
_NOWHERE = Rendezvous("", 0, b"")


class MiniSettings(RaySettings):
    """Settings without ``create_settings``, with other defaults.

    ``verbose``, ``key``, ``ssh_port`` and ``elastic`` have no effect: each job makes its own key,
    Horovod on Ray does not use ssh, and ``min_workers`` makes a job elastic.
    """

    def __init__(
        self,
        nics: str | Iterable[str] | None = None,
        verbose: int = 1,
        key: bytes | None = None,
        ssh_port: int | None = None,
        ssh_identity_file: str | None = None,
        timeout_s: float = 300,
        placement_group_timeout_s: float = 100,
        elastic: bool = False,
    ) -> None:
        limits = (timeout_s, placement_group_timeout_s)
        super().__init__(*limits, ssh_identity_file, chosen_interfaces(nics))
        self.verbose = verbose
        self.key = key
        self.ssh_port = ssh_port
        self.elastic = elastic

    @property
    def start_timeout(self) -> float:
        """The same as ``timeout_s``."""
        return self.timeout_s


class _Registered(NamedTuple):
    hostname: str
    node_id: str
    world_rank: int


class Coordinator:
    """Ranks and a rendezvous for workers that the user has started.

    Register all workers, then update each worker's environment with the results of the two other
    methods, which include the job's secret. The job's store lives as long as this object.

    Args:
        settings: ``nics`` are the network interfaces that ranks may use.
    """

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        self._registered: list[_Registered] = []
        self._store: ExternalWorkerStore | None = None

    @property
    def world_size(self) -> int:
        """The number of registered workers."""
        return len(self._registered)

    @property
    def node_id_string(self) -> str:
        """``NODE:COUNT`` of every node, with commas between them."""
        count = Counter(worker.node_id for worker in self._registered)
        return ",".join(f"{node}:{number}" for node, number in count.items())

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """Add a worker: its host name, its node's id in Ray, and its number.

        Raises:
            ValueError: another worker has the number.
        """
        if any(worker.world_rank == world_rank for worker in self._registered):
            raise ValueError(f"world_rank={world_rank} is registered twice; expected each once")
        self._registered.append(_Registered(hostname, node_id, world_rank))

    def finalize_registration(self) -> dict[int, dict[str, str]]:
        """Each worker's rank variables, by its registered number.

        Workers of a node have consecutive ranks, so a rank may differ from the number.
        """
        numbers = sorted(worker.world_rank for worker in self._registered)
        environments = external_environments(self._slots(), _NOWHERE, {})
        return {
            number: {name: text for name, text in environment.items() if name in _RANK_VARIABLES}
            for number, environment in zip(numbers, environments, strict=True)
        }

    def establish_rendezvous(self) -> dict[str, str]:
        """Open the job's store on this machine; returns the variables with its address.

        Raises:
            OSError: no port is free.
            ValueError: an interface does not exist, or no worker is registered.
        """
        if not self._registered:
            raise ValueError("Coordinator: expected registered workers, found none")
        here = {socket.gethostname(), "localhost"}
        others = {w.hostname: (w.hostname,) for w in self._registered if w.hostname not in here}
        if self._store is not None:
            self._store.close()
        self._store = ExternalWorkerStore(others, self.settings.nics)
        nics = self.settings.nics
        common = external_environments(self._slots(), self._store.rendezvous, {}, nics)
        return {name: text for name, text in common[0].items() if name not in _RANK_VARIABLES}

    def _slots(self) -> list[RankInfo]:
        workers = sorted(self._registered, key=lambda worker: worker.world_rank)
        return positions_on([worker.node_id for worker in workers])
