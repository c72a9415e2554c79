"""Python objects between ranks, for all frameworks: pickled, and sent as bytes.

Peers have authenticated each other before ``init`` returns, so what arrives here comes from this
job and may be unpickled. An object that does not pickle is an error on every rank, not a wait.
"""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np

from horovod.numpy.adapter import allgather, broadcast_
from horovod.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.world import rank

__all__ = ["allgather_object", "broadcast_object"]

_PICKLING_FAILED = -1


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give all ranks a copy of the root's object; blocks until it is there.

    Args:
        obj: on the root anything that cloudpickle can pickle; ignored elsewhere.
        root_rank: the rank whose object all ranks get; the same on every rank.
        name: name of the operation, the same on every rank; needed only where several threads
            send objects at the same time.
        process_set: the ranks that take part; the root is one of them.

    Returns:
        On the root ``obj`` itself, elsewhere a copy.

    Raises:
        ValueError: there is no such root rank.
        RuntimeError: the root's object cannot be pickled; the root gets the reason itself.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    name = name or "broadcast_object"
    is_root = rank() == root_rank
    payload, failure = _try_pickle(obj) if is_root else (b"", None)
    length = np.array([_PICKLING_FAILED if failure else len(payload)], np.int64)
    broadcast_(length, root_rank, f"{name}.sz", process_set)
    if failure is not None:
        raise failure
    if length[0] == _PICKLING_FAILED:
        raise RuntimeError(f"broadcast_object {name!r}: rank {root_rank} could not pickle it")
    data = bytearray(payload) if is_root else bytearray(int(length[0]))
    broadcast_(np.frombuffer(data, np.uint8), root_rank, f"{name}.t", process_set)
    return obj if is_root else cloudpickle.loads(data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Give all ranks the objects of all ranks; blocks until they are there.

    Args:
        obj: anything that cloudpickle can pickle; types and sizes may differ between ranks.
        name: as for ``broadcast_object``.
        process_set: the ranks that take part; this process is one of them.

    Returns:
        The objects by rank, copies all of them unless there is one rank only.

    Raises:
        RuntimeError: the object of some rank cannot be pickled; that rank gets the reason itself.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    check_process_set(process_set)
    if process_set.included() and process_set.size() == 1:
        return [obj]
    name = name or "allgather_object"
    payload, failure = _try_pickle(obj)
    length = np.array([_PICKLING_FAILED if failure else len(payload)], np.int64)
    lengths = allgather(length, f"{name}.sz", process_set)
    if failure is not None:
        raise failure
    failed = np.flatnonzero(lengths == _PICKLING_FAILED)
    if failed.size:
        members = process_set.ranks or []
        ranks = ", ".join(str(members[index]) for index in failed)
        raise RuntimeError(f"allgather_object {name!r}: rank {ranks} could not pickle it")
    gathered = allgather(np.frombuffer(payload, np.uint8), f"{name}.t", process_set)
    return [cloudpickle.loads(part) for part in np.split(gathered, np.cumsum(lengths)[:-1])]


def _try_pickle(obj: Any) -> tuple[bytes, Exception | None]:
    # Pickling runs the object's own code, which may raise anything.
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:
        return b"", RuntimeError(f"rank {rank()} could not pickle {type(obj).__name__}: {error}")
