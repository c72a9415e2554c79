"""Ranks of workers on hosts that are whole machines, and on embedded agents that share them."""

from __future__ import annotations

from horovod.launch.elastic.policy.capacity import SlotId
from horovod.launch.elastic.policy.workers import Entry, by_slot, in_rank_order, positions


def entries(*hostnames: str) -> list[Entry]:
    return [Entry(number, SlotId(name, 0), 0.0) for number, name in enumerate(hostnames)]


def test_agents_of_a_node_have_consecutive_ranks() -> None:
    hosts = ["a/task-0", "b/task-1", "a/task-2", "b/task-3"]
    ordered = by_slot(entries(*hosts), hosts)
    assert [entry.slot_id.hostname for entry in ordered] == [
        "a/task-0",
        "a/task-2",
        "b/task-1",
        "b/task-3",
    ]


def test_the_node_of_rank_0_comes_first() -> None:
    hosts = ["a/task-0", "b/task-1", "a/task-2", "b/task-3"]
    members = entries(*hosts)
    ordered = in_rank_order(members, hosts, members[3])
    assert [entry.number for entry in ordered] == [3, 1, 0, 2]


def test_positions_count_on_nodes() -> None:
    names = ["a/task-0", "a/task-2", "b/task-1"]
    slots = positions([SlotId(name, 0) for name in names])
    assert [slot.hostname for slot in slots] == names
    assert [(slot.local_rank, slot.local_size) for slot in slots] == [(0, 2), (1, 2), (0, 1)]
    assert [(slot.cross_rank, slot.cross_size) for slot in slots] == [(0, 2), (0, 1), (1, 2)]


def test_slots_of_a_whole_machine() -> None:
    slots = positions([SlotId("a", 1), SlotId("a", 0), SlotId("b", 0)])
    assert [(slot.local_rank, slot.local_size) for slot in slots] == [(1, 2), (0, 2), (0, 1)]
