"""A script outside the cluster; its arguments are a URL and a folder with a module."""

from __future__ import annotations

import json
import sys
from typing import Any

import ray

from horovod.ray import RayExecutor


def add() -> float:
    import numpy as np
    from of_the_client import SUMMAND

    import horovod.numpy as hvd
    from horovod.ray import ray_logger

    hvd.init()
    total = float(hvd.allreduce(np.array([hvd.rank() + SUMMAND]), op=hvd.Sum)[0])
    ray_logger.log({"rank": hvd.rank()})
    return total


def fail() -> None:
    raise KeyError("what was looked for")


def main(url: str, folder: str) -> None:
    ray.init(url, runtime_env={"working_dir": folder})
    settings = RayExecutor.create_settings(timeout_s=100)
    for arguments in ({"num_workers": 2}, {"min_workers": 2, "max_workers": 2}):
        executor = RayExecutor(settings, **arguments)
        executor.start()
        logged: list[dict[str, Any]] = []
        results = executor.run(add, callbacks=[logged.append])
        try:
            executor.run(fail)
        except Exception as error:
            problem = str(error)
        executor.shutdown()
        ranks = sorted(item["rank"] for item in logged)
        print(json.dumps([results, ranks, "what was looked for" in problem]))


if __name__ == "__main__":
    main(*sys.argv[1:])
