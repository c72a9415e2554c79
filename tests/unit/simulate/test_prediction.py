"""Steps that are predicted, where the answer is known without a simulation."""

from __future__ import annotations

import dataclasses
import math

import pytest

from horovod import _native
from horovod.simulate import (
    Cluster,
    Costs,
    Gradient,
    Network,
    Options,
    Workload,
    on_cores,
    predict,
)
from horovod.simulate.advice import advise
from horovod.simulate.collective_time import negotiation_s, reduction_s, traffic_of
from horovod.simulate.step import simulate_step

MB = 1_000_000
NETWORK = Network("test", bandwidth=1e9, latency_s=1e-6, message_s=1e-9)
FREE = Costs(tensor_s=0, bucket_s=0, byte_s=0, link_byte_s=0)


def workload(*ready_s: float, size_bytes: int = 10 * MB, compute_s: float = 1.0) -> Workload:
    gradients = [Gradient(f"g{index}", size_bytes, at) for index, at in enumerate(ready_s)]
    return Workload("test", gradients, compute_s)


def test_one_rank_needs_no_reduction() -> None:
    found = predict(workload(0.5, 1.0), Cluster(1, 1, NETWORK, FREE))
    assert found.step_s == 1.0
    assert found.efficiency == 1.0
    assert found.sent_bytes == 0


def test_a_reduction_beside_the_backward_pass_costs_nothing() -> None:
    early = predict(workload(0.5), Cluster(2, 1, NETWORK, FREE))
    late = predict(workload(1.0), Cluster(2, 1, NETWORK, FREE))
    assert early.step_s == pytest.approx(1.0)
    assert late.step_s == pytest.approx(1.01, rel=1e-3)
    assert late.exposed_s == pytest.approx(0.01, rel=1e-2)


def test_without_cores_to_spare_all_is_reduced_at_the_end() -> None:
    busy = dataclasses.replace(FREE, overlap=False)
    found = simulate_step(workload(0.1, 0.2), Cluster(2, 1, NETWORK, busy), Options())
    assert len(found.buckets) == 1
    assert found.duration_s == pytest.approx(1.02, rel=1e-3)


def test_a_rank_sums_and_serves_its_links_with_one_thread() -> None:
    def seconds(network: Network, byte_s: float, link_byte_s: float) -> float:
        costs = dataclasses.replace(FREE, byte_s=byte_s, link_byte_s=link_byte_s)
        return reduction_s(100 * MB, 1, Cluster(2, 2, network, costs), "horovod")

    fast = dataclasses.replace(NETWORK, bandwidth=1e15)
    memory_s, links_s = seconds(fast, 1e-9, 0), seconds(fast, 0, 1e-9)
    assert memory_s > links_s > 0.04
    assert seconds(fast, 1e-9, 1e-9) == pytest.approx(memory_s + links_s, rel=1e-3)
    # A wire that is slower than both together hides them but for a chunk.
    wire_s = seconds(NETWORK, 0, 0)
    slow = dataclasses.replace(NETWORK, bandwidth=NETWORK.bandwidth / 4)
    assert seconds(slow, 1e-9, 1e-9) == pytest.approx(4 * wire_s, rel=0.1)


@pytest.mark.parametrize(("ranks", "tensors"), [(1, 0), (2, 1.5), (4, 1.75), (8, 1.875)])
def test_each_rank_reads_a_tensor_and_copies_what_others_summed(ranks: int, tensors: float) -> None:
    costs = dataclasses.replace(FREE, byte_s=1e-9, cached_byte_s=0.5e-9)
    found = reduction_s(100 * MB, 1, Cluster(1, ranks, NETWORK, costs), "horovod")
    assert found == pytest.approx(0.1 * tensors / 1.5)  # byte_s is that of two ranks
    for megabytes, byte_s in ((1, 0.5e-9), (8, 0.75e-9), (64, 1e-9)):
        found = reduction_s(megabytes << 20, 1, Cluster(1, ranks, NETWORK, costs), "horovod")
        assert found == pytest.approx(byte_s * (megabytes << 20) * tensors / 1.5)


def test_a_tensor_costs_more_where_it_travels() -> None:
    costs = dataclasses.replace(FREE, tensor_s=1e-6, link_tensor_s=2e-6)
    for hosts, tensor_s in ((1, 1e-6), (2, 3e-6)):
        one_s, more_s = (
            reduction_s(MB, tensors, Cluster(hosts, 2, NETWORK, costs), "horovod")
            for tensors in (1, 11)
        )
        assert more_s - one_s == pytest.approx(10 * tensor_s)


def test_buckets_are_cut_as_the_engine_cuts_them() -> None:
    together = workload(1.0, 1.0, 1.0)
    cluster = Cluster(2, 1, NETWORK, FREE)
    counts = {
        threshold: [b.tensors for b in simulate_step(together, cluster, options).buckets]
        for threshold in (1, 20 * MB, 30 * MB)
        for options in [Options(fusion_threshold=threshold)]
    }
    assert counts == {1: [1, 1, 1], 20 * MB: [2, 1], 30 * MB: [3]}


def test_many_small_buckets_take_time_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[int] = []
    cut = _native.bucket_length

    def count(sizes: list[int], threshold: int) -> int:
        offered.append(len(sizes))
        return cut(sizes, threshold)

    monkeypatch.setattr(_native, "bucket_length", count)
    gradients = workload(*[1.0] * 500)
    found = simulate_step(gradients, Cluster(2, 1, NETWORK), Options(fusion_threshold=0))
    assert len(found.buckets) == 500
    assert sum(offered) <= 2 * 500


def test_what_becomes_ready_during_a_reduction_is_reduced_next() -> None:
    found = simulate_step(workload(0.5, 0.501, 0.502), Cluster(2, 1, NETWORK, FREE), Options())
    assert [bucket.tensors for bucket in found.buckets] == [1, 2]


def test_reductions_may_slow_the_backward_pass_down() -> None:
    slow = dataclasses.replace(FREE, slowdown=0.5)
    found = predict(workload(0.5, size_bytes=100 * MB), Cluster(2, 1, NETWORK, slow))
    assert found.step_s == pytest.approx(1.05, rel=1e-3)


@pytest.mark.parametrize("hosts", [2, 3, 8, 64])
@pytest.mark.parametrize("owners", [1, 4])
def test_bytes_between_hosts(hosts: int, owners: int) -> None:
    large = traffic_of(64 * MB, Cluster(hosts, owners, NETWORK))
    assert large.trips == 2
    assert large.size_bytes == pytest.approx(2 * 64 * MB * (hosts - 1) / hosts)
    assert large.messages == 2 * (hosts - 1) * owners * large.chunks
    small = traffic_of(4, Cluster(hosts, owners, NETWORK))
    assert (small.trips, small.chunks, small.size_bytes) == (1, 1, 4 * (hosts - 1))


def test_negotiation_grows_with_the_logarithm() -> None:
    times = [negotiation_s(Cluster(hosts, 1, NETWORK)) for hosts in (1, 2, 4, 1024)]
    assert times[0] == 0
    assert times[2] == pytest.approx(2 * times[1])
    assert times[3] == pytest.approx(10 * times[1])


def test_the_slowest_of_many_is_slower() -> None:
    plain = workload(0.1, size_bytes=4)
    steps = {
        ranks: predict(plain, Cluster(ranks, 1, NETWORK, FREE), jitter=0.02, steps=2000)
        for ranks in (1, 100, 100_000)
    }
    assert steps[1].step_s == pytest.approx(1.0, abs=0.003)
    # The mean of the largest of 100 and of 100,000 standard normal numbers.
    assert steps[100].stragglers_s == pytest.approx(0.02 * 2.508, rel=0.03)
    assert steps[100_000].stragglers_s == pytest.approx(0.02 * 4.386, rel=0.03)
    assert predict(plain, Cluster(100, 1, NETWORK, FREE), jitter=0.02, steps=2000) == steps[100]


@pytest.mark.parametrize("algorithm", ["horovod", "ring", "tree"])
def test_no_algorithm_is_faster_than_the_link(algorithm: str) -> None:
    for hosts in (2, 16, 128):
        cluster = Cluster(hosts, 4, NETWORK, FREE)
        least_s = 2 * 64 * MB * (hosts - 1) / hosts / NETWORK.bandwidth
        assert reduction_s(64 * MB, 1, cluster, algorithm) >= least_s * (1 - 1e-9)


def test_advice_is_for_what_limits() -> None:
    slow = Cluster(16, 1, dataclasses.replace(NETWORK, bandwidth=1e8), FREE)
    advice = advise(workload(0.9, size_bytes=100 * MB), slow, Options(), jitter=0.0)
    assert advice[0].gain == max(each.gain for each in advice)
    texts = " ".join(each.text for each in advice)
    assert "compression=int8" in texts
    assert "network" in texts
    inside = Cluster(1, 2, NETWORK, FREE)
    assert advise(workload(0.5), inside, Options(), jitter=0.0) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"workload": Workload("empty", [], 1.0)}, "empty: no gradients; record some steps"),
        ({"cluster": Cluster(0, 1, NETWORK)}, "0 hosts of 1 ranks"),
        ({"jitter": 1.0}, "the jitter is a part of a step"),
        ({"jitter": math.nan}, "the jitter is a part of a step"),
        ({"steps": 0}, "steps must be 1 or more"),
        ({"workload": workload(1.0, size_bytes=1 << 60)}, "bytes of gradients .* cannot be"),
        ({"workload": workload(1.0, compute_s=math.nan)}, "a step of nan s cannot be"),
        ({"cluster": Cluster(1 << 40, 1, NETWORK)}, "at most 10000000 ranks"),
        ({"options": Options(fusion_threshold=-1)}, "the fusion threshold must be in 0"),
        ({"options": Options(algorithm="magic")}, "no algorithm 'magic'; there are hierarchical"),
    ],
)
def test_what_cannot_be_predicted(change: dict[str, object], text: str) -> None:
    arguments = {"workload": workload(1.0), "cluster": Cluster(2, 1, NETWORK), **change}
    with pytest.raises(ValueError, match=text):
        predict(**arguments)  # type: ignore[arg-type]


def test_a_torus_has_the_bytes_of_rings_of_hosts_in_fewer_hops() -> None:
    slow = Network("slow", bandwidth=1e9, latency_s=1e-3, message_s=1e-9)
    cluster = Cluster(100, 4, slow, FREE)
    wire_s = 2 * 10 * MB * 99 / 100 / 1e9
    for algorithm, hops in (("hierarchical", 2 * 99), ("torus", 4 * 9)):
        found = reduction_s(10 * MB, 1, cluster, algorithm)
        assert found == pytest.approx(wire_s + hops * 1e-3)
        assert reduction_s(10 * MB, 1, Cluster(1, 4, slow, FREE), algorithm) == 0


def test_ranks_that_share_cores_take_turns() -> None:
    """Twice as many ranks as cores: memory, messages and their ways take twice as long."""
    costs = Costs(tensor_s=1e-6, bucket_s=1e-5, byte_s=1e-9, link_byte_s=1e-9, wake_s=0)
    fast = Network("fast", bandwidth=1e15, latency_s=1e-5, message_s=1e-6)
    cluster = Cluster(4, 2, fast, costs)
    alone, shared = (reduction_s(MB, 1, on_cores(cluster, cores), "horovod") for cores in (8, 4))
    assert alone == reduction_s(MB, 1, cluster, "horovod")
    assert shared == pytest.approx(2 * alone)
    sleeping = dataclasses.replace(cluster, costs=dataclasses.replace(costs, wake_s=1e-3))
    assert reduction_s(MB, 1, on_cores(sleeping, 8), "horovod") == alone
    trips = traffic_of(MB, cluster).trips
    woken = reduction_s(MB, 1, on_cores(sleeping, 4), "horovod")
    assert woken == pytest.approx(shared + trips * 2e-3)
    slow = Network("slow", bandwidth=1e6, latency_s=1e-9, message_s=1e-9)
    alone, shared = (
        reduction_s(MB, 1, on_cores(Cluster(4, 2, slow, FREE), cores), "horovod")
        for cores in (8, 4)
    )
    assert shared == pytest.approx(alone, rel=1e-3)
