"""Workers that another engine, such as Ray or Spark, has started: ranks, store, environment.

The engine starts the processes and says on which nodes they are. This module does what a launcher
would do: it gives out ranks, keeps the job's store, and makes the environment of each worker, as
``horovodrun`` does. The engine carries the environment to the workers. It contains the secret, so
the channel must be private.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from horovod.core.base.rank_info import RankInfo, rank_infos
from horovod.launch.model.host_plan import Rendezvous, worker_environment
from horovod.launch.workers.addresses import store_addresses
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.store.server import StoreServer


def positions_on(nodes: Sequence[str]) -> list[RankInfo]:
    """The place in the world of each worker, given the names of their nodes.

    Workers of a node have consecutive ranks, nodes come in the order in which they are first named,
    so worker 0 is rank 0.
    """
    order = list(dict.fromkeys(nodes))
    infos = rank_infos(sorted(nodes, key=order.index))
    free = {node: iter([info for info in infos if info.hostname == node]) for node in order}
    return [next(free[node]) for node in nodes]


class ExternalWorkerStore:
    """The store of a job, on this machine, with a secret of its own.

    ``others`` are the addresses of the other nodes, by name: it listens where these find it, or at
    the loopback interface if there are none. ``interfaces`` are the only ones to use, if given.

    Raises:
        OSError: no port is free.
        ValueError: an interface does not exist.
    """

    def __init__(self, others: Mapping[str, Sequence[str]], interfaces: Sequence[str] = ()) -> None:
        secret = os.urandom(SECRET_BYTES)
        addresses = store_addresses(others, {}, interfaces)
        self._server = StoreServer(secret, addresses=[(address, 0) for address in addresses])
        self._server.start()
        self.rendezvous = Rendezvous(*self._server.address, secret)

    def close(self) -> None:
        """End it; afterwards no world of the job can begin."""
        self._server.close()


def external_environments(
    slots: Sequence[RankInfo],
    rendezvous: Rendezvous,
    extra: Mapping[str, Any],
    interfaces: Sequence[str] = (),
) -> list[dict[str, str]]:
    """The variables to add to each worker's environment, in the order of ``slots``."""
    is_one_host = len({slot.hostname for slot in slots}) == 1
    texts = {name: str(value) for name, value in extra.items()}
    used = None if is_one_host else interfaces
    return [worker_environment({}, slot, rendezvous, texts, used) for slot in slots]
