"""The planned links: the same at both ends, complete, nothing twice."""

from __future__ import annotations

from collections import Counter

import pytest

from horovod.rendezvous.links.plan import Link, Purpose, hosts_with, plan_links

LAYOUTS = [
    [[0], [1]],
    [[0, 1], [2, 3]],
    [[0], [1, 2, 3], [4, 5]],
    [[0, 2], [1, 3]],
    [[rank] for rank in range(9)],
    [[0, 1, 2, 3], [4]],
]


def plans(
    layout: list[list[int]], with_news: bool = True, least_channels: int = 1
) -> dict[int, list[Link]]:
    ranks = [rank for host in layout for rank in host]
    return {rank: plan_links(rank, layout, with_news, least_channels) for rank in ranks}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_ends_plan_the_same_links(layout: list[list[int]]) -> None:
    host_of = {rank: index for index, host in enumerate(layout) for rank in host}
    seen = [
        (link.purpose, link.channel, rank, link.peer)
        for rank, links in plans(layout).items()
        for link in links
    ]
    assert sorted(seen) == sorted((p, c, peer, rank) for p, c, rank, peer in seen)
    assert max(Counter(seen).values()) == 1
    assert all(host_of[rank] != host_of[peer] for _, _, rank, peer in seen)
    assert all(
        link.host == host_of[link.peer] for links in plans(layout).values() for link in links
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("least_channels", [1, 3])
def test_each_pair_of_hosts_has_each_channel_once(
    layout: list[list[int]], least_channels: int
) -> None:
    channels = max(least_channels, *map(len, layout))
    planned = plans(layout, least_channels=least_channels)
    for own, host in enumerate(layout):
        data = Counter(
            (link.host, link.channel)
            for rank in host
            for link in planned[rank]
            if link.purpose == Purpose.DATA
        )
        others = [index for index in range(len(layout)) if index != own]
        assert data == {(other, c): 1 for other in others for c in range(channels)}
        for position, rank in enumerate(host):
            mine = [link for link in planned[rank] if link.purpose == Purpose.DATA]
            assert {link.channel % len(host) for link in mine} == {position}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_control_is_a_tree_and_news_a_clique_of_first_ranks(layout: list[list[int]]) -> None:
    first = [host[0] for host in layout]
    planned = plans(layout)
    edges = {
        frozenset((rank, link.peer))
        for rank, links in planned.items()
        for link in links
        if link.purpose == Purpose.CONTROL
    }
    assert edges == {frozenset((first[i], first[i & (i - 1)])) for i in range(1, len(first))}
    for rank, links in planned.items():
        news = {link.peer for link in links if link.purpose == Purpose.NEWS}
        assert news == (set(first) - {rank} if rank in first else set())
    assert not any(
        link.purpose == Purpose.NEWS for links in plans(layout, False).values() for link in links
    )


def test_hosts_of_a_set_are_those_with_members() -> None:
    world = ((0, 3), (1, 2), (4,))
    assert hosts_with([4, 3, 2], world) == ((2,), (3,), (4,))
    assert hosts_with([0, 3], world) == ((0, 3),)
    assert hosts_with([3, 2, 1], world) == ((1, 2), (3,))
