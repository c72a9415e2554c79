"""The environment that a worker is started with. A pure function of the launcher's own."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.hosts import node_of
from horovod.rendezvous.identity.environment import LAUNCHER

__all__ = ["Rendezvous", "is_passed_on", "worker_environment"]

# What a launcher that is itself a worker has from its own job.
_OF_A_WORKER = frozenset({LAUNCHER, "_HOROVOD_REPORT", "_HOROVOD_SECRET_KEY", "_HOROVOD_WORKER"})
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
    """``base`` as far as workers should see it, the worker's place in the world, and ``extra``.

    ``interfaces`` are those that the ranks may use to reach each other; without names any will do.
    None stands for a world on one host, which needs the loopback interface only.
    """
    environment = {name: base[name] for name in base if is_passed_on(name)}
    if interfaces is None:
        environment.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
        environment["HOROVOD_GLOO_IFACE"] = _LOOPBACK
    elif interfaces:
        environment["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
        environment["HOROVOD_GLOO_IFACE"] = ",".join(interfaces)
    environment.update(
        {f"HOROVOD_{name.upper()}": str(value) for name, value in vars(rank_info).items()},
        HOROVOD_HOSTNAME=node_of(rank_info.hostname),
        HOROVOD_GLOO_RENDEZVOUS_ADDR=rendezvous.address,
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(rendezvous.port),
        HOROVOD_CONTROLLER="gloo",
        PYTHONUNBUFFERED="1",
        _HOROVOD_SECRET_KEY=base64.b64encode(rendezvous.secret).decode(),
    )
    environment[LAUNCHER] = "horovodrun"
    environment.update(extra or {})
    return environment


def is_passed_on(name: str) -> bool:
    """Whether workers get the launcher's variable ``name``."""
    is_of_the_shell = name == "OLDPWD" or name.startswith("BASH_FUNC_")
    return not is_of_the_shell and name not in _OF_A_WORKER
