"""A Spark task that runs an embedded agent of a job: its messages, its name, its worker's GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from horovod.core.base.replaced import names_of
from horovod.launch.embedded.embedded_agent import EmbeddedAgent
from horovod.launch.workers.addresses import resolve, store_addresses
from horovod.launch.workers.python_command import path_ahead
from horovod.rendezvous.identity.host_id import this_host_id
from horovod.rendezvous.store.hosted import find_store

__all__ = ["TASK_FAILED", "get_available_devices", "serve"]

TASK_FAILED = "the Horovod worker of a task has failed"
_DEVICES = "_HOROVOD_SPARK_DEVICES"
_STORE_S = 30.0

__getattr__ = names_of(__name__)


@dataclass(frozen=True)
class TaskInfo:
    """The host of a task, and the address of its agent.

    ``number`` identifies this start of the task; later starts have larger numbers.
    """

    index: int
    number: int
    place: str
    hostname: str
    address: tuple[str, int]

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskInfo:
        """The inverse of ``to_bytes``."""
        fields = json.loads(data)
        host, port = fields.pop("address")
        return cls(**fields, address=(host, port))

    def to_bytes(self) -> bytes:
        """The value in the driver's store."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class AgentOptions:
    """The data that the driver sends to every task, through Spark.

    ``stores`` are the addresses of the driver's store. ``interfaces`` are the network interfaces to
    use (empty: all). ``search_path`` is where the driver finds modules outside of its Python.
    """

    stores: tuple[tuple[str, int], ...]
    secret: bytes = field(repr=False)
    patience_s: float
    interfaces: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()
    is_elastic: bool = False


class AgentNames:
    """The names of agents: ``node/task-3``, and ``node/task-3.2`` after two restarts.

    Tasks of one place are on one node; a second place with the same host name is ``name-2``.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._starts: dict[int, list[int]] = {}

    def of(self, task: TaskInfo) -> str:
        """The name of a task's agent; the same in every call."""
        starts = self._starts.setdefault(task.index, [])
        if task.number not in starts:
            starts.append(task.number)
        again = starts.index(task.number)
        return f"{self.node_of(task)}/task-{task.index}" + (f".{again}" if again else "")

    def node_of(self, task: TaskInfo) -> str:
        """The name of a task's node."""
        if task.place not in self._nodes:
            taken = set(self._nodes.values())
            name, count = task.hostname, 1
            while name in taken:
                count += 1
                name = f"{task.hostname}-{count}"
            self._nodes[task.place] = name
        return self._nodes[task.place]


def newest(tasks: Sequence[TaskInfo]) -> dict[int, TaskInfo]:
    """The newest start of each task, by its index."""
    return {task.index: task for task in sorted(tasks, key=lambda task: task.number)}


def get_available_devices() -> list[str]:
    """Addresses of the GPUs that Spark gave to the task of this worker, such as ``["0"]``."""
    return [name for name in os.environ.get(_DEVICES, "").split(",") if name]


def serve(index: int, number: int, options: AgentOptions, gpus: Sequence[str]) -> Iterator[int]:
    """Run an agent until the job is over; ``TaskInfo`` explains ``index`` and ``number``.

    Raises:
        RuntimeError: the worker of this task has failed, or no launcher has connected.
    """
    driver = options.stores[0][0]
    host = _own_address(driver, options.interfaces)
    with EmbeddedAgent(
        host,
        options.secret,
        launcher=driver,
        environment=_environment(options, gpus),
        ends_with_failure=options.is_elastic,
        patience_s=options.patience_s,
    ) as agent:
        hostname = os.uname().nodename
        info = TaskInfo(index, number, this_host_id().host, hostname, agent.address)
        store = find_store(options.stores, options.secret, _STORE_S)
        store.set(f"task/{number}", info.to_bytes())
        store.close()
        exit_code = agent.wait()
    if exit_code != 0:
        raise RuntimeError(f"{TASK_FAILED} or was ended; the driver says why")
    yield exit_code


def _own_address(driver: str, interfaces: Sequence[str]) -> str:
    """This node's address, as the driver can reach it."""
    return store_addresses({"driver": resolve(driver)}, {}, interfaces)[0]


def _environment(options: AgentOptions, gpus: Sequence[str]) -> Mapping[str, str]:
    """The worker's own variables. It finds modules where the task finds them."""
    path = path_ahead()
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys((*path, *options.search_path))),
        "HOROVOD_SPARK_PYTHONPATH": os.pathsep.join(path),
        "HOROVOD_SPARK_WORK_DIR": os.getcwd(),
        _DEVICES: ",".join(gpus),
    }
