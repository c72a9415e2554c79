"""What a job is, and how it ended: the values that go into ``run_job`` and come out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from horovod.core.base.rank_info import RankInfo
from horovod.launch.calls.call import CallFiles
from horovod.launch.model.ssh import SshOptions

__all__ = ["EmbeddedAgentAddress", "JobOutcome", "JobPlan", "OtherHosts"]


@dataclass(frozen=True)
class EmbeddedAgentAddress:
    """Where an embedded agent listens, and the secret that it expects."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class OtherHosts:
    """Which of a job's hosts are other machines, by name with their addresses, and the way there.

    Those in ``guests`` have an agent already, the others are reached by ssh. ``interfaces``, if
    named, are the only ones for reaching the store and, later, each other.
    """

    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ssh: SshOptions = field(default_factory=SshOptions)
    interfaces: tuple[str, ...] = ()
    start_timeout_s: float = 30.0
    guests: Mapping[str, EmbeddedAgentAddress] = field(default_factory=dict)


@dataclass(frozen=True)
class JobPlan:
    """What to run where.

    ``extra_environment`` goes to every worker on top of the launcher's, and on top of that what
    ``rank_environment`` has for its rank, unless that is empty. In ``output_directory``
    each rank's lines are kept as ``rank.<R>/stdout`` and ``stderr``. With ``call``, the files of
    ``horovod.run``, workers get their descriptors and no standard input, one that exits with 0
    without a result has failed, and the last lines of a failed job are left to the caller.
    ``is_timestamped`` begins each line of a worker with the time; if it ``is_silent``, the launcher
    itself prints nothing. ``report`` is the file of ``--report``.
    """

    command: tuple[str, ...]
    slots: tuple[RankInfo, ...]
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    rank_environment: tuple[Mapping[str, str], ...] = ()
    is_verbose: bool = False
    output_directory: Path | None = None
    call: CallFiles | None = None
    is_timestamped: bool = False
    is_silent: bool = False
    others: OtherHosts = field(default_factory=OtherHosts)
    report: Path | None = None

    def environment_of(self, rank: int) -> dict[str, str]:
        """What this rank's worker gets beside its place and the launcher's own environment."""
        of_rank = self.rank_environment[rank] if self.rank_environment else {}
        return {**self.extra_environment, **of_rank}

    @property
    def slots_by_host(self) -> dict[str, tuple[RankInfo, ...]]:
        """The places on each host, hosts in the order of their ranks."""
        groups = groupby(self.slots, key=lambda slot: slot.hostname)
        return {hostname: tuple(slots) for hostname, slots in groups}

    @property
    def interfaces(self) -> tuple[str, ...] | None:
        """See ``worker_environment``."""
        if self.others.interfaces:
            return self.others.interfaces
        is_whole = self.slots[0].local_size == self.slots[0].size
        return None if is_whole else ()


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended: the launcher's exit status, and why in words if that is not 0.

    ``slot``, ``worker`` (its number), ``pid`` and ``exit_code`` are those of the worker that failed
    first, if one did.
    ``has_lost_host``: the connection to a host ended first; the text says which.
    """

    status: int
    text: str = ""
    rank_info: RankInfo | None = None
    pid: int = 0
    exit_code: int = 0
    has_lost_host: bool = False
    worker: int | None = None
