"""What one host has to run, and the environment of its workers. Values and pure functions.

A plan is the same for the launcher's own host and for a host with an agent. It contains the job's
secret, and travels to an agent through ssh's standard input.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from horovod.core.base.checked import Fields, Record, between, encoded, nullable, shown, worded
from horovod.core.base.rank_info import RankInfo, read_rank_info
from horovod.launch.model.hosts import node_of
from horovod.launch.model.job_plan import JobPlan
from horovod.rendezvous.identity.environment import LAUNCHER

# Variables of the ssh session that the launcher itself may run in.
_OF_A_SESSION = frozenset({"SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_AUTH_SOCK"})

_MOST_WORD = 2**21  # of a command line
_MOST_STORE_S = 10.0  # in which an agent must find a way to the store


@dataclass(frozen=True)
class WorkerSpec(Record):
    """One worker: its number, its position, and variables that only it gets.

    No two workers of a job ever have the same number. Without elastic training it is the rank.
    """

    number: Annotated[int, between(0, 2**32 - 1)]
    rank_info: Annotated[RankInfo, read_rank_info]
    extra: Annotated[Mapping[str, str], Fields.texts_by_name]


@dataclass(frozen=True)
class HostPlan(Record):
    """Every worker of ``hostname`` runs ``argv`` in ``environment``, with additions of its own.

    The job's store is the first of ``stores``, addresses and ports, that can be reached from the
    host within ``store_timeout_s`` and knows ``secret``. ``interfaces``: see
    ``worker_environment``. If the launcher disappears, the agent keeps the workers for
    ``reconnect_timeout_s``.
    """

    hostname: Annotated[str, shown(255)]
    argv: Annotated[tuple[str, ...], worded(_MOST_WORD)]
    environment: Annotated[Mapping[str, str], Fields.texts_by_name]
    stores: Annotated[tuple[tuple[str, int], ...], Fields.addresses]
    secret: Annotated[bytes, encoded] = field(repr=False)
    store_timeout_s: Annotated[float, Fields.number] = 10.0
    interfaces: Annotated[tuple[str, ...] | None, nullable(worded(255))] = None
    has_call: bool = False
    reconnect_timeout_s: Annotated[float, Fields.number] = 0.0


def host_plan(
    plan: JobPlan,
    hostname: str,
    environment: Mapping[str, str],
    stores: Sequence[tuple[str, int]],
    secret: bytes,
    reconnect_timeout_s: float = 0.0,
) -> HostPlan:
    """The part of a job that runs on ``hostname``."""
    return HostPlan(
        hostname=hostname,
        argv=tuple(command_argv(plan.command)),
        environment=dict(environment),
        stores=tuple(stores),
        secret=secret,
        store_timeout_s=min(_MOST_STORE_S, plan.others.start_timeout_s / 2),
        interfaces=plan.interfaces,
        has_call=plan.call is not None,
        reconnect_timeout_s=reconnect_timeout_s,
    )


def command_argv(command: Sequence[str]) -> list[str]:
    """The words to execute: several words unchanged, one word with spaces by ``/bin/sh``."""
    if len(command) == 1 and any(character.isspace() for character in command[0]):
        return ["/bin/sh", "-c", command[0]]
    return list(command)


def remote_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the launcher's environment that workers on other hosts get, on top of theirs.

    Variables that number one machine's GPUs are left out.
    """
    names = [name for name in environ if is_passed_on(name) and name not in _OF_A_SESSION]
    return {name: environ[name] for name in names if not name.endswith("CUDA_VISIBLE_DEVICES")}


# Variables that a launcher has from its own job if it is itself a worker.
_OF_A_WORKER = frozenset(
    {LAUNCHER, "_HOROVOD_PROGRESS", "_HOROVOD_REPORT", "_HOROVOD_SECRET_KEY", "_HOROVOD_WORKER"}
)
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Rendezvous:
    """Where the job's store listens, and the job's secret, which no message ever shows."""

    address: str
    port: int
    secret: bytes = field(repr=False)


def worker_environment(
    base: Mapping[str, str],
    rank_info: RankInfo,
    rendezvous: Rendezvous,
    extra: Mapping[str, str] | None = None,
    interfaces: Sequence[str] | None = None,
) -> dict[str, str]:
    """The variables of ``base`` that workers get, the worker's position, and ``extra``.

    ``interfaces`` are those that the ranks may use to reach each other; empty for any of them.
    None stands for a world on one host, which needs the loopback interface only.
    """
    environment = {name: base[name] for name in base if is_passed_on(name)}
    if interfaces is None:
        environment.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
        environment["HOROVOD_GLOO_IFACE"] = _LOOPBACK
    elif interfaces:
        names = ",".join(interfaces)
        environment.update(NCCL_SOCKET_IFNAME=names, HOROVOD_GLOO_IFACE=names)
    environment.update(
        {f"HOROVOD_{name.upper()}": str(value) for name, value in vars(rank_info).items()},
        HOROVOD_HOSTNAME=node_of(rank_info.hostname),
        HOROVOD_GLOO_RENDEZVOUS_ADDR=rendezvous.address,
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(rendezvous.port),
        HOROVOD_CONTROLLER="gloo",
        PYTHONUNBUFFERED="1",
        _HOROVOD_SECRET_KEY=base64.b64encode(rendezvous.secret).decode(),
    )
    return {**environment, LAUNCHER: "horovodrun", **(extra or {})}


def is_passed_on(name: str) -> bool:
    """Whether workers get the launcher's variable ``name``."""
    is_of_the_shell = name == "OLDPWD" or name.startswith("BASH_FUNC_")
    return not is_of_the_shell and name not in _OF_A_WORKER
