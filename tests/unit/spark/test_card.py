"""What tasks are called, and which of their starts counts. Pure."""

from __future__ import annotations

from horovod.spark.task_info import Names, TaskInfo, newest


def card(index: int, number: int, place: str = "here", hostname: str = "node") -> TaskInfo:
    return TaskInfo(index, number, place, hostname, ("10.0.0.1", 4000 + number))


def test_a_card_travels() -> None:
    assert TaskInfo.decoded(card(3, 7).encoded()) == card(3, 7)


def test_a_task_that_starts_again_has_another_name() -> None:
    names = Names()
    assert names.of(card(0, 10)) == "node/task-0"
    assert names.of(card(0, 12)) == "node/task-0.1"
    assert names.of(card(0, 12)) == "node/task-0.1"
    assert names.of(card(0, 10)) == "node/task-0"


def test_places_of_one_host_name_are_nodes_of_their_own() -> None:
    names = Names()
    found = [names.node_of(card(n, n, place)) for n, place in enumerate(["a", "b", "a", "c"])]
    assert found == ["node", "node-2", "node", "node-3"]


def test_the_newest_start_of_each_task_counts_in_any_order() -> None:
    cards = [card(1, 5), card(0, 2), card(1, 3)]
    assert newest(cards) == {0: card(0, 2), 1: card(1, 5)}
