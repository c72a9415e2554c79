"""The functions of workers of the tests on Spark; workers import this like the driver."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def describe(word: str, *, shout: bool) -> dict[str, Any]:
    """The ranks and resources of this worker."""
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
    """The inodes of mapped files without a name."""
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
    """Write a file, then sleep without end."""
    import horovod.numpy as hvd

    hvd.init()
    Path(folder, f"{hvd.rank()}.new").write_text(str(os.getpid()))
    Path(folder, f"{hvd.rank()}.new").rename(Path(folder, f"{hvd.rank()}.pid"))
    signal.pause()


def lose(what: str) -> None:
    """Kill this worker, or its executor."""
    if what == "worker":
        os._exit(3)
    os.kill(_ancestor("java"), signal.SIGKILL)
    time.sleep(60)  # the kill takes a moment


def lose_executor_of_rank_1() -> None:
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    if hvd.rank() == 1:
        lose("executor")
    hvd.allreduce(np.ones(1))


def count(what: str, *, is_once: bool = True) -> tuple[int, int, int, list[int]]:
    """Count to 20; at 10 rank 1 loses ``what``, once or always, and the others restore."""
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
