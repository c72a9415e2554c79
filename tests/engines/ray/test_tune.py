"""Jobs in trials of Ray Tune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from horovod.ray import RayExecutor


def learn(rate: float) -> str:
    import numpy as np

    import horovod.numpy as hvd
    from horovod.ray import ray_logger

    hvd.init()
    for step in range(1, 4):
        loss = float(hvd.allreduce(np.array([rate * step]))[0])
        if hvd.rank() == 0:
            ray_logger.log({"loss": loss, "workers": hvd.size()})
    group = ray.util.get_current_placement_group()
    return group.id.hex() if group else ""


def trial(config: dict[str, Any]) -> None:
    settings = RayExecutor.create_settings(timeout_s=100)
    group = ray.util.get_current_placement_group().id.hex()
    executor = RayExecutor(settings, **config["arguments"])
    executor.start()
    found = executor.run(learn, args=[config["rate"]], callbacks=[tune.report])
    executor.shutdown()
    tune.report({"loss": 0.5, "workers": 0, "is_in_group": found == [group] * 2})


ray.cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["trial"]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Tune itself
def test_trials_report_what_their_workers_log(nodes: Any, tmp_path: Path) -> None:
    static, elastic = {"num_workers": 2}, {"min_workers": 2}
    tuner = tune.Tuner(
        tune.with_resources(trial, tune.PlacementGroupFactory([{}, {"CPU": 1}, {"CPU": 1}])),
        param_space={"rate": 2.0, "arguments": tune.grid_search([static, elastic])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    results = list(tuner.fit())
    assert [result.error for result in results] == [None, None]
    for result in results:
        assert list(result.metrics_dataframe["loss"]) == [2.0, 4.0, 6.0, 0.5]
        assert list(result.metrics_dataframe["workers"]) == [2, 2, 2, 0]
    is_in_group = {str(r.config["arguments"]): r.metrics["is_in_group"] for r in results}
    assert is_in_group == {str(static): True, str(elastic): False}
