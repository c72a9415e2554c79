"""docs/scale.md has what its command prints; and the work does not grow with the ranks."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from horovod.simulate import Cluster, Options, network_named, of_model, predict

ROOT = Path(__file__).parents[3]


def test_the_page_has_the_tables_of_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "scale", raising=False)
    import scale

    page = (ROOT / "docs" / "scale.md").read_text()
    for table in scale.tables():
        assert "\n".join(table) in page, (
            "write the output of benchmarks/scale.py into docs/scale.md"
        )


@pytest.mark.parametrize("algorithm", ["horovod", "torus"])
def test_100_000_ranks_take_no_minute(algorithm: str) -> None:
    workload = of_model("resnet101", 64, 125)
    cluster = Cluster(12_500, 8, network_named("100gbit-infiniband"))
    begin_s = time.process_time()  # of this process alone, however busy the machine is
    found = predict(workload, cluster, Options(algorithm=algorithm), jitter=0.02, steps=100)
    assert time.process_time() - begin_s < 60
    assert found.ranks == 100_000
