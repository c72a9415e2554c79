"""The position of this process in the world, read from its environment.

This is the first step of ``init``; it makes no connection. Sources in order: ``HOROVOD_*`` (our
launcher, or another one that writes what the original's Gloo needs), torchrun's variables, and
without either a world of one. ``mpi`` and ``slurm`` read what mpirun and srun say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from horovod.core.base.rank_info import RankInfo, rank_infos
from horovod.errors import InitError

Launcher = Literal["horovodrun", "torchrun", "mpirun", "srun", "torch.distributed", "other", "none"]
# Our launcher sets this variable.
LAUNCHER = "_HOROVOD_LAUNCHER"
_STORE = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")


@dataclass(frozen=True)
class ProcessInfo(RankInfo):
    """The position of this process, and how it was started.

    ``launcher`` says what started it, and so where the store and the job's secret come from. Where
    the launcher does not tell the numbers on and across hosts, ``placed`` adds them.
    """

    launcher: Launcher = "none"
    scope: str = ""  # distinguishes the worlds that the job's processes form
    comm: Any = field(default=None, compare=False, repr=False)  # MPI's, where mpirun started it
    group: str = ""  # the machine's number, where the launcher counts machines
    is_part: bool = False  # the world leaves out processes that the launcher counts
    is_provisional: bool = False  # that world does not exist yet and may become another one

    @classmethod
    def at(cls, position: RankInfo, hostname: str, launcher: Launcher, **start: Any) -> ProcessInfo:
        """The process at ``position``; the other arguments are fields of this class."""
        return cls(**{**vars(position), "hostname": hostname}, launcher=launcher, **start)

    @property
    def node(self) -> str:
        """The launcher's name of the machine."""
        return self.group or self.hostname

    def restricted_to(self, ranks: Sequence[int]) -> ProcessInfo:
        """The position in a world of these ranks only, renumbered in the order given.

        Raises:
            InitError: this process is not one of them, or one of them does not exist.
        """
        ranks = list(ranks)
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks):
            raise InitError(
                f"init: comm={ranks}: expected different ranks from 0 to {self.size - 1}"
            )
        if self.rank not in ranks:
            raise InitError(f"init: comm={ranks} does not contain this process, rank {self.rank}")
        scope = self.scope + "-".join(map(str, ranks)) + "/"
        rank, size = ranks.index(self.rank), len(ranks)
        return replace(self, rank=rank, size=size, scope=scope, is_part=True)

    def placed(self, nodes: Sequence[str]) -> ProcessInfo:
        """The position among ranks on these ``nodes``; rank ``r`` is on ``nodes[r]``.

        What the launcher said stays. The local and cross numbers of a part of the job, and the
        cross numbers under torchrun, are counted from ``nodes``.
        """
        if self.launcher in ("horovodrun", "other") and not self.is_part:
            return self
        found = rank_infos(nodes)[self.rank]
        return replace(self, **{**vars(found), "hostname": self.hostname})


def identify(environ: Mapping[str, str]) -> ProcessInfo:
    """The position that ``environ`` gives this process; touches nothing else.

    Raises:
        InitError: a variable is missing, not a number or contradicts another one. The text names
            the variable, what it holds and what fits.
    """
    if "HOROVOD_RANK" in environ or "HOROVOD_SIZE" in environ:
        return _from_launcher(environ)
    if "TORCHELASTIC_RUN_ID" in environ:
        return _from_torchrun(environ)
    if any(name in environ for name in _STORE):
        return _from_launcher(environ)
    return ProcessInfo(hostname=hostname_of(environ))


def _from_launcher(environ: Mapping[str, str]) -> ProcessInfo:
    launcher: Launcher = "horovodrun" if LAUNCHER in environ else "other"
    is_elastic = environ.get("HOROVOD_ELASTIC") == "1"
    if is_elastic and launcher == "other":
        raise InitError(
            "init: HOROVOD_ELASTIC=1 comes from a launcher that drives elastic jobs as the "
            "original did; start them with horovodrun --host-discovery-script, horovod.run or "
            "horovod.ray (docs/migrating.md)"
        )
    rank, size = position_of(environ, "HOROVOD_RANK", "HOROVOD_SIZE")
    local_rank, local_size = position_of(environ, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", size)
    cross_rank, cross_size = position_of(environ, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", size)
    # In an elastic job the variables are provisional, and rank 0 need not have the lowest slot.
    if not is_elastic:
        _check_local_rank(rank, size, local_rank, local_size, "HOROVOD_LOCAL_RANK", "HOROVOD_RANK")
    hostname = hostname_of(environ)
    return ProcessInfo(
        rank, size, local_rank, local_size, cross_rank, cross_size, hostname, launcher
    )


def _from_torchrun(environ: Mapping[str, str]) -> ProcessInfo:
    rank, size = position_of(environ, "RANK", "WORLD_SIZE")
    local_rank, local_size = position_of(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE", size)
    _check_local_rank(rank, size, local_rank, local_size, "LOCAL_RANK", "RANK")
    numbers, group = (rank, size, local_rank, local_size), environ.get("GROUP_RANK", "")
    return ProcessInfo(*numbers, hostname=hostname_of(environ), launcher="torchrun", group=group)


def position_of(
    environ: Mapping[str, str], rank_name: str, size_name: str, largest_size: int | None = None
) -> tuple[int, int]:
    """A rank and its size, both checked: 0 <= rank < size <= largest_size."""
    size = _integer(environ, size_name, 1, largest_size)
    return _integer(environ, rank_name, 0, size - 1), size


def _integer(environ: Mapping[str, str], name: str, low: int, high: int | None) -> int:
    expected = f"an integer from {low} to {high}" if high is not None else f"an integer >= {low}"
    text = environ.get(name)
    if text is None:
        raise InitError(f"init: {name} is not set; expected {expected}, as the launcher sets it")
    # isdecimal alone lets other scripts' digits through, int alone lets "1_0" and " 1" through.
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InitError(f"init: {name}={text!r}: expected {expected}")
    value = int(text)
    if value < low or (high is not None and value > high):
        raise InitError(f"init: {name}={text!r}: expected {expected}")
    return value


def _check_local_rank(
    rank: int, size: int, local_rank: int, local_size: int, local_name: str, name: str
) -> None:
    if local_size == size and local_rank != rank:
        raise InitError(
            f"init: {local_name}={local_rank} but {name}={rank}; on a single host "
            f"(local size = size = {size}) both are the same"
        )


def hostname_of(environ: Mapping[str, str]) -> str:
    """The launcher's name of this machine, else the machine's own name."""
    return environ.get("HOROVOD_HOSTNAME") or os.uname().nodename
