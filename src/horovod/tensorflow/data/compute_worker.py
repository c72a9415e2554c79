"""The program that serves data to a training job, one process per compute worker.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker CONFIGFILE

It writes the config file that the training job reads, and ends when the training job calls
``TfDataServiceConfig.read(CONFIGFILE).compute_client().shutdown()``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import horovod.numpy as hvd
from horovod.core.base.own_files import read_own
from horovod.tensorflow.data import registry
from horovod.tensorflow.data.compute_service import (
    MOST_CONFIG_BYTES,
    TfDataServiceConfig,
    compute_worker_fn,
)

_KEY_BYTES = 32


def main(
    dispatchers: int, dispatcher_side: str, timeout: float, config_file: str | os.PathLike[str]
) -> None:
    """Run this rank of a compute job; blocks until the training job ends it.

    All ranks call it with the same arguments.

    Raises:
        ValueError: the number of ranks is no multiple of ``dispatchers``.
    """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    workers_of_each(dispatchers, size)  # wrong numbers are refused on all ranks
    if rank > 0:
        config = hvd.broadcast_object(None, root_rank=0)
        hvd.shutdown()
        compute_worker_fn(config)
        return
    with serving(dispatchers, dispatcher_side, timeout, config_file, size) as config:
        hvd.broadcast_object(config, root_rank=0)
        hvd.shutdown()
        compute_worker_fn(config)
        with config.compute_client() as client:
            client.wait_for_leaving(f"worker {rank}" for rank in range(1, size))


@contextlib.contextmanager
def serving(
    dispatchers: int,
    dispatcher_side: str,
    timeout: float,
    config_file: str | os.PathLike[str],
    size: int,
) -> Iterator[TfDataServiceConfig]:
    """The config of a job of ``size`` compute workers, whose registry and file are there meanwhile.

    Raises:
        ValueError: ``size`` is no multiple of ``dispatchers``, or the file is none of ours.
    """
    path, key = Path(config_file), os.urandom(_KEY_BYTES)
    workers = workers_of_each(dispatchers, size)
    remove_config(path)  # of an earlier job
    with registry.serve(key) as addresses:
        config = TfDataServiceConfig(dispatchers, workers, dispatcher_side, addresses, key, timeout)
        config.write(path)
        try:
            yield config
        finally:
            with contextlib.suppress(OSError, ValueError):  # keep an error of the job
                remove_config(path)


def workers_of_each(dispatchers: int, size: int) -> int:
    """The number of compute workers of each dispatcher.

    Raises:
        ValueError: ``size`` is no multiple of ``dispatchers``.
    """
    if dispatchers < 1 or size % dispatchers:
        raise ValueError(
            f"{size} compute worker(s) for {dispatchers} dispatcher(s): the number of processes "
            "must be a multiple of the number of dispatchers"
        )
    return size // dispatchers


def remove_config(path: Path) -> None:
    """Remove a config file, if there is one.

    Raises:
        ValueError: the file is no config file; the user may need it.
        OSError: the file is not this user's, or is no regular file.
    """
    try:
        TfDataServiceConfig.from_dict(json.loads(read_own(path, MOST_CONFIG_BYTES)))
    except FileNotFoundError:
        return
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise ValueError(f"{path} holds no config of a compute job; name another file") from None
    path.unlink(missing_ok=True)


def parser(program: str, start: str) -> argparse.ArgumentParser:
    """The options of a compute job; ``start`` is the command that starts it."""
    options = argparse.ArgumentParser(
        prog=program, description=f"Serve data to a training job; start it with {start}."
    )
    options.add_argument("configfile", help="written for the training job, removed at the end")
    options.add_argument("--dispatchers", type=int, default=1, help="1, or one per training rank")
    options.add_argument(
        "--dispatcher-side",
        choices=("compute", "training"),
        default="compute",
        help="where dispatchers run (default: %(default)s)",
    )
    options.add_argument(
        "--timeout", type=float, default=60, help="seconds to wait for dispatchers and workers"
    )
    return options


if __name__ == "__main__":
    given = parser("python -m horovod.tensorflow.data.compute_worker", "horovodrun").parse_args()
    main(given.dispatchers, given.dispatcher_side, given.timeout, given.configfile)
