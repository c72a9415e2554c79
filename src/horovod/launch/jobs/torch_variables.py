"""The variables in which ``torch.distributed`` and libraries on it look for their world."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from horovod.core.base.rank_info import RankInfo

_ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"


def torch_master(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Where rank 0 is to open torch's store: ``address``, unless the user has said it.

    The port is free on this machine now. Torch opens the store only if the program asks for it.
    """
    is_from_a_launcher = "RANK" in environ  # of another job, whose world this one is not
    if _ADDRESS in environ and _PORT in environ and not is_from_a_launcher:
        return {}
    with socket.socket() as free:
        free.bind(("", 0))
        return {_ADDRESS: address, _PORT: str(free.getsockname()[1])}


def torch_position(info: RankInfo) -> dict[str, str]:
    """A rank's position under the names of torch."""
    return {
        "RANK": str(info.rank),
        "WORLD_SIZE": str(info.size),
        "LOCAL_RANK": str(info.local_rank),
        "LOCAL_WORLD_SIZE": str(info.local_size),
    }
