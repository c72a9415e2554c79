"""``RayExecutor`` of fixed size: a world over several nodes, and the workers' resources."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.ray import RayExecutor

SETTINGS = RayExecutor.create_settings(timeout_s=100, placement_group_timeout_s=60)


class Counting:
    def __init__(self, start: int, *, step: int) -> None:
        self.value, self.step = start, step

    def next(self) -> int:
        self.value += self.step
        return self.value


ray.cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["Counting"]))


@pytest.fixture
def two_by_two(nodes: Any) -> Iterator[RayExecutor]:
    executor = RayExecutor(SETTINGS, num_hosts=2, num_workers_per_host=2)
    executor.start(
        executable_cls=Counting,
        executable_args=[10],
        executable_kwargs={"step": 5},
        extra_env_vars={"SOME_NUMBER": 7},
    )
    yield executor
    executor.shutdown()


def test_workers_of_a_node_have_consecutive_ranks_in_one_world(two_by_two: RayExecutor) -> None:
    def places(factor: int, *, offset: float) -> tuple[Any, ...]:
        import numpy as np

        import horovod.numpy as hvd

        hvd.init()
        total = hvd.allreduce(np.array([factor * hvd.rank() + offset]), op=hvd.Sum)[0]
        node = os.environ["HOROVOD_HOSTNAME"]
        local = int(os.environ["HOROVOD_LOCAL_RANK"]), int(os.environ["HOROVOD_CROSS_RANK"])
        return hvd.rank(), hvd.size(), node, *local, float(total)

    found = two_by_two.run(places, args=[2], kwargs={"offset": 1.0})
    assert [(rank, size) for rank, size, *_ in found] == [(rank, 4) for rank in range(4)]
    assert [local for *_, local, _, _ in found] == [0, 1, 0, 1]
    assert [cross for *_, cross, _ in found] == [0, 0, 1, 1]
    assert [total for *_, total in found] == [16.0] * 4
    nodes = [node for _, _, node, *_ in found]
    assert Counter(nodes) == dict.fromkeys(nodes, 2)
    assert set(nodes) < {node["NodeID"] for node in ray.nodes()}


def test_executables_keep_their_state_and_the_environment_is_extended(
    two_by_two: RayExecutor,
) -> None:
    assert two_by_two.execute(lambda counting: counting.next()) == [15] * 4
    assert two_by_two.execute_single(lambda counting: counting.next()) == 20
    assert two_by_two.execute(lambda counting: counting.next()) == [25, 20, 20, 20]
    references = two_by_two.run_remote(lambda: os.environ["SOME_NUMBER"])
    assert ray.get(references) == ["7"] * 4


def test_each_worker_sees_the_gpus_of_all_workers_of_its_node(nodes: Any) -> None:
    executor = RayExecutor(SETTINGS, num_workers=2, use_gpu=True)
    executor.start()
    try:
        found = executor.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
        assert [sorted(text.split(",")) for text in found] == [["0", "1"]] * 2
    finally:
        executor.shutdown()


def test_workers_are_where_their_custom_resource_is(nodes: Any) -> None:
    executor = RayExecutor(SETTINGS, num_workers=2, resources_per_worker={"c": 2})
    executor.start()
    try:
        found = executor.run(ray.util.get_node_ip_address)
        assert found == ["127.0.0.3"] * 2
        assert ray.available_resources().get("c", 0) == 0
    finally:
        executor.shutdown()


def test_dictionaries_that_workers_log_reach_every_callback(nodes: Any) -> None:
    def train() -> str:
        from horovod.ray import ray_logger

        for epoch in range(3):
            ray_logger.log({"rank": os.environ["HOROVOD_RANK"], "epoch": epoch})
        return "done"

    first: list[Any] = []
    second: list[Any] = []
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    try:
        assert executor.run(train, callbacks=[first.append, second.append]) == ["done"] * 2
        assert executor.run(train) == ["done"] * 2  # without callbacks
    finally:
        executor.shutdown()
    assert first == second
    for rank in "01":
        assert [item["epoch"] for item in first if item["rank"] == rank] == [0, 1, 2]


def test_workers_use_the_placement_group_of_their_caller(nodes: Any) -> None:
    group = placement_group([{"CPU": 1, "c": 1}, {"CPU": 1, "c": 1}], strategy="PACK")
    strategy = PlacementGroupSchedulingStrategy(placement_group=group)

    @ray.remote(num_cpus=0, scheduling_strategy=strategy)
    def trial() -> Any:
        executor = RayExecutor(SETTINGS, num_workers=2)
        executor.start()
        groups = executor.run(lambda: ray.util.get_current_placement_group().id.hex())
        executor.shutdown()
        with pytest.raises(ValueError, match=r"current placement group has them on"):
            RayExecutor(SETTINGS, num_hosts=2).start()
        return groups

    try:
        assert ray.get(trial.remote(), timeout=500) == [group.id.hex()] * 2
        assert ray.util.placement_group_table(group)["state"] == "CREATED"
    finally:
        remove_placement_group(group)
