"""The variables in which ``torch.distributed`` and libraries on it look for their world."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from pathlib import Path

from horovod.core.base.rank_info import RankInfo

_ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"
_LOWEST_PORT, _ATTEMPTS = 20000, 20


def torch_master(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The address where rank 0 opens torch's store: ``address``, unless the user has set one.

    The port is free on this machine now. Torch opens the store only if the program asks for it,
    some time later.
    """
    is_from_a_launcher = "RANK" in environ  # variables of a job that has started this one
    if _ADDRESS in environ and _PORT in environ and not is_from_a_launcher:
        return {}
    return {_ADDRESS: address, _PORT: str(_free_port())}


def _free_port() -> int:
    """A port that the system gives only to processes that name it, so that it stays free."""
    for _ in range(_ATTEMPTS):
        with socket.socket() as free:
            try:
                free.bind(("", random.randrange(_LOWEST_PORT, _lowest_given_port())))
            except (OSError, ValueError):  # taken; or the system gives all of them
                continue
            return int(free.getsockname()[1])
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def _lowest_given_port() -> int:
    """The first port that the system gives to connections and to listeners without a port."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768


def torch_position(info: RankInfo) -> dict[str, str]:
    """A rank's position under the names of torch."""
    return {
        "RANK": str(info.rank),
        "WORLD_SIZE": str(info.size),
        "LOCAL_RANK": str(info.local_rank),
        "LOCAL_WORLD_SIZE": str(info.local_size),
        "GROUP_RANK": str(info.cross_rank),
    }
