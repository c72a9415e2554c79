"""The slots and GPUs of the hosts that each running experiment has to itself. Pure.

The processes of a worker are on one host and have adjacent ranks; workers fill the hosts in their
order. So the local rank determines the worker, and the worker its GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.hosts import HostSlots, assign_ranks, counted


class SiteHost(NamedTuple):
    """A host that may run ``slots`` processes, or any number for None.

    ``gpu_ids`` are its GPUs as in CUDA_VISIBLE_DEVICES.
    """

    hostname: str
    slots: int | None = None
    gpu_ids: tuple[str, ...] = ()


class Demand(NamedTuple):
    """The demand of an experiment: workers, and the processes and GPUs of each worker."""

    workers: int
    processes: int
    gpus: int

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.workers * self.processes


class Share(NamedTuple):
    """The slots of an experiment, and by rank the GPUs that each process sees."""

    slots: tuple[RankInfo, ...]
    gpus: tuple[tuple[str, ...], ...]

    @property
    def hosts(self) -> dict[str, int]:
        """The number of processes on each host."""
        return {slot.hostname: slot.local_size for slot in self.slots}


def shares_of(demand: Demand, hosts: Sequence[SiteHost], most: int) -> tuple[Share, ...]:
    """As many shares as the hosts have room for, at most ``most``."""
    shares: list[Share] = []
    free = list(hosts)
    while len(shares) < most and (workers := _workers_on(free, demand)):
        taken = list(zip(free, workers, strict=True))
        shares.append(_share(demand, taken))
        free = [_without(host, count, demand) for host, count in taken]
    return tuple(shares)


def why_none(demand: Demand, hosts: Sequence[SiteHost]) -> str:
    """Why there is no share at all."""
    needed, found = demand.workers * demand.gpus, sum(len(host.gpu_ids) for host in hosts)
    if needed > found:
        need = "it needs"
        if demand.workers > 1:
            need = f"{demand.workers} workers with {demand.gpus} each need"
        have = "this machine has" if len(hosts) == 1 else "the hosts have"
        return (
            f"train.resources.gpus: {need} {needed}, and {have} {found} "
            "(as CUDA_VISIBLE_DEVICES says, else nvidia-smi -L; on another machine, its slots)"
        )
    have = ", ".join(f"{host.hostname}:{host.slots}" for host in hosts)
    each = counted(demand.processes)
    gpus = f" and {demand.gpus} GPUs" if demand.gpus else ""
    return (
        f"{demand.size} processes were asked for, and there is no room for them on {have}: "
        f"each of {demand.workers} workers has {each}{gpus} on one host"
    )


def _workers_on(hosts: Sequence[SiteHost], demand: Demand) -> list[int]:
    """The number of workers on each host; empty if the hosts have no room for all."""
    left, taken = demand.workers, []
    for host in hosts:
        room = left
        if host.slots is not None:
            room = min(room, host.slots // demand.processes)
        if demand.gpus:
            room = min(room, len(host.gpu_ids) // demand.gpus)
        taken.append(room)
        left -= room
    return [] if left else taken


def _share(demand: Demand, taken: Sequence[tuple[SiteHost, int]]) -> Share:
    used = [(host, count) for host, count in taken if count]
    hosts = [HostSlots(host.hostname, count * demand.processes) for host, count in used]
    gpus = {host.hostname: host.gpu_ids[: count * demand.gpus] for host, count in used}
    slots = assign_ranks(hosts, demand.size)
    visible = (_visible(demand, gpus[slot.hostname], slot.local_rank) for slot in slots)
    return Share(slots, tuple(visible))


def _without(host: SiteHost, workers: int, demand: Demand) -> SiteHost:
    slots = None if host.slots is None else host.slots - workers * demand.processes
    return SiteHost(host.hostname, slots, host.gpu_ids[workers * demand.gpus :])


def _visible(demand: Demand, gpus: tuple[str, ...], local_rank: int) -> tuple[str, ...]:
    """The GPUs that a process sees, in the order of its device numbers.

    The only process of a worker with several GPUs drives them all and sees no others. Otherwise a
    process picks a GPU by its local rank, which counts over all workers on its host: it sees the
    ``gpus`` of all of them, in an order that gives it one of its own worker's.
    """
    worker = local_rank // demand.processes
    if demand.processes == 1 < demand.gpus:
        return gpus[worker * demand.gpus : (worker + 1) * demand.gpus]
    shift = worker * (demand.gpus - demand.processes) % len(gpus) if gpus else 0
    return gpus[shift:] + gpus[:shift]
