"""Jobs whose workers come and go with the nodes of the cluster."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import ray

from horovod.ray import ElasticRayExecutor, RayExecutor, elastic, elastic_v2

SETTINGS = RayExecutor.create_settings(timeout_s=100)
STEPS = 30


def count(*, sizes: tuple[int, int]) -> tuple[int, int, str, int]:
    """Step until there were enough steps in a world of each size, in this order."""
    import numpy as np

    import horovod.numpy as hvd
    from horovod.elastic import ObjectState, run_fn
    from horovod.ray import ray_logger

    def restart() -> None:
        hvd.shutdown()
        hvd.init()

    def train(state: Any) -> tuple[int, int, str, int]:
        while state.step < STEPS:
            hvd.allreduce(np.ones(1), name="step")
            # Until then the loop goes on.
            state.step += state.has_begun and hvd.size() == sizes[1]
            state.has_begun = state.has_begun or hvd.size() == sizes[0]
            state.rounds += 1
            state.commit()
            if hvd.rank() == 0 and state.rounds % 10 == 1:
                ray_logger.log({"size": hvd.size(), "number": os.environ["SOME_NUMBER"]})
        host = os.environ["HOROVOD_HOSTNAME"]
        return hvd.rank(), hvd.size(), host, state.step

    hvd.init()
    state = ObjectState(hvd.broadcast_object, hvd.rank, step=0, rounds=0, has_begun=False)
    return run_fn(train, restart)(state)


ray.cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["count"]))


def test_a_job_grows_onto_a_node_that_comes(nodes: Any) -> None:
    arrived: list[Any] = []

    def follow(item: dict[str, Any]) -> None:
        assert item["number"] == "7"
        if not arrived:
            arrived.append(nodes.add("d"))

    executor = RayExecutor(SETTINGS, min_workers=2, max_workers=3, cpus_per_worker=2)
    executor.start(extra_env_vars={"SOME_NUMBER": 7})
    found = executor.run(count, kwargs={"sizes": (2, 3)}, callbacks=[follow])
    executor.shutdown()
    assert [(rank, size) for rank, size, *_ in found] == [(0, 3), (1, 3), (2, 3)]
    hosts = {host for _, _, host, _ in found}
    assert hosts == {"127.0.0.2", "127.0.0.3", arrived[0].node_ip_address}


def test_a_job_goes_on_without_a_node_that_leaves(nodes: Any) -> None:
    node = nodes.add("d", cpus=4)
    gone: list[Any] = []

    def follow(item: dict[str, Any]) -> None:
        if item["size"] == 3 and not gone:
            gone.append(node)
            nodes.remove(node)

    executor = RayExecutor(SETTINGS, min_workers=2, max_workers=3, cpus_per_worker=2)
    executor.start(extra_env_vars={"SOME_NUMBER": 7})
    found = executor.run(count, kwargs={"sizes": (3, 2)}, callbacks=[follow])
    assert gone
    assert [(rank, size, step) for rank, size, _, step in found] == [(0, 2, STEPS), (1, 2, STEPS)]


def test_a_job_goes_on_without_an_actor_that_dies(nodes: Any) -> None:
    def train() -> list[str]:
        import psutil

        import horovod.numpy as hvd
        from horovod.elastic import ObjectState, run_fn

        def restart() -> None:
            hvd.shutdown()
            hvd.init()

        def work(state: Any) -> list[str]:
            while True:
                hosts = hvd.allgather_object(os.environ["HOROVOD_HOSTNAME"])
                if len(hosts) == 2:
                    state.hosts = hosts
                elif state.hosts:
                    return [*state.hosts, *hosts]
                state.commit()
                if hvd.rank() == 1:
                    psutil.Process().parent().parent().kill()  # worker, agent, actor
                    signal.pause()

        hvd.init()
        return run_fn(work, restart)(ObjectState(hvd.broadcast_object, hvd.rank, hosts=[]))

    settings = ElasticRayExecutor.create_settings(max_num_proc=2, timeout_s=100)
    with pytest.warns(DeprecationWarning, match="use RayExecutor"):
        executor = ElasticRayExecutor(settings, cpus_per_slot=2)
    executor.start()
    ((first, second, last),) = executor.run(train)
    assert {first, second} == {"127.0.0.2", "127.0.0.3"}
    assert last == first


def test_an_error_of_a_callback_ends_the_job_of_workers_that_see_all_gpus(nodes: Any) -> None:
    def log_gpus() -> None:
        from horovod.ray import ray_logger

        ray_logger.log({"gpus": os.environ["CUDA_VISIBLE_DEVICES"]})
        signal.pause()

    def refuse(item: dict[str, Any]) -> None:
        raise LookupError(f"not {item['gpus']}")

    executor = RayExecutor(SETTINGS, min_workers=2, use_gpu=True)
    executor.start()
    with pytest.raises(LookupError, match="not 0,1"):
        executor.run(log_gpus, callbacks=[refuse])
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) != 4:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.05)


def test_an_error_that_repeats_ends_the_job_with_its_text(nodes: Any) -> None:
    def fail(made: list[int]) -> None:
        raise KeyError(f"what was looked for in {made}")

    executor = RayExecutor(SETTINGS, min_workers=1, max_workers=2, cpus_per_worker=2)
    executor.start(executable_cls=lambda: [5])
    with pytest.raises(RuntimeError, match=r"(?s)blacklisted.*what was looked for in \[5\]"):
        executor.execute(fail)


def test_discovery_shows_the_nodes_with_room(nodes: Any) -> None:
    assert elastic_v2.RayHostDiscovery().find_available_hosts_and_slots() == {
        "127.0.0.2": 2,
        "127.0.0.3": 2,
    }
    two_cpus = elastic_v2.RayHostDiscovery(cpus_per_worker=2)
    assert set(two_cpus.find_available_hosts_and_slots().values()) == {1}
    with_gpu = elastic.RayHostDiscovery(use_gpu=True, gpus_per_slot=2)
    assert with_gpu.find_available_hosts_and_slots() == {"127.0.0.3": 1}


def test_a_job_uses_the_nodes_that_its_own_discovery_finds(nodes: Any) -> None:
    class OnlyC(elastic_v2.RayHostDiscovery):
        def find_available_hosts_and_slots(self) -> dict[str, int]:
            return {"127.0.0.3": super().find_available_hosts_and_slots()["127.0.0.3"]}

    settings = RayExecutor.create_settings(timeout_s=100)
    settings.discovery = OnlyC()
    executor = RayExecutor(settings, min_workers=2, override_discovery=False)
    executor.start()
    assert executor.run(os.getenv, args=["HOROVOD_HOSTNAME"]) == ["127.0.0.3"] * 2


def test_nodes_that_seem_to_come_and_go(nodes: Any) -> None:
    discovery = elastic_v2.TestDiscovery(min_hosts=1, max_hosts=2, change_frequency_s=0)
    seen = [len(discovery.find_available_hosts_and_slots()) for _ in range(50)]
    assert seen[0] == 1
    assert set(seen) == {1, 2}


def test_a_node_where_a_worker_has_failed_is_used_again_after_its_cooldown(nodes: Any) -> None:
    def train() -> tuple[int, int]:
        import horovod.numpy as hvd
        from horovod.elastic import ObjectState, run_fn

        def restart() -> None:
            hvd.shutdown()
            hvd.init()

        def work(state: Any) -> tuple[int, int]:
            has_failed, state.has_failed = state.has_failed, True
            state.commit()
            if hvd.rank() == 1 and not has_failed:
                os._exit(3)
            hvd.barrier()
            return hvd.rank(), hvd.size()

        hvd.init()
        return run_fn(work, restart)(ObjectState(hvd.broadcast_object, hvd.rank, has_failed=False))

    executor = RayExecutor(SETTINGS, min_workers=2, cpus_per_worker=2, cooldown_range=(1, 1))
    executor.start()
    assert executor.run(train) == [(0, 2), (1, 2)]


def test_too_few_nodes_for_too_long_end_the_job(nodes: Any) -> None:
    executor = RayExecutor(SETTINGS, min_workers=3, cpus_per_worker=2, elastic_timeout=1)
    executor.start()
    text = r"timed out waiting for the minimum number of slots: 3 .*after 1 s"
    with pytest.raises(RuntimeError, match=text):
        executor.run(int)
