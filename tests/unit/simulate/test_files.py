"""Networks, files of costs, and what a recording says of a step."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from recorded import training

from horovod.simulate import Costs, network_named, network_names
from horovod.simulate.calibration import Measured, costs_from, with_network
from horovod.simulate.cluster import costs_in
from horovod.simulate.recorded import workload_of

MEASURED = Measured(
    small_s=10e-6,
    cached_s=10e-6 + 0.5e-9 * 2**20,
    large_s=0.10001,
    large_bytes=10**8,
    many_s=2.01e-3,
    many=500,
    many_bytes=10**6,
)


def test_every_network_is_complete_and_has_a_source() -> None:
    for name in network_names():
        network = network_named(name)
        assert network.source
        gigabits = float(name.partition("gbit")[0])
        assert 0.9 < network.bandwidth * 8 / 1e9 / gigabits < 1.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("bandwidth: 1.0e+9", "network mine: latency_s is missing; horovodrun --check-network"),
        ("{bandwidth: fast, latency_s: 1.0e-6}", "bandwidth must be a number above 0: 'fast'"),
        ("{bandwidth: 1.0e+9, latency_s: 0}", "latency_s must be a number above 0: 0"),
        ("{bandwidth: 1.0e+9, latency_s: 1.0e-6, delay: 1}", "unknown 'delay'; there are name"),
        ("[1]", "expected a mapping, found list"),
        ("{bandwidth: .inf, latency_s: 1.0e-6}", "bandwidth must be a number above 0: inf"),
        ("{bandwidth: 1", "while parsing a flow mapping"),
        ("{bandwidth: 1" + "0" * 400 + ", latency_s: 1}", r"number above 0: 1000+\.\.\.0+$"),
        (
            "{bandwidth: 1, latency_s: 1, source: 2024-01-01}",
            "source must be a text: datetime.date",
        ),
        ("[" * 100_000, "mine.yaml: maximum recursion depth exceeded"),
        ("#" * (1 << 20) + "#", "mine.yaml: expected at most 1048576 bytes"),
    ],
)
def test_networks_in_files(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        network_named(str(path))
    path.write_text("{bandwidth: 1.0e+9, latency_s: 1.0e-6}")
    assert network_named(str(path)).bandwidth == 1e9
    with pytest.raises(ValueError, match="no network 'isdn' and no file"):
        network_named("isdn")


def test_a_file_of_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    costs = costs_from(MEASURED, has_spare_cores=False, source="a test")
    between = replace(MEASURED, many_s=MEASURED.many_s + 500 * 3e-6)
    costs, network = with_network(between, costs, "a to b")
    content = {"horovod_costs": 2, "costs": asdict(costs), "network": asdict(network)}
    path.write_text(json.dumps(content))
    assert costs_in(str(path)) == (costs, network)
    assert (costs.bucket_s, costs.overlap) == (10e-6, False)
    found = (costs.byte_s, costs.cached_byte_s, costs.tensor_s, costs.link_tensor_s)
    assert found == pytest.approx((1e-9, 0.5e-9, 2e-6, 3e-6))
    assert network.bandwidth == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"horovod_costs": 1}, "expected a file of version 2 of horovodrun --calibrate"),
        ({"horovod_costs": 2, "costs": {"byte_s": -1}}, "byte_s must be a number, 0 or more: -1"),
        ({"horovod_costs": 2, "costs": {"byte_ms": 1}}, "unknown 'byte_ms'"),
        ([], "expected a file of version 2"),
        ({"horovod_costs": 2, "costs": {"overlap": "false"}}, "overlap must be true or false: 'f"),
        ({"horovod_costs": 2, "costs": {"byte_s": 10**400}}, "byte_s must be a number, 0 or more"),
        ({"horovod_costs": 2, "costs": {}, "network": [1]}, "expected a mapping, found list"),
    ],
)
def test_bad_files_of_costs(tmp_path: Path, content: object, problem: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=problem):
        costs_in(str(path))
    with pytest.raises(ValueError, match="No such file"):
        costs_in(str(tmp_path / "none"))


def test_an_alias_that_grows_is_not_written_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    levels = [f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    path.write_text("bandwidth: 1\nlatency_s: 1\nsource:\n- &a0 [x]\n- " + "\n- ".join(levels))
    with pytest.raises(ValueError, match=r"source must be a text: \[.{,100}$"):
        network_named(str(path))


@pytest.mark.timeout(60)
def test_only_regular_files_of_costs_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(ValueError, match=f"{path}: expected a regular file"):
            costs_in(str(path))
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 200_000)
    with pytest.raises(ValueError, match=r"deep\.json: (maximum recursion depth|Stack overflow)"):
        costs_in(str(deep))


def test_the_defaults_are_valid() -> None:
    assert Costs().overlap


def test_a_recorded_step() -> None:
    found = workload_of(training([10, 14], run_ms=2), "job")
    assert found is not None
    assert found.alone_s == pytest.approx(0.010, rel=0.01)  # of the faster rank
    assert [gradient.size_bytes > 0 for gradient in found.gradients]
    times = [gradient.ready_s for gradient in found.gradients]
    assert times == sorted(times)
    assert times[-1] <= found.compute_s * 1.001
    assert workload_of(training([10, 14], steps=2), "job") is None
    assert workload_of({}, "job") is None
