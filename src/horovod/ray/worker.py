"""The process of one rank, as a Ray actor."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from horovod.launch.embedded.external_workers import ExternalWorkerStore
from horovod.launch.model.host_plan import Rendezvous
from horovod.ray import ray_logger


class ActorInfo(NamedTuple):
    """The node of a worker, and the GPUs that Ray gave it."""

    node_id: str
    hostname: str
    address: str
    gpu_ids: tuple[str, ...]

    @property
    def place(self) -> str:
        """The node, for messages."""
        return f"{self.hostname} ({self.address}, Ray node {self.node_id})"


class BaseHorovodWorker:
    """Runs in an actor of Ray; ``RayExecutor`` makes one for each rank."""

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        # Valid numbers until ``update_env_vars`` sets the final ones.
        os.environ["HOROVOD_HOSTNAME"] = self.node_id()
        os.environ["HOROVOD_RANK"] = str(world_rank)
        os.environ["HOROVOD_SIZE"] = str(world_size)
        self._store: ExternalWorkerStore | None = None

    def node_id(self) -> str:
        """Ray's name for the machine."""
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """The machine's own name."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[str]:
        """The GPUs that Ray gave this worker."""
        return [str(number) for number in ray.get_gpu_ids()]

    def actor_info(self) -> ActorInfo:
        """The node and GPUs of this worker, for ``RayExecutor``."""
        address = ray.util.get_node_ip_address()
        return ActorInfo(self.node_id(), self.hostname(), address, tuple(self.get_gpu_ids()))

    def open_store(
        self, others: Mapping[str, Sequence[str]], interfaces: Sequence[str]
    ) -> Rendezvous:
        """Open the job's store in this process; see ``ExternalWorkerStore``."""
        self._store = ExternalWorkerStore(others, interfaces)
        return self._store.rendezvous

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Set variables of this process's environment."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """This process's environment."""
        return dict(os.environ)

    def set_queue(self, queue: Any) -> None:
        """Let ``ray_logger.log`` put its dictionaries into this queue of Ray; None drops them."""
        ray_logger.configure(queue)

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the object that ``execute`` passes to functions."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """``func(executable)``. A failed rank leaves the world, so no other rank waits for it."""
        try:
            return func(self.executable)
        except BaseException:
            # Not at the top: a function without collectives needs no engine.
            from horovod.core import world

            world.shutdown()
            raise
