"""What a job is, and how it ended: the values that go into the launcher and come out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from horovod.core.base.rank_info import RankInfo
from horovod.launch.calls.call import CallFiles
from horovod.launch.model.hosts import HostSlots, check_slots
from horovod.launch.model.ssh import SshOptions
from horovod.trace.failures import RankFailure

_MIN_COOLDOWN_S = 1.0
_MAX_COOLDOWN_S = 3600.0


@dataclass(frozen=True)
class Limits:
    """``np`` slots are needed before anything starts, ``min_np`` workers for a world.

    A world has at most ``max_np``; as many again are kept waiting as spares. ``reset_limit`` is
    the number of worlds after the first, ``elastic_timeout_s`` how long the job may be without one.
    ``cooldown`` gives the least and the longest time for which a host is blacklisted; without it
    that is for good. A newcomer that needs longer than ``newcomer_timeout_s`` is not waited for.

    Raises:
        ValueError: these contradict each other, or a value is out of its range.
    """

    np: int
    min_np: int
    max_np: int | None
    reset_limit: int | None
    elastic_timeout_s: float
    cooldown: tuple[float, float] | None
    newcomer_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_np <= self.np:
            raise ValueError(f"min-np is {self.min_np}; expected 1 to {self.np}, which is np")
        if self.max_np is not None and self.max_np < self.np:
            raise ValueError(f"max-np is {self.max_np}; expected {self.np}, which is np, or more")
        if self.reset_limit is not None and self.reset_limit < 0:
            raise ValueError(f"the reset limit is {self.reset_limit}; expected 0 or more")
        if self.elastic_timeout_s < 0:
            raise ValueError(f"the elastic timeout is {self.elastic_timeout_s}; expected 0 or more")
        if self.cooldown is not None:
            _check_cooldown(*self.cooldown)


def _check_cooldown(lower: float, upper: float) -> None:
    if not _MIN_COOLDOWN_S <= lower <= upper <= _MAX_COOLDOWN_S:
        raise ValueError(
            f"the blacklist cooldown range is {lower:g} to {upper:g} seconds; expected at least "
            f"{_MIN_COOLDOWN_S:g}, at most {_MAX_COOLDOWN_S:g}, the lesser first"
        )


@dataclass(frozen=True)
class ElasticPlan:
    """How far a job may shrink and grow, and where its hosts come from.

    Hosts come from ``script``, a command for the shell, or are those of the plan for good, or have
    embedded agents that the launcher hears of while the job runs (``has_embedded_agents``).
    ``slots_per_host`` is for hosts that the script names without a number. A job with a ``job_id``
    outlives the launcher. A function has ``min_np`` results, those of the first ranks of the last
    world; with ``most_results`` it has those of all ranks, up to this number.
    """

    limits: Limits
    script: str = ""
    slots_per_host: int | None = None
    job_id: str = ""
    most_results: int | None = None
    has_embedded_agents: bool = False


@dataclass(frozen=True)
class EmbeddedAgentAddress:
    """Where an embedded agent listens, and the secret that it expects."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class OtherHosts:
    """A job's hosts that are other machines, with their addresses by name, and how to reach them.

    Hosts in ``agents`` have an embedded agent already. The others are reached by ssh.
    ``interfaces``, if given, are the only ones for reaching the store and, later, each other.
    """

    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ssh: SshOptions = field(default_factory=SshOptions)
    interfaces: tuple[str, ...] = ()
    start_timeout_s: float = 30.0
    agents: Mapping[str, EmbeddedAgentAddress] = field(default_factory=dict)


@dataclass(frozen=True)
class JobPlan:
    """A job: what runs on which hosts.

    A job of fixed size has ``slots``, the positions of its ranks; a job with ``elastic`` gets its
    ranks while it runs. ``hosts`` are those that the user named.

    ``extra_environment`` goes to every worker on top of the launcher's environment. On top of that
    goes what ``rank_environment``, unless empty, has for the worker's rank. In
    ``output_directory`` each rank's lines are kept as ``rank.<R>/stdout`` and ``stderr``. ``call``
    has the files of ``horovod.run``: workers get their descriptors and no standard input, a worker
    that exits with 0 without a result has failed, and the caller prints the outcome.
    ``is_timestamped`` begins each line of a worker with the time; with ``has_full_prefix`` lines
    begin on a terminal as elsewhere. If it ``is_silent``, the launcher
    itself prints nothing; if it ``is_quiet``, no status line and no last line. ``report`` is the
    file of ``--report``. ``debug_rank``, which is on this machine, runs under a debugger.
    """

    command: tuple[str, ...] = ()
    slots: tuple[RankInfo, ...] = ()
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    rank_environment: tuple[Mapping[str, str], ...] = ()
    is_verbose: bool = False
    output_directory: Path | None = None
    call: CallFiles | None = None
    is_timestamped: bool = False
    is_silent: bool = False
    is_quiet: bool = False
    has_full_prefix: bool = False
    debug_rank: int | None = None
    debug_port: int | None = None
    others: OtherHosts = field(default_factory=OtherHosts)
    report: Path | None = None
    hosts: tuple[HostSlots, ...] = ()
    elastic: ElasticPlan | None = None

    def environment_of(self, rank: int) -> dict[str, str]:
        """The variables of this rank's worker besides its position and the launcher's own."""
        of_rank = self.rank_environment[rank] if self.rank_environment else {}
        return {**self.extra_environment, **of_rank}

    @property
    def slots_by_host(self) -> dict[str, tuple[RankInfo, ...]]:
        """The positions on each host, hosts in the order of their ranks."""
        groups = groupby(self.slots, key=lambda slot: slot.hostname)
        return {hostname: tuple(slots) for hostname, slots in groups}

    @property
    def interfaces(self) -> tuple[str, ...] | None:
        """See ``worker_environment``."""
        is_one_host = bool(self.slots) and self.slots[0].local_size == self.slots[0].size
        return None if is_one_host and not self.others.interfaces else self.others.interfaces

    @property
    def least_results(self) -> int:
        """How many results a function must have."""
        return self.elastic.limits.min_np if self.elastic else len(self.slots)

    @property
    def most_results(self) -> int:
        """How many results a function can have."""
        return (self.elastic and self.elastic.most_results) or self.least_results


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended: the launcher's exit status, and why in words if that is not 0.

    ``rank_info``, ``worker`` (its number), ``pid`` and ``exit_code`` are those of the worker that
    failed first, if one did. ``has_lost_host``: the connection to a host, which the text names,
    ended first. ``failures`` are the workers that failed, the cause first; not all of many.
    """

    status: int
    text: str = ""
    rank_info: RankInfo | None = None
    pid: int = 0
    exit_code: int = 0
    has_lost_host: bool = False
    worker: int | None = None
    failures: tuple[RankFailure, ...] = ()


def check_hosts(hosts: Sequence[HostSlots], limits: Limits, example: str) -> None:
    """Check that an elastic job on ``hosts`` can begin, and go on after a failure.

    ``example`` is the option that lets the job use a host again.

    Raises:
        ValueError: it cannot.
    """
    check_slots(hosts, limits.np)
    if len(hosts) < 2 and limits.cooldown is None:
        names = ", ".join(host.hostname for host in hosts)
        raise ValueError(
            f"an elastic job on {names} alone has fewer than 2 hosts: a host where a worker fails "
            "is not used again; name more hosts, or say after how many seconds a host may be used "
            f"again, for example with {example}"
        )


_FAILED = (
    "Horovod detected that one or more processes exited with non-zero status; the others have been "
    "ended. The first was"
)


def failure_text(cause: str, rank: int, exit_code: int | None) -> str:
    """The outcome of a job that failed; ``cause`` was the first failure.

    The last lines have the form that tools look for. ``exit_code`` is None if the launcher ended
    the worker.
    """
    code = "" if exit_code is None else f"Exit code: {exit_code}\n"
    return f"{_FAILED} {cause}\nProcess name: {rank}\n{code}"
