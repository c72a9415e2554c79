"""Calls ``horovod.run`` with MPI and prints the result."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import horovod


def work(offset: float, failing: int = -1, text: str = "") -> tuple[float, str, str]:
    import horovod.numpy as hvd
    from horovod.core import world

    hvd.init()
    if hvd.rank() == failing:
        raise KeyError("boom")
    total = float(hvd.allreduce(np.full(1, offset + hvd.rank()), op=hvd.Sum)[0])
    return total, world.data_plane_name(), text


if __name__ == "__main__":
    warnings.simplefilter("always", ResourceWarning)
    # More than fits into one message.
    long = "x" * 3_000_000
    results = horovod.run(work, (1.0,), {"text": long}, num_proc=2, use_mpi=True)
    assert results == [(3.0, "mpi", long)] * 2, [result[:2] for result in results]
    with pytest.raises(RuntimeError, match=r"^mpirun failed with exit code \d+; rank 1") as failed:
        horovod.run(work, (1.0,), {"failing": 1}, num_proc=2, use_mpi=True)
    assert "raised KeyError: 'boom'" in str(failed.value)
    assert isinstance(failed.value.__cause__, KeyError)
    print("all right", flush=True)
