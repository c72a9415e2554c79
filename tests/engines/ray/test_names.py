"""Import paths of ``horovod.ray``, and the errors for missing ones."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import ray

from horovod.ray import RayExecutor, elastic, elastic_v2, runner, utils
from horovod.ray.elastic import ElasticRayExecutor
from horovod.ray.runner import BaseHorovodWorker, Coordinator, MiniSettings


def test_the_executor_and_the_worker_have_other_paths() -> None:
    import horovod.ray

    assert runner.RayExecutor is RayExecutor
    assert horovod.ray.worker.BaseHorovodWorker is BaseHorovodWorker
    assert issubclass(elastic.TestDiscovery, elastic_v2.TestDiscovery)
    discovery = elastic.TestDiscovery(1, 2, change_frequency_s=5, cpus_per_slot=3)
    assert discovery._share.cpus == 3


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("horovod.ray.strategy", None, "num_hosts="),
        ("horovod.ray.adapter", None, "horovod.ray.RayExecutor"),
        ("horovod.ray.driver_service", None, "horovod.ray.RayExecutor"),
        ("horovod.ray.elastic_v2", "ElasticAdapter", "min_workers="),
        ("horovod.ray.runner", "StaticAdapter", "num_workers="),
        ("horovod.ray.utils", "detect_nics", "nics="),
    ],
)
def test_a_missing_name_is_an_error_with_its_replacement(
    module: str, name: str | None, instead: str
) -> None:
    with pytest.raises(ImportError, match=instead) as caught:
        getattr(import_module(module), name or "__name__")
    assert caught.value.name == (f"{module}.{name}" if name else module)


def test_a_name_that_never_was_is_missing_as_usual() -> None:
    for module in (runner, utils, elastic_v2):
        assert not hasattr(module, "walk")
    with pytest.raises(ModuleNotFoundError):
        import_module("horovod.ray.walk")


def test_settings_are_those_of_an_executor() -> None:
    settings = MiniSettings(nics={"lo"}, timeout_s=5, verbose=2)
    assert settings.nics == ("lo",)
    assert settings.start_timeout == 5
    assert MiniSettings().timeout_s == 300
    assert RayExecutor(settings, num_workers=2).num_workers == 2


def test_settings_without_effect_are_named() -> None:
    with pytest.warns(UserWarning, match="verbose has no effect"):
        settings = ElasticRayExecutor.create_settings(2, verbose=2)
    assert settings.min_num_proc == 2
    with pytest.raises(TypeError, match="no parameters min_procs"):
        ElasticRayExecutor.create_settings(min_procs=2)


def test_interfaces_as_variables() -> None:
    assert utils.nics_to_env_var(["b", "a"]) == {
        "HOROVOD_GLOO_IFACE": "a,b",
        "NCCL_SOCKET_IFNAME": "a,b",
    }


def test_a_coordinator_wants_each_worker_once() -> None:
    coordinator = Coordinator(MiniSettings())
    with pytest.raises(ValueError, match="found none"):
        coordinator.establish_rendezvous()
    coordinator.register("localhost", "a", 0)
    with pytest.raises(ValueError, match="world_rank=0"):
        coordinator.register("localhost", "b", 0)


def test_workers_of_others_are_a_world(nodes: Any) -> None:
    def total(_: Any) -> tuple[int, int, float]:
        import numpy as np

        import horovod.numpy as hvd

        hvd.init()
        return hvd.rank(), hvd.local_rank(), float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])

    coordinator = Coordinator(MiniSettings())
    actor = ray.remote(BaseHorovodWorker)
    # Ranks 0 and 2 are on one node, as with a launcher that numbers nodes in turn.
    places = {0: "b", 1: "c", 2: "b"}
    workers = {
        rank: actor.options(resources={node: 1}, num_cpus=1).remote(rank, 3)
        for rank, node in places.items()
    }
    try:
        for rank, worker in workers.items():
            node = ray.get(worker.node_id.remote())
            coordinator.register(ray.get(worker.hostname.remote()), node, rank)
        assert coordinator.world_size == 3
        assert sorted(part[-2:] for part in coordinator.node_id_string.split(",")) == [":1", ":2"]
        environments = coordinator.finalize_registration()
        common = coordinator.establish_rendezvous()
        utils.map_blocking(
            lambda rank: workers[rank].update_env_vars.remote({**common, **environments[rank]}),
            workers,
        )
        found = utils.map_blocking(lambda worker: worker.execute.remote(total), workers.values())
    finally:
        for worker in workers.values():
            ray.kill(worker)
    assert found == [(0, 0, 3.0), (2, 0, 3.0), (1, 1, 3.0)]
