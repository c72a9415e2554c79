"""Calls and answers in the store of a caller of ``mpirun``: nothing unproven is unpickled."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from horovod.launch.calls.call import Call, memory_file, write_call, write_result
from horovod.launch.run.mpi_function import _answer_of, _call_in, _result, call_values

SECRET = bytes(range(32))


class MemoryStore:
    """A ``Store`` without waits."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str, timeout_s: float) -> bytes:
        if key not in self.values:
            raise TimeoutError(key)
        return self.values[key]

    def close(self) -> None:
        pass


class Canary:
    """Unpickled, it makes ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


def answer_with(result: object) -> bytes:
    with memory_file() as file:
        write_result(file.fileno(), result)
        return os.pread(file.fileno(), 1 << 20, 0)


def _pickled(call: Call) -> bytes:
    stream = io.BytesIO()
    write_call(call, stream)
    return stream.getvalue()


def test_an_answer_that_a_rank_has_left() -> None:
    store = MemoryStore()
    call_values(store, SECRET).put("answer/1", answer_with({"found": 1}))
    with _answer_of(call_values(store, SECRET), 1) as answer:
        assert _result(1, answer) == {"found": 1}
    with _answer_of(call_values(store, SECRET), 0) as answer, pytest.raises(RuntimeError):
        _result(0, answer)


def test_an_answer_of_somebody_else_is_not_unpickled(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    forged = answer_with(Canary(witness))
    store = MemoryStore()
    values = call_values(store, SECRET)
    values.put("answer/1", answer_with(1))
    proof = store.values["answer/1"][:32]
    attempts = [forged, bytes(4) + forged, bytes(36) + forged, proof + bytes(4) + forged]
    for attempt in attempts:
        store.set("answer/0", attempt)
        with pytest.raises(RuntimeError, match="the answer of rank 0 has no proof"):
            _answer_of(values, 0)
    store.set("answer/0", store.values["answer/1"])  # another rank's
    with pytest.raises(RuntimeError, match="the answer of rank 0 has no proof"):
        _answer_of(values, 0)
    assert not witness.exists()
    os.close(pickle.loads(pickle.dumps(Canary(witness))))
    assert witness.exists()


def test_a_call_of_somebody_else_is_not_unpickled() -> None:
    store = MemoryStore()
    with pytest.raises(SystemExit, match="there is no call"):
        _call_in(store, SECRET)
    call_values(store, SECRET).put("call", _pickled(Call(print, ("hello",), {})))
    assert _call_in(store, SECRET) == _pickled(Call(print, ("hello",), {}))
    call_values(store, b"k" * 32).put("call", _pickled(Call(print, ("forged",), {})))
    with pytest.raises(SystemExit, match="the call has no proof"):
        _call_in(store, SECRET)
