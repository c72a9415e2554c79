"""Python objects between ranks, for all frameworks: pickled, and sent as bytes with a code.

An object is unpickled only if its code (``object_codes``) shows that a rank of this world has sent
it, for this operation. If not, the world ends, so that no rank waits for one that has given up. An
object that does not pickle is an error on every rank, not a wait.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from horovod.core.base.ranks import ranks_text
from horovod.core.calls import exchange
from horovod.core.object_codes import PICKLING_FAILED, ROW_BYTES, ObjectCodes
from horovod.core.operations import Kind
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import engine, object_key, rank
from horovod.errors import AlteredObjectError
from horovod.numpy.adapter import allgather, broadcast_
from horovod.rendezvous.base.authentication import CODE_BYTES, is_proof, prove

_NUMBERS = b"horovod numbers"

_Bytes = NDArray[np.uint8]


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
        AlteredObjectError: what arrived here is not what the root sent; other ranks get a
            ``HorovodInternalError``. Nothing of it was unpickled.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    name = name or "broadcast_object"
    key = object_key()
    _check_root(root_rank, name, process_set)
    is_root = rank() == root_rank
    data, failure = _try_pickle(obj) if is_root else (_no_object(), None)
    codes = ObjectCodes(key, "broadcast_object", name, *_sender(process_set, data, failure))
    with _ending_the_world():
        _announce(codes, f"{name}.root", failure, process_set)
        if is_root:
            _sign(codes, data)
        else:
            data = np.empty(codes.length_of(root_rank) + CODE_BYTES, np.uint8)
        broadcast_(data, root_rank, f"{name}.t", process_set)
        return obj if is_root else _checked(codes, root_rank, data)


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
        AlteredObjectError: see ``broadcast_object``.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    check_process_set(process_set)
    if process_set.included() and process_set.size() == 1:
        return [obj]
    name = name or "allgather_object"
    key = object_key()
    data, failure = _try_pickle(obj)
    codes = ObjectCodes(key, "allgather_object", name, *_sender(process_set, data, failure))
    with _ending_the_world():
        _announce(codes, f"{name}.sz", failure, process_set)
        lengths = codes.lengths()
        _sign(codes, data)
        records = allgather(data, f"{name}.t", process_set)
        return [cloudpickle.loads(payload) for payload in codes.payloads(lengths, records.data)]


def broadcast_numbers(numbers: Sequence[int]) -> tuple[int, ...]:
    """Give all ranks rank 0's whole numbers of 64 bits, by one broadcast; blocks until it is done.

    Their code (a proof of the world's key) has no nonces: numbers that rank 0 has sent before in
    this world pass too. So use it where such numbers do no harm.

    Args:
        numbers: equally many on every rank.

    Raises:
        AlteredObjectError: see ``broadcast_object``.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    name, key, size_bytes = "broadcast_numbers", object_key(), 8 * len(numbers)
    fields = struct.pack(f">{len(numbers)}q", *numbers)
    data = np.frombuffer(bytearray(fields + prove(key, _NUMBERS, fields)), np.uint8)
    with _ending_the_world():
        received = broadcast_(data, 0, name).tobytes()
        fields, code = received[:size_bytes], received[size_bytes:]
        if not is_proof(code, key, _NUMBERS, fields):
            raise AlteredObjectError(name, name, 0)
    return struct.unpack(f">{len(numbers)}q", fields)


def check_equal_settings(
    title: str, name: str, settings: Mapping[str, Any], process_set: ProcessSet, report: Any = None
) -> list[Any]:
    """Compare the settings of all ranks of a set; blocks until all are here.

    Args:
        title: what the user calls what is set up.
        name: of the operations.
        settings: by the names that the user knows.
        process_set: the ranks, this one among them.
        report: travels with them, and need not be the same.

    Returns:
        The reports of all ranks of the set.

    Raises:
        ValueError: a rank has other settings than the first one; on all ranks alike.
    """
    members = process_set.ranks or []
    gathered = allgather_object((dict(settings), report), f"{name}.settings", process_set)
    answers, reports = zip(*gathered, strict=True)
    for member, found in zip(members, answers, strict=True):
        for key, expected in answers[0].items():
            if found[key] != expected:
                raise ValueError(
                    f"{title}: rank {member} has {key}={found[key]!r}, rank {members[0]} has "
                    f"{key}={expected!r}; all ranks must have the same"
                )
    return list(reports)


def _check_root(root_rank: int, name: str, process_set: ProcessSet) -> None:
    exchange(Kind.BROADCAST, process_set, root_rank)
    if root_rank not in (process_set.ranks or []):
        raise ValueError(
            f"broadcast_object {name!r}: invalid root rank {root_rank}; the ranks are "
            f"{process_set.ranks}"
        )


def _sender(
    process_set: ProcessSet, data: _Bytes, failure: Exception | None
) -> tuple[int, int, int]:
    """The number of the set, this rank and the length of its object."""
    length = PICKLING_FAILED if failure else data.size - CODE_BYTES
    return process_set.process_set_id or 0, rank(), length


def _announce(
    codes: ObjectCodes, name: str, failure: Exception | None, process_set: ProcessSet
) -> None:
    """Give ``codes`` the announcements of all ranks; raises on all of them if one cannot go on."""
    own = np.frombuffer(codes.row, np.uint8).reshape(1, ROW_BYTES)
    codes.receive(allgather(own, name, process_set).tobytes(), process_set.ranks or [])
    if failure is not None:
        raise failure
    if failed := codes.failed():
        raise RuntimeError(f"{codes.title}: {ranks_text(failed)} could not pickle it")


def _sign(codes: ObjectCodes, data: _Bytes) -> None:
    """Put the code of this rank's object behind it."""
    code = codes.code(data[:-CODE_BYTES].data)
    data[-CODE_BYTES:] = np.frombuffer(code, np.uint8)


def _checked(codes: ObjectCodes, sender: int, data: _Bytes) -> Any:
    """The object of ``sender`` in ``data``, unpickled if it is."""
    payload, code = data[:-CODE_BYTES].data, data[-CODE_BYTES:].data
    codes.check(sender, payload, code)
    return cloudpickle.loads(payload)


def _no_object() -> _Bytes:
    return np.zeros(CODE_BYTES, np.uint8)


def _try_pickle(obj: Any) -> tuple[_Bytes, Exception | None]:
    """The pickled object, with room for its code behind it."""
    stream = io.BytesIO()
    try:
        cloudpickle.dump(obj, stream)
        stream.write(bytes(CODE_BYTES))
    except Exception as error:  # pickling runs the object's own code, which may raise anything
        text = f"rank {rank()} could not pickle {type(obj).__name__}: {error}"
        return _no_object(), RuntimeError(text)
    return np.frombuffer(stream.getbuffer(), np.uint8), None


@contextlib.contextmanager
def _ending_the_world() -> Iterator[None]:
    """End the world after an altered object, so that no rank waits for this one."""
    try:
        yield
    except AlteredObjectError as error:
        engine().end_world(str(error))
        raise
