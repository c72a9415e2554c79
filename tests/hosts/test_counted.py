"""What ``horovod.simulate`` says that hosts send is what the engine's counters say."""

from __future__ import annotations

import os

import pytest
from lab import Lab

from horovod.simulate import Cluster, network_named
from horovod.simulate.collective_time import traffic_of

SIZES = (4, 30_000, 1_000_012, 20_000_000)
# HOROVOD_TEST_HOSTS=64 takes minutes on two cores.
MOST = int(os.environ.get("HOROVOD_TEST_HOSTS", "8"))


@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(1, 2), (2, 1), (2, 2), (3, 3), (MOST, 1)])
def test_bytes_between_hosts_are_predicted_exactly(
    lab: Lab, hosts: int, ranks_per_host: int
) -> None:
    words = [str(size_bytes) for size_bytes in SIZES]
    job = lab.start_worker([ranks_per_host] * hosts, "counted.py", *words)
    found = lab.read_from(range(hosts * ranks_per_host), "counted", job)
    job.check(timeout_s=500)
    cluster = Cluster(hosts, ranks_per_host, network_named("10gbit-tcp"))
    for index, size_bytes in enumerate(SIZES):
        counts = [of_rank[index] for of_rank in found.values()]
        assert {buckets for _, buckets in counts} == {1}
        sent = sum(link_bytes for link_bytes, _ in counts)
        assert sent == pytest.approx(hosts * traffic_of(size_bytes, cluster).size_bytes, abs=1e-3)
