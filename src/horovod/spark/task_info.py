"""What the tasks and the driver of a job tell each other, and what a task is called. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

__all__ = ["Invitation", "Names", "TaskInfo", "newest"]


@dataclass(frozen=True)
class TaskInfo:
    """Where a task is, and where its guest listens.

    ``number`` tells this start of the task from all others; those that come later have larger ones.
    """

    index: int
    number: int
    place: str
    hostname: str
    address: tuple[str, int]

    @classmethod
    def decoded(cls, data: bytes) -> TaskInfo:
        """What ``encoded`` has made."""
        fields = json.loads(data)
        host, port = fields.pop("address")
        return cls(**fields, address=(host, port))

    def encoded(self) -> bytes:
        """As the driver's store takes it."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class Invitation:
    """What the driver says to every task; Spark carries it.

    ``stores`` are the addresses of the driver's store, ``interfaces`` the only ones to use, if
    named, and ``search_path`` is where the driver finds modules that its Python does not have.
    """

    stores: tuple[tuple[str, int], ...]
    secret: bytes = field(repr=False)
    patience_s: float
    interfaces: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()
    is_elastic: bool = False


class Names:
    """What guests are called: ``node/task-3``, and ``node/task-3.2`` for its second start again.

    Tasks of one place are of one node; a second place with the same host name is ``name-2``.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._starts: dict[int, list[int]] = {}

    def of(self, card: TaskInfo) -> str:
        """The name of the guest with this card; the same whenever it is asked for."""
        starts = self._starts.setdefault(card.index, [])
        if card.number not in starts:
            starts.append(card.number)
        again = starts.index(card.number)
        return f"{self.node_of(card)}/task-{card.index}" + (f".{again}" if again else "")

    def node_of(self, card: TaskInfo) -> str:
        """The name of its node."""
        if card.place not in self._nodes:
            taken = set(self._nodes.values())
            name, count = card.hostname, 1
            while name in taken:
                count += 1
                name = f"{card.hostname}-{count}"
            self._nodes[card.place] = name
        return self._nodes[card.place]


def newest(cards: Sequence[TaskInfo]) -> dict[int, TaskInfo]:
    """The card of the newest start of each task, by its index."""
    return {card.index: card for card in sorted(cards, key=lambda card: card.number)}
