"""The names of tasks, and the newest of their starts. Pure."""

from __future__ import annotations

from horovod.spark.task import AgentNames, TaskInfo, newest


def task(index: int, number: int, place: str = "here", hostname: str = "node") -> TaskInfo:
    return TaskInfo(index, number, place, hostname, ("10.0.0.1", 4000 + number))


def test_bytes_of_a_task() -> None:
    assert TaskInfo.from_bytes(task(3, 7).to_bytes()) == task(3, 7)


def test_a_task_that_starts_again_has_another_name() -> None:
    names = AgentNames()
    assert names.of(task(0, 10)) == "node/task-0"
    assert names.of(task(0, 12)) == "node/task-0.1"
    assert names.of(task(0, 12)) == "node/task-0.1"
    assert names.of(task(0, 10)) == "node/task-0"


def test_places_of_one_host_name_are_nodes_of_their_own() -> None:
    names = AgentNames()
    found = [names.node_of(task(n, n, place)) for n, place in enumerate(["a", "b", "a", "c"])]
    assert found == ["node", "node-2", "node", "node-3"]


def test_the_newest_start_of_each_task_counts_in_any_order() -> None:
    tasks = [task(1, 5), task(0, 2), task(1, 3)]
    assert newest(tasks) == {0: task(0, 2), 1: task(1, 5)}
