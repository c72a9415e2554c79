"""What an elastic job is: the command, the limits of its size, and where its hosts come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from horovod.launch.calls.call import CallFiles
from horovod.launch.model.hosts import HostSlots
from horovod.launch.model.limits import Limits
from horovod.launch.model.ssh import SshOptions

__all__ = ["ElasticPlan", "check_hosts"]


@dataclass(frozen=True)
class ElasticPlan:
    """What to run, on what comes and goes.

    Hosts come from ``script``, a command for the shell, or are ``hosts`` for good; or they are
    guests, which the launcher hears of while the job runs (``has_guests``).
    ``slots_per_host`` is for hosts that the script names without a number. A job with a ``job_id``
    outlives the launcher. The other fields are those of ``JobPlan`` and ``OtherHosts``; the answers
    of ``call`` are for the first ranks of the last world, all of them or, with ``wants_all``, as
    many as there are, ``limits.min_np`` at least.
    """

    command: tuple[str, ...]
    limits: Limits
    script: str = ""
    hosts: tuple[HostSlots, ...] = ()
    slots_per_host: int | None = None
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    is_verbose: bool = False
    output_directory: Path | None = None
    is_timestamped: bool = False
    is_silent: bool = False
    ssh: SshOptions = field(default_factory=SshOptions)
    interfaces: tuple[str, ...] = ()
    start_timeout_s: float = 30.0
    job_id: str = ""
    call: CallFiles | None = None
    report: Path | None = None
    has_guests: bool = False
    wants_all: bool = False


def check_hosts(hosts: tuple[HostSlots, ...], limits: Limits, example: str) -> None:
    """Whether a job on ``hosts`` could begin, and go on after a failure.

    ``example`` says with which words hosts are used again.

    Raises:
        ValueError: it could not.
    """
    available = sum(host.slots for host in hosts)
    if available < limits.np:
        raise ValueError(
            f"{limits.np} processes were asked for, but the hosts have {available} slots: "
            + ", ".join(f"{host.hostname}:{host.slots}" for host in hosts)
        )
    if len(hosts) < 2 and limits.cooldown is None:
        names = ", ".join(host.hostname for host in hosts)
        raise ValueError(
            f"an elastic job on {names} alone has fewer than 2 hosts: a host where a worker fails "
            "is not used again; name more of them, or say after how many seconds it may be, for "
            f"example with {example}"
        )
