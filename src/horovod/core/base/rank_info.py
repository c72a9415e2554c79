"""The position of a process in the world, and how positions follow from where the ranks run."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from horovod.core.base.checked import MOST_RANKS, Fields, printable


@dataclass(frozen=True)
class RankInfo:
    """Position of one process: in the world, on its host, and among equal local ranks across hosts.

    Each rank counts from 0 to its size. ``hostname`` is the launcher's name of the host.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    hostname: str = ""


def cross_numbers(
    node: Hashable, local_rank: int, local_sizes: Mapping[Hashable, int]
) -> tuple[int, int]:
    """Cross rank and cross size of the process with this local rank on ``node``.

    They count the nodes that have this local rank, in the order of ``local_sizes``.
    """
    column = [name for name, size in local_sizes.items() if size > local_rank]
    return column.index(node), len(column)


def rank_infos(
    nodes: Sequence[str], local_ranks: Sequence[int] | None = None
) -> tuple[RankInfo, ...]:
    """Positions of the ranks of a world; rank ``r`` runs on ``nodes[r]``.

    ``local_ranks`` are given by rank; by default they follow the ranks. Nodes count in the order
    of their first ranks.
    """
    sizes: dict[Hashable, int] = {}
    counted = []
    for node in nodes:
        counted.append(sizes.get(node, 0))
        sizes[node] = counted[-1] + 1
    return tuple(
        RankInfo(
            *(rank, len(nodes), local_rank, sizes[node]),
            *cross_numbers(node, local_rank, sizes),
            hostname=node,
        )
        for rank, (node, local_rank) in enumerate(zip(nodes, local_ranks or counted, strict=True))
    )


def read_rank_info(fields: Fields, name: str = "rank_info") -> RankInfo:
    """The position in a message; BadMessageError if the numbers do not fit together."""
    fields, numbers = fields.fields(name), {}
    for name in ("", "local_", "cross_"):
        size = numbers[f"{name}size"] = fields.integer(f"{name}size", 1, MOST_RANKS)
        numbers[f"{name}rank"] = fields.integer(f"{name}rank", 0, size - 1)
    hostname = printable(fields.text("hostname", 255))
    fields.close()
    return RankInfo(**numbers, hostname=hostname)
