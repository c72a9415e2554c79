"""What the workers of the tests on Spark do; they find this where the driver finds it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def describe(word: str, *, shout: bool) -> dict[str, Any]:
    """Who this worker is and what it has."""
    import numpy as np

    import horovod.numpy as hvd
    from horovod.spark.task import get_available_devices

    hvd.init()
    print(word.upper() if shout else word, flush=True)
    total = hvd.allreduce(np.array([hvd.rank() + 1.0]), op=hvd.Sum)[0]
    return {
        "place": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()),
        "total": float(total),
        "shared memory": _shared_memory(),
        "executor": _ancestor("java"),
        "gpus": get_available_devices(),
        "own": os.environ["OF_THE_CALLER"],
        "folder": os.environ["HOROVOD_SPARK_WORK_DIR"] == os.getcwd(),
        "path": set(os.environ["HOROVOD_SPARK_PYTHONPATH"].split(os.pathsep))
        <= set(os.environ["PYTHONPATH"].split(os.pathsep)),
        "programs": os.environ["PATH"],
    }


def _shared_memory() -> set[str]:
    """The inodes of files without a name that are mapped here."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:" in line}


def _ancestor(name: str) -> int:
    import psutil

    return next(p.pid for p in psutil.Process().parents() if p.name() == name)


def fail_in_rank_1() -> None:
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("of rank 1")
    hvd.allreduce(np.ones(1))


def hang(folder: str) -> None:
    """Say that it does, and never end."""
    import horovod.numpy as hvd

    hvd.init()
    Path(folder, f"{hvd.rank()}.new").write_text(str(os.getpid()))
    Path(folder, f"{hvd.rank()}.new").rename(Path(folder, f"{hvd.rank()}.pid"))
    signal.pause()


def lose(what: str) -> None:
    """An end of this worker, or of the executor that it is on."""
    if what == "worker":
        os._exit(3)
    os.kill(_ancestor("java"), signal.SIGKILL)
    time.sleep(60)  # it takes a moment to get here


def lose_executor_of_rank_1() -> None:
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    if hvd.rank() == 1:
        lose("executor")
    hvd.allreduce(np.ones(1))


def count(what: str, *, is_once: bool = True) -> tuple[int, int, int, list[int]]:
    """To 20, from the commit on when rank 1 has lost something from 10 on, once or always."""
    import numpy as np

    import horovod.numpy as hvd
    from horovod.elastic import ObjectState, run_fn

    def restart() -> None:
        hvd.shutdown()
        hvd.init()

    def train(state: Any) -> tuple[int, int, int, list[int]]:
        while state.step < 20:
            hvd.allreduce(np.ones(1))
            if state.step >= 10 and not state.has_lost:
                state.has_lost = is_once
                state.commit()
                if hvd.rank() == 1:
                    lose(what)
            state.step += 1
            state.commit()
        pids = [int(pid) for pid in hvd.allgather_object(os.getpid())]
        return hvd.rank(), hvd.size(), state.step, pids

    hvd.init()
    state = ObjectState(hvd.broadcast_object, hvd.rank, step=0, has_lost=False)
    result: tuple[int, int, int, list[int]] = run_fn(train, restart)(state)
    return result
