"""Which pairs a network check measures, what it finds slow, and how it says so."""

from __future__ import annotations

import pytest

from horovod.launch.cli import main as cli
from horovod.launch.network.command import as_json, as_text
from horovod.launch.network.links import Link, judge, rounds_of

HOSTS = ["a", "b", "c", "d"]
PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def links(**changed: Link) -> list[Link]:
    """All of four hosts at 1 GB/s and 50 us, but those whose names, such as ``ab``, are given."""
    usual = {HOSTS[a] + HOSTS[b]: Link((a, b), "TCP", 50e-6, 1e9) for a, b in PAIRS}
    return list({**usual, **changed}.values())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_few_hosts_are_measured_pair_by_pair(count: int) -> None:
    rounds = rounds_of(count)
    assert all(len(pairs) == 1 for pairs in rounds)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert pairs == [(a, b) for a in range(count) for b in range(a + 1, count)]


@pytest.mark.parametrize("count", [9, 10, 64, 65])
def test_of_many_hosts_each_is_measured_with_seven_others(count: int) -> None:
    rounds = rounds_of(count)
    assert len(rounds) == 7
    partners: dict[int, set[int]] = {host: set() for host in range(count)}
    for pairs in rounds:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy)) >= count - 1
        for a, b in pairs:
            partners[a].add(b)
            partners[b].add(a)
    assert {len(others) for others in partners.values()} <= {6, 7}


def test_links_that_are_alike_are_fine() -> None:
    verdict = judge(links(bc=Link((1, 2), "TCP", 90e-6, 0.51e9)))
    assert verdict.is_fine
    assert as_text(HOSTS, links(), verdict).endswith("All 6 links are fine.")


def test_a_single_link_has_nothing_to_be_slow_beside() -> None:
    verdict = judge([Link((0, 1), "shared memory", 1e-6, 9e9)])
    assert verdict.is_fine
    text = as_text(["a", "a"], [Link((0, 1), "shared memory", 1e-6, 9e9)], verdict)
    assert "a, two processes   shared memory    1.0 us   9.00 GB/s" in text


def test_a_long_link_gets_as_many_connections_as_help() -> None:
    def found(*bandwidths: float) -> Link:
        with_more = dict(zip((4, 16), bandwidths, strict=False))
        return Link((0, 1), "TCP", 0.1, 1e6, resent_share=0.001, with_more=with_more)

    assert found().advised_connections == 1
    assert found(1.2e6, 1.1e6).advised_connections == 1
    assert found(3.9e6, 4.2e6).advised_connections == 4
    link = found(3.9e6, 9e6)
    assert link.advised_connections == 16
    assert as_text(["a", "b"], [link], judge([link])).endswith(
        "The link is fine.\na - b is long (0.10% of packets were sent again): "
        "with --link-connections 16 it carries 9.00 MB/s."
    )
    (described,) = as_json(["a", "b"], [link], judge([link]))["links"]
    assert described["advised_connections"] == 16
    assert described["resent_share"] == 0.001


def test_a_slow_link_is_between_two_hosts_that_are_fast_with_others() -> None:
    found = links(bc=Link((1, 2), "TCP", 50e-6, 0.4e9))
    verdict = judge(found)
    assert verdict.slow == {(1, 2): "40% of the usual bandwidth"}
    assert not verdict.slow_hosts
    assert "b - c is slow: 40% of the usual bandwidth. Both" in as_text(HOSTS, found, verdict)


def test_a_late_link_is_slow_if_not_by_microseconds() -> None:
    verdict = judge(links(bc=Link((1, 2), "TCP", 2e-3, 1e9), ad=Link((0, 3), "TCP", 200e-6, 1e9)))
    assert verdict.slow == {(1, 2): "40.0 times the usual latency"}


@pytest.mark.parametrize("hosts", ["abc", "abcd"])
def test_a_slow_host_is_named_once(hosts: str) -> None:
    last = len(hosts) - 1
    found = [Link((a, b), "TCP", 50e-6, 1e7 if b == last else 1e9) for a, b in PAIRS if b <= last]
    verdict = judge(found)
    assert verdict.slow_hosts == (last,)
    assert set(verdict.slow) == {link.pair for link in found if last in link.pair}
    text = as_text(hosts, found, verdict)
    assert text.count("is slow") == 1
    assert f"{hosts[last]} is slow with every other host" in text


def test_transports_are_not_compared() -> None:
    assert judge(links(ab=Link((0, 1), "shared memory", 1e-6, 20e9))).is_fine


def test_a_link_that_cannot_be_used_is_said_and_no_measure_for_others() -> None:
    found = links(cd=Link((2, 3), problem="init: refused"))
    verdict = judge(found)
    assert not verdict.is_fine
    assert not verdict.slow
    text = as_text(HOSTS, found, verdict)
    assert text.endswith("c - d cannot be used: init: refused")
    result = as_json(HOSTS, found, verdict)
    assert result["links"][-1] == {
        "hosts": ["c", "d"],
        "state": "unreachable",
        "reason": "init: refused",
    }
    assert judge([Link((0, 1), problem="x")]).is_fine is False


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--check-network -np 2", "-np and --check-network"),
        ("--check-network --mpi", "--mpi and --check-network"),
        ("--check-network --min-np 2", "--check-network and an elastic job"),
        ("--check-network python x.py", "python: a command and --check-network"),
        ("--check-network -H here", "invalid host input"),
        ("--json -np 2 x", "--json goes with --check-network"),
    ],
)
def test_what_is_refused(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(words.split())
    assert text in capsys.readouterr().err
