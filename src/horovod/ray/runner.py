"""The import path for the executor and the worker, and for those who make workers of their own.

A ``Coordinator`` gives actors of others what ``RayExecutor`` gives its own: their places in the
world, and where to meet.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from horovod.core.base.rank_info import RankInfo
from horovod.core.base.replaced import names_of
from horovod.launch.embedded.external_workers import (
    ExternalWorkerStore,
    external_environments,
    positions_on,
)
from horovod.launch.model.environment import Rendezvous
from horovod.ray.executor import RayExecutor
from horovod.ray.settings import RaySettings, interfaces_of
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "Coordinator", "MiniSettings", "RayExecutor"]

__getattr__ = names_of(__name__)


_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
_PLACE_NAMES = frozenset(f"HOROVOD_{name}" for name in _PLACE)
_NOWHERE = Rendezvous("", 0, b"")


class MiniSettings(RaySettings):
    """Settings without ``create_settings``, with other defaults.

    ``verbose``, ``key``, ``ssh_port`` and ``elastic`` have no effect: each job makes a key of its
    own, nothing uses ssh, and ``min_workers`` makes a job elastic.
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
        super().__init__(
            timeout_s, placement_group_timeout_s, ssh_identity_file, interfaces_of(nics)
        )
        self.verbose = verbose
        self.key = key
        self.ssh_port = ssh_port
        self.elastic = elastic

    @property
    def start_timeout(self) -> float:
        """The same as ``timeout_s``."""
        return self.timeout_s


@dataclass(frozen=True)
class _Registered:
    hostname: str
    node_id: str
    world_rank: int


class Coordinator:
    """Places and a meeting point for workers that somebody else has started.

    Register all, then update each worker's environment with what the two other methods return. The
    job's secret is in there. The job's store lives as long as this object.

    Args:
        settings: ``nics`` are the network interfaces that ranks may use.
    """

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        self._registered: list[_Registered] = []
        self._store: ExternalWorkerStore | None = None

    @property
    def world_size(self) -> int:
        """How many workers are registered."""
        return len(self._registered)

    @property
    def node_id_string(self) -> str:
        """``NODE:COUNT`` of every node, with commas between them."""
        count = Counter(worker.node_id for worker in self._registered)
        return ",".join(f"{node}:{number}" for node, number in count.items())

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """Add a worker: its machine's name, its node's in Ray, and its number.

        Raises:
            ValueError: another worker has the number.
        """
        if any(worker.world_rank == world_rank for worker in self._registered):
            raise ValueError(f"world_rank={world_rank} is registered twice; expected each once")
        self._registered.append(_Registered(hostname, node_id, world_rank))

    def finalize_registration(self) -> dict[int, dict[str, str]]:
        """Each worker's place as variables, by the number it was registered with.

        Workers of a node have consecutive ranks, so a rank may differ from that number.
        """
        numbers = sorted(worker.world_rank for worker in self._registered)
        environments = external_environments(self._slots(), _NOWHERE, {})
        return {
            number: {name: text for name, text in environment.items() if name in _PLACE_NAMES}
            for number, environment in zip(numbers, environments, strict=True)
        }

    def establish_rendezvous(self) -> dict[str, str]:
        """Open the job's store on this machine; the variables by which all workers find it.

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
        common = external_environments(
            self._slots(), self._store.rendezvous, {}, self.settings.nics
        )
        return {name: text for name, text in common[0].items() if name not in _PLACE_NAMES}

    def _slots(self) -> list[RankInfo]:
        workers = sorted(self._registered, key=lambda worker: worker.world_rank)
        return positions_on([worker.node_id for worker in workers])
