"""Host lists as text, and the rank of every slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.hosts import (
    HostSlots,
    assign_ranks,
    chosen_interfaces,
    parse_hostfile,
    parse_hosts,
)
from horovod.launch.workers.machine import is_this_machine

host_lists = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True),
    st.integers(1, 6),
    min_size=1,
    max_size=5,
).map(lambda slots: [HostSlots(name, count) for name, count in slots.items()])


def test_parse() -> None:
    assert parse_hosts("a:2, node-1.b_c:10") == (HostSlots("a", 2), HostSlots("node-1.b_c", 10))


def test_a_host_that_comes_twice_has_the_slots_of_both() -> None:
    assert parse_hosts("a:2,b:1,a:3") == (HostSlots("a", 5), HostSlots("b", 1))


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:", ":2", "a:0", "a:-1", "a:two", "a:2,", "a:2;b:2", "a b:2", "a:2:3", "[::1]:2"],
)
def test_what_is_no_host_list_shows_the_format(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid host input .* expected name:slots"):
        parse_hosts(text)


def test_interfaces_of_a_string_or_a_collection() -> None:
    assert chosen_interfaces(None) == ()
    assert chosen_interfaces("lo, eth0,lo") == ("lo", "eth0")
    assert chosen_interfaces({"lo", "eth0"}) == ("eth0", "lo")


def test_a_hostfile() -> None:
    text = "# our machines\na.example slots=2\n\nb-1 slots = 4  # the big one\na.example slots=1\n"
    assert parse_hostfile(text) == (HostSlots("a.example", 3), HostSlots("b-1", 4))


@pytest.mark.parametrize("text", ["a", "a:2", "a slots=", "a slots=0", "a slots=-1", "a slots=2 b"])
def test_what_is_no_hostfile_shows_the_format(text: str) -> None:
    with pytest.raises(ValueError, match="expected name slots=N"):
        parse_hostfile(text)


@pytest.mark.parametrize("text", ["", "\n# nothing\n"])
def test_a_hostfile_without_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="names no host"):
        parse_hostfile(text)


def test_ranks_on_uneven_hosts() -> None:
    slots = assign_ranks([HostSlots("a", 1), HostSlots("b", 2)], 3)
    assert slots == (
        RankInfo(
            rank=0, size=3, local_rank=0, local_size=1, cross_rank=0, cross_size=2, hostname="a"
        ),
        RankInfo(
            rank=1, size=3, local_rank=0, local_size=2, cross_rank=1, cross_size=2, hostname="b"
        ),
        RankInfo(
            rank=2, size=3, local_rank=1, local_size=2, cross_rank=0, cross_size=1, hostname="b"
        ),
    )


def test_only_as_many_slots_as_processes() -> None:
    slots = assign_ranks([HostSlots("a", 4), HostSlots("b", 4)], 3)
    assert [(slot.hostname, slot.local_size) for slot in slots] == [("a", 3)] * 3


def test_too_few_slots_gives_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"5 processes .* 3 slots: a:1, b:2"):
        assign_ranks([HostSlots("a", 1), HostSlots("b", 2)], 5)


@given(hosts=host_lists, data=st.data())
def test_every_slot_is_consistent(hosts: list[HostSlots], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, sum(host.slots for host in hosts)))
    slots = assign_ranks(hosts, count)
    assert [slot.rank for slot in slots] == list(range(count))
    for slot in slots:
        on_host = [other for other in slots if other.hostname == slot.hostname]
        assert [other.local_rank for other in on_host] == list(range(slot.local_size))
        column = [other for other in slots if other.local_rank == slot.local_rank]
        assert [other.cross_rank for other in column] == list(range(slot.cross_size))


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3"])
def test_names_of_this_machine(name: str) -> None:
    assert is_this_machine(name)


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid"])
def test_names_of_others(name: str) -> None:
    assert not is_this_machine(name)
