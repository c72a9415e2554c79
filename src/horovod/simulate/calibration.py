"""What the engine costs on these hosts, from times that ``launch/simulation/measure.py`` takes.

A rank alone measures nothing: two ranks of one host give the costs inside, and one rank on each of
two hosts the network and the costs between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod.simulate.cluster import Costs, Network

__all__ = ["Measured", "costs_from", "network_from"]


@dataclass(frozen=True)
class Measured:
    """Times of allreduces of two ranks.

    Attributes:
        small_s: of 4 bytes.
        large_s: of ``large_bytes``.
        many_s: of ``many`` tensors in one go, of ``many_bytes`` together.
    """

    small_s: float
    large_s: float
    large_bytes: int
    many_s: float
    many: int
    many_bytes: int


def costs_from(inside: Measured, has_spare_cores: bool, source: str) -> Costs:
    """The costs of a host, from two ranks that share its memory."""
    byte_s = inside.large_s / inside.large_bytes
    of_bytes_s = inside.small_s + byte_s * inside.many_bytes
    return Costs(
        tensor_s=max(0.0, (inside.many_s - of_bytes_s) / inside.many),
        bucket_s=inside.small_s,
        byte_s=byte_s,
        link_byte_s=0.0,
        overlap=has_spare_cores,
        source=source,
    )


def network_from(between: Measured, costs: Costs, name: str) -> Network:
    """The network, from one rank on each of two hosts.

    What a host sends for an allreduce of two hosts is the tensor once. A link that is faster than
    the processors is as fast as they are: then this is the speed of both.
    """
    trips_s = max(between.small_s - costs.bucket_s, 1e-7)
    bandwidth = between.large_bytes / max(between.large_s - trips_s, 1e-9)
    return Network(
        name=name,
        bandwidth=bandwidth,
        latency_s=trips_s / 3,  # up and down the tree, and one trip of the data
        message_s=1e-6,
        source="horovodrun --calibrate",
    )


def usual(times: Sequence[float]) -> float:
    """The median, of which half of the times are no longer."""
    return sorted(times)[len(times) // 2]
