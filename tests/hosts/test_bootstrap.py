"""Bootstrap over several hosts: it succeeds, or names the reason; other peers are refused."""

from __future__ import annotations

import base64
import time

from lab import Lab
from network import Host, Interface, plain_cabling
from ranks import Job

START_S = {"HOROVOD_START_TIMEOUT": "10"}
ROUNDS = ("steady.py", "64", "20")


def assert_works(lab: Lab, ranks_per_host: tuple[int, ...]) -> None:
    """A job with these ranks connects and sums."""
    job = lab.start_worker(ranks_per_host, *ROUNDS)
    job.check(timeout_s=500)
    for report in lab.read_from(range(sum(ranks_per_host)), "report", job).values():
        assert report == {"error": None, "later": None}


def failures(job: Job) -> list[str]:
    """The last line of standard error of each rank; all must have failed."""
    statuses = job.wait(timeout_s=500)
    assert all(statuses), job.told()
    return [rank.errors.splitlines()[-1] for rank in job.ranks]


def test_ipv6_only(lab: Lab) -> None:
    lab.open(plain_cabling(2, ipv4=False, ipv6=True))
    assert_works(lab, (2, 1))


def test_names_that_differ_on_every_host(lab: Lab) -> None:
    lab.open(3, own_name_address="127.0.1.1")
    assert_works(lab, (1, 1, 1))


def test_eight_interfaces_of_which_one_leads_to_the_others(lab: Lab) -> None:
    """Its name differs on each host; some addresses exist on all hosts, some are private."""
    lab.open([eight_interfaces(number) for number in (1, 2, 3)])
    assert_works(lab, (1, 1, 1))


def eight_interfaces(number: int) -> list[Interface]:
    own = [
        Interface(f"own{index}", (f"10.{index}.{number}.1/24",), segment=f"own{number}-{index}")
        for index in range(4)
    ]
    same = [
        Interface("docker0", ("172.17.0.1/16",), segment=""),
        Interface("virbr0", ("192.168.122.1/24", "fd00:dead::1/64"), segment=""),
        Interface("dark0", ("10.200.0.1/24",), segment=""),
    ]
    shared = Interface(f"lan{number}", (f"10.91.0.{number}/24",))
    # The first one is the store's address, which all hosts can reach.
    return [shared, *own, *same]


def test_one_direction_is_enough(lab: Lab) -> None:
    lab.open(3)
    lab.hosts[1].refuse_connections_from(lab.hosts[2])
    assert_works(lab, (1, 1, 1))
    lab.hosts[1].hear_all()
    lab.hosts[2].refuse_connections_from(lab.hosts[1])
    assert_works(lab, (1, 1, 1))


def test_hosts_that_do_not_reach_each_other_are_listed(lab: Lab) -> None:
    lab.open(3)
    lab.hosts[1].refuse_connections_from(lab.hosts[2])
    lab.hosts[2].refuse_connections_from(lab.hosts[1])
    job = lab.start_worker((1, 1, 1), *ROUNDS, environment=START_S)
    began = time.monotonic()
    failures(job)
    assert time.monotonic() - began < 45
    for rank in job.ranks:
        assert "InitError" in rank.errors
        assert "host1" in rank.errors, job.told()
        assert "host2" in rank.errors, job.told()


def test_a_rank_with_another_secret_stays_outside(lab: Lab) -> None:
    other = base64.b64encode(bytes(32)).decode()
    job = lab.start_worker(
        (1, 1), *ROUNDS, environment=START_S, of_rank={1: {"_HOROVOD_SECRET_KEY": other}}
    )
    first, second = failures(job)
    assert "InitError" in first
    assert "rank 1" in first
    assert "_HOROVOD_SECRET_KEY" in second
    assert other not in job.told()
    assert f"from {lab.hosts[1].address}:" in job.store.reports


def listening_ports(host: Host) -> list[tuple[str, int]]:
    """Where processes of ``host`` listen for TCP connections from other hosts."""
    return [(address, port) for address, port in host.listeners() if address != "127.0.0.1"]


def test_unauthenticated_peers_do_not_disturb_a_job(lab: Lab) -> None:
    """From start to end of a job another host connects to all its ports."""
    lab.open(3)
    intruder = lab.intruder(lab.hosts[2])
    assert intruder.stdin is not None
    assert intruder.stdout is not None
    job = lab.start_worker((2, 1), "steady.py", "1024", "400")
    visited = set()
    while any(rank.poll() is None for rank in job.ranks):
        for host in lab.hosts[:2]:
            for _, port in listening_ports(host):
                print(host.address, port, file=intruder.stdin, flush=True)
                assert intruder.stdout.readline() == "done\n"
                visited.add((host.name, port))
    job.check(timeout_s=500)
    for report in lab.read_from(range(3), "report", job).values():
        assert report == {"error": None, "later": None}
    assert len(visited) >= 1  # the store, at least
    assert "Traceback" not in job.told()
    told = job.store.reports + "".join(rank.errors for rank in job.ranks)
    assert lab.hosts[2].address in told
