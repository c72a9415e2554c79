"""The environment that a worker is started with. A pure function of the launcher's own."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.launch.hosts import Slot

__all__ = ["Rendezvous", "worker_environment"]

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Rendezvous:
    """Where the job's store listens, and the job's secret, which no message ever shows."""

    address: str
    port: int
    secret: bytes = field(repr=False)


def worker_environment(
    base: Mapping[str, str],
    slot: Slot,
    rendezvous: Rendezvous,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """``base`` as far as workers should see it, the worker's place in the world, and ``extra``."""
    environment = {name: base[name] for name in base if _is_passed_on(name)}
    if slot.local_size == slot.size:
        # On one machine. Elsewhere the interfaces are those that reach the others.
        environment.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
        environment["HOROVOD_GLOO_IFACE"] = _LOOPBACK
    environment.update(
        HOROVOD_RANK=str(slot.rank),
        HOROVOD_SIZE=str(slot.size),
        HOROVOD_LOCAL_RANK=str(slot.local_rank),
        HOROVOD_LOCAL_SIZE=str(slot.local_size),
        HOROVOD_CROSS_RANK=str(slot.cross_rank),
        HOROVOD_CROSS_SIZE=str(slot.cross_size),
        HOROVOD_HOSTNAME=slot.hostname,
        HOROVOD_GLOO_RENDEZVOUS_ADDR=rendezvous.address,
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(rendezvous.port),
        HOROVOD_CONTROLLER="gloo",
        PYTHONUNBUFFERED="1",
        _HOROVOD_SECRET_KEY=base64.b64encode(rendezvous.secret).decode(),
    )
    environment.update(extra or {})
    return environment


def _is_passed_on(name: str) -> bool:
    return name != "OLDPWD" and not name.startswith("BASH_FUNC_")
