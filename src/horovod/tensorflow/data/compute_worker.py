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
from pathlib import Path

import horovod.numpy as hvd
from horovod.core.base.own_files import read_own
from horovod.tensorflow.data import registry
from horovod.tensorflow.data.compute_service import (
    MOST_CONFIG_BYTES,
    TfDataServiceConfig,
    compute_worker_fn,
)

__all__ = ["KEY_BYTES", "main", "parser", "remove_config", "workers_of_each"]

KEY_BYTES = 32


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
    workers = workers_of_each(dispatchers, size)
    if rank > 0:
        config = hvd.broadcast_object(None, root_rank=0)
        hvd.shutdown()
        compute_worker_fn(config)
        return
    path, key = Path(config_file), os.urandom(KEY_BYTES)
    remove_config(path)  # of an earlier job
    with registry.serve(key) as addresses:
        config = TfDataServiceConfig(dispatchers, workers, dispatcher_side, addresses, key, timeout)
        hvd.broadcast_object(config, root_rank=0)
        hvd.shutdown()
        _host(config, path, size)


def _host(config: TfDataServiceConfig, path: Path, size: int) -> None:
    """Rank 0: a compute worker that also keeps the registry and the config file."""
    config.write(path)
    try:
        compute_worker_fn(config)
        with config.compute_client() as client:
            client.wait_for_leaving(f"worker {rank}" for rank in range(1, size))
    finally:
        with contextlib.suppress(OSError, ValueError):
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
