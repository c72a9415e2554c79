"""What the engine costs on these hosts, from times that ``launch/simulation/measure.py`` takes.

A rank alone measures nothing: two ranks of one host give the costs inside, and one rank on each of
two hosts the network and the costs between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from horovod.simulate.cluster import Costs, Network
from horovod.simulate.collective_time import CACHED_BYTES


@dataclass(frozen=True)
class Measured:
    """Times of allreduces of two ranks.

    Attributes:
        small_s: of 4 bytes.
        cached_s: of ``collective_time.CACHED_BYTES``.
        large_s: of ``large_bytes``.
        many_s: of ``many`` tensors in one go, of ``many_bytes`` together.
    """

    small_s: float
    cached_s: float
    large_s: float
    large_bytes: int
    many_s: float
    many: int
    many_bytes: int


def costs_from(inside: Measured, has_spare_cores: bool, source: str) -> Costs:
    """The costs of a host, from two ranks that share its memory."""
    byte_s = max(0.0, inside.large_s - inside.small_s) / inside.large_bytes
    return Costs(
        tensor_s=_tensor_s(inside, byte_s),
        bucket_s=inside.small_s,
        byte_s=byte_s,
        cached_byte_s=max(0.0, inside.cached_s - inside.small_s) / CACHED_BYTES,
        link_byte_s=0.0,
        overlap=has_spare_cores,
        source=source,
    )


def with_network(between: Measured, costs: Costs, name: str) -> tuple[Costs, Network]:
    """The network, from one rank on each of two hosts, and the costs with those of the link.

    What a host sends for an allreduce of two hosts is the tensor once. A link that is faster than
    the processors is as fast as they are: then this is the speed of both.
    """
    trips_s = max(between.small_s - costs.bucket_s, 1e-7)
    bytes_s = max(between.large_s - between.small_s, 1e-9)
    tensor_s = _tensor_s(between, bytes_s / between.large_bytes)
    costs = replace(costs, link_tensor_s=max(0.0, tensor_s - costs.tensor_s))
    return costs, Network(
        name=name,
        bandwidth=between.large_bytes / bytes_s,
        latency_s=trips_s / 3,  # up and down the tree, and one trip of the data
        message_s=1e-6,
        source="horovodrun --calibrate",
    )


def _tensor_s(measured: Measured, byte_s: float) -> float:
    of_bytes_s = measured.small_s + byte_s * measured.many_bytes
    return max(0.0, (measured.many_s - of_bytes_s) / measured.many)


def usual(times: Sequence[float]) -> float:
    """The median, of which half of the times are no longer."""
    return sorted(times)[len(times) // 2]
