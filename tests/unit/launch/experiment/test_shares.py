"""Workers on hosts: which ranks are where, which GPUs each process sees, and if there is room."""

from __future__ import annotations

import pytest

from horovod.launch.experiment.shares import Demand, Share, SiteHost, shares_of, why_none


def host(name: str = "localhost", slots: int | None = None, gpu_count: int = 0) -> SiteHost:
    return SiteHost(name, slots, tuple(f"{name[0]}{index}" for index in range(gpu_count)))


def ranks(share: Share) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for slot in share.slots:
        found.setdefault(slot.hostname, []).append(slot.rank)
    return found


def test_workers_fill_the_hosts_in_their_order() -> None:
    (share,) = shares_of(Demand(4, 2, 0), [host("a", 5), host("b", 1), host("c", 6)], 1)
    assert ranks(share) == {"a": [0, 1, 2, 3], "c": [4, 5, 6, 7]}
    assert share.hosts == {"a": 4, "c": 4}
    assert [slot.local_rank for slot in share.slots] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert {(slot.size, slot.local_size, slot.cross_size) for slot in share.slots} == {(8, 4, 2)}


def test_experiments_that_run_together_have_slots_and_gpus_of_their_own() -> None:
    hosts = [host("a", 4, 4), host("b", 2, 2)]
    shares = shares_of(Demand(2, 1, 1), hosts, 5)
    assert [share.hosts for share in shares] == [{"a": 2}, {"a": 2}, {"b": 2}]
    assert [set(gpus) for share in shares for gpus in share.gpus] == [
        *2 * [{"a0", "a1"}],
        *2 * [{"a2", "a3"}],
        *2 * [{"b0", "b1"}],
    ]


def test_an_experiment_on_two_hosts_sees_the_gpus_of_each() -> None:
    (share,) = shares_of(Demand(3, 2, 2), [host("a", 4, 4), host("b", 4, 4)], 1)
    assert ranks(share) == {"a": [0, 1, 2, 3], "b": [4, 5]}
    picked = [gpus[slot.local_rank] for slot, gpus in zip(share.slots, share.gpus, strict=True)]
    assert picked == ["a0", "a1", "a2", "a3", "b0", "b1"]


def test_a_process_with_several_gpus_sees_no_others() -> None:
    first, second = shares_of(Demand(2, 1, 2), [host("a", 2, 4), host("b", 4, 8)], 2)
    assert first.gpus == (("a0", "a1"), ("a2", "a3"))
    assert second.gpus == (("b0", "b1"), ("b2", "b3"))


@pytest.mark.parametrize(
    ("workers", "processes", "gpus"), [(1, 4, 4), (2, 4, 4), (2, 2, 4), (3, 2, 4), (3, 1, 1)]
)
def test_local_rank_picks_a_gpu_of_the_own_worker(workers: int, processes: int, gpus: int) -> None:
    shares = shares_of(Demand(workers, processes, gpus), [host("g", None, 24)], 2)
    assert len(shares) == 2
    for place, share in enumerate(shares):
        picked = []
        for slot, visible in zip(share.slots, share.gpus, strict=True):
            assert len(set(visible)) == len(visible) == workers * gpus
            picked.append(int(visible[slot.local_rank][1:]) - place * workers * gpus)
            assert picked[-1] // gpus == slot.rank // processes
        assert len(set(picked)) == len(picked)


def test_without_slots_any_number_of_processes_fits() -> None:
    shares = shares_of(Demand(3, 5, 0), [host()], 2)
    assert [share.hosts for share in shares] == [{"localhost": 15}] * 2
    assert set(shares[0].gpus) == {()}


@pytest.mark.parametrize(
    ("demand", "hosts", "text"),
    [
        (
            Demand(2, 1, 2),
            [host("a", None, 3)],
            "train.resources.gpus: 2 workers with 2 each need 4, and this machine has 3 (",
        ),
        (Demand(1, 1, 2), [host("a", None, 1)], "train.resources.gpus: it needs 2, and this"),
        (
            Demand(2, 2, 2),
            [host("a", 2, 2), host("b", 1, 1)],
            "2 workers with 2 each need 4, and the hosts have 3 (",
        ),
        (
            Demand(2, 2, 0),
            [host("a", 3), host("b", 1)],
            "4 processes were asked for, and there is no room for them on a:3, b:1: each of 2 "
            "workers has 2 processes on one host",
        ),
        (
            Demand(2, 1, 2),
            [host("a", 1, 3), host("b", 1, 1)],
            "each of 2 workers has 1 process and 2 GPUs on one host",
        ),
    ],
)
def test_where_there_is_no_room_the_text_says_why(
    demand: Demand, hosts: list[SiteHost], text: str
) -> None:
    assert shares_of(demand, hosts, 1) == ()
    assert text in why_none(demand, hosts)
