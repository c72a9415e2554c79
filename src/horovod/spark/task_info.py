"""The messages between a job's driver and its tasks, and the names of tasks. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


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
    """What the driver sends to every task, through Spark.

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
