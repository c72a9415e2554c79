"""A Ray cluster of several raylets on this machine, each with its own address."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

_STAYING = (("", "head", 0), ("127.0.0.2", "b", 2), ("127.0.0.3", "c", 2, 2))
_SMALL = {"object_store_memory": 80 * 1024 * 1024}
_SYSTEM = {
    # A lost raylet is noticed soon; a slow one keeps its usual time.
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    # Ray starts workers with nice 15, which get too little time beside other tests.
    "worker_niceness": 0,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings: the garbage collector closes Ray's log files."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.timeout(400))


@dataclass
class Nodes:
    """The cluster: a head without room for workers, and nodes ``b`` and ``c`` with 2 CPUs each.

    Every node has a resource by its name; ``c`` has 2 GPUs, as far as Ray knows.
    """

    cluster: Cluster
    client_url: str
    _last: int = 3
    _more: list[Any] = field(default_factory=list)

    def add(self, name: str, cpus: int = 2, gpus: int = 0) -> Any:
        """Add a node with a new address, until ``remove``."""
        self._last += 1
        node = add_node(self.cluster, f"127.0.0.{self._last}", name, cpus, gpus)
        self._more.append(node)
        return node

    def remove(self, node: Any) -> None:
        """Kill a node."""
        self._more.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def remove_all(self) -> None:
        """Remove the added nodes."""
        for node in list(self._more):
            self.remove(node)
        deadline = time.monotonic() + 60
        while sum(node["Alive"] for node in ray.nodes()) > len(_STAYING):
            assert time.monotonic() < deadline, ray.nodes()
            time.sleep(0.1)


def add_node(cluster: Cluster, address: str, name: str, cpus: int, gpus: int = 0) -> Any:
    return cluster.add_node(
        num_cpus=cpus,
        num_gpus=gpus,
        node_ip_address=address,
        resources={name: 4},
        **_SMALL,
    )


@pytest.fixture(scope="session")
def _nodes() -> Iterator[Nodes]:
    own = ray.util.get_node_ip_address()
    port = _free_port()
    # A server for a client is a fork of one with threads of gRPC, whose handlers for forks can end
    # the new one before it is there: https://github.com/ray-project/ray/issues/63202
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "node_ip_address": own,
            "include_dashboard": False,
            "ray_client_server_port": port,
            "_system_config": _SYSTEM,
            **_SMALL,
        },
    )
    try:
        for arguments in _STAYING[1:]:
            add_node(cluster, *arguments)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield Nodes(cluster, f"ray://{own}:{port}")
        ray.shutdown()
    finally:
        cluster.shutdown()


@pytest.fixture
def nodes(_nodes: Nodes) -> Iterator[Nodes]:
    yield _nodes
    _nodes.remove_all()


def _free_port() -> int:
    # Ray does not choose this address by itself.
    with socket.create_server(("", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
