"""Python objects between ranks, for all frameworks: pickled, and sent as bytes.

Peers have authenticated each other before the engine starts, so what arrives here comes from this
job and may be unpickled.
"""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np

from horovod.numpy.adapter import allgather, broadcast_
from horovod.world import rank, size

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """``root_rank``'s object on every rank; the root gets its own object back.

    Blocks until the root has sent it. Other ranks may pass anything, such as None.

    Args:
        obj: anything that cloudpickle can pickle.
        root_rank: the same on all ranks.
        name: the same on all ranks; default: the type's name, so give one where types differ.

    Raises:
        HorovodInternalError: a rank was lost, or ranks disagree about name or root.
    """
    name = name or type(obj).__name__
    is_root = rank() == root_rank
    payload = np.frombuffer(cloudpickle.dumps(obj), np.uint8).copy() if is_root else None
    length = np.array([0 if payload is None else payload.size], np.int64)
    broadcast_(length, root_rank, f"{name}.sz")
    if payload is None:
        payload = np.empty(int(length[0]), np.uint8)
    broadcast_(payload, root_rank, f"{name}.t")
    return obj if is_root else cloudpickle.loads(payload.tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Every rank's object, by rank; blocks until all ranks have sent theirs.

    Args:
        obj: anything that cloudpickle can pickle.
        name: the same on all ranks; default: the type's name, so give one where types differ.

    Raises:
        HorovodInternalError: a rank was lost, or ranks disagree about the name.
    """
    if size() == 1:
        return [obj]
    name = name or type(obj).__name__
    payload = np.frombuffer(cloudpickle.dumps(obj), np.uint8)
    lengths = allgather(np.array([payload.size], np.int64), f"{name}.sz")
    gathered = allgather(payload, f"{name}.t")
    ends = np.cumsum(lengths)
    parts = np.split(gathered, ends[:-1])
    return [cloudpickle.loads(part.tobytes()) for part in parts]
