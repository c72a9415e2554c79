"""A static job when a worker fails, dies or has no room, or its node leaves."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError, RayTaskError

from horovod.ray import RayExecutor

SETTINGS = RayExecutor.create_settings(timeout_s=100, placement_group_timeout_s=60)


def wait_until_free(cpus: float) -> None:
    """Wait until Ray has freed resources."""
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) != cpus:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.05)


def test_an_error_of_a_rank_is_raised_as_it_is_and_the_workers_go_on(nodes: Any) -> None:
    def train(bad_rank: int) -> float:
        import numpy as np

        import horovod.numpy as hvd

        hvd.init()
        if hvd.rank() == bad_rank:
            raise KeyError("what was looked for")
        return float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])

    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    try:
        with pytest.raises(KeyError, match="what was looked for") as caught:
            executor.run(train, [1])
        assert isinstance(caught.value, RayTaskError)
        assert executor.run(train, [-1]) == [2.0, 2.0]
    finally:
        executor.shutdown()
    wait_until_free(4)


def test_the_end_of_a_worker_names_its_rank_and_node_and_frees_the_placement_group(
    nodes: Any,
) -> None:
    def train() -> None:
        import numpy as np

        import horovod.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(np.ones(1))

    executor = RayExecutor(SETTINGS, num_workers=2, resources_per_worker={"b": 1})
    executor.start()
    with pytest.raises(RayActorError, match=r"worker of rank 1 on .*\(127\.0\.0\.2, Ray node "):
        executor.run(train)
    wait_until_free(4)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(train)
    executor.start()
    try:
        assert executor.run(lambda: 5) == [5, 5]
    finally:
        executor.shutdown()


def test_a_node_that_leaves_ends_the_job_with_its_name(nodes: Any) -> None:
    node = nodes.add("d")

    def train() -> None:
        import numpy as np

        import horovod.numpy as hvd
        from horovod.ray import ray_logger

        hvd.init()
        if hvd.rank() == 0:
            ray_logger.log({"is_under_way": True})
        while True:
            hvd.allreduce(np.ones(1))

    executor = RayExecutor(SETTINGS, num_hosts=3)
    executor.start()
    try:
        gone = executor.run(ray.util.get_node_ip_address).index(node.node_ip_address)
        with pytest.raises(RayActorError, match=rf"rank {gone} on .*{node.node_ip_address}"):
            executor.run(train, callbacks=[lambda item: nodes.remove(node)])
    finally:
        executor.shutdown()
    wait_until_free(4)


def test_without_room_there_is_an_error_that_shows_the_resources(nodes: Any) -> None:
    settings = RayExecutor.create_settings(placement_group_timeout_s=0.5)
    executor = RayExecutor(settings, num_hosts=2, num_workers_per_host=3)
    with pytest.raises(TimeoutError, match=r"2 bundles \{'CPU': 3\.0\} \(STRICT_SPREAD\).*4 CPU"):
        executor.start()
    executor = RayExecutor(SETTINGS, num_workers=4)
    executor.start()
    executor.shutdown()
    wait_until_free(4)


def test_an_executable_that_cannot_be_made_ends_the_start(nodes: Any) -> None:
    class Broken:
        def __init__(self) -> None:
            raise LookupError("no data")

    executor = RayExecutor(SETTINGS, num_workers=1)
    with pytest.raises(LookupError, match="no data"):
        executor.start(executable_cls=Broken)
    wait_until_free(4)
