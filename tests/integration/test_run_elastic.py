"""Elastic ``horovod.run``: its results after workers were lost, joined and left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hosts import FakeHosts

import horovod
from horovod.errors import MismatchError

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# Two hosts for an elastic job.
A, B = "localhost", "127.0.0.1"
FAILED = "Horovod detected that one or more processes exited with non-zero status"


def elastic(train: Callable[[Any], Any], **values: Any) -> Any:
    """Call ``train`` with a state of these values and ``rendezvous``, the number of calls."""
    import horovod.numpy as hvd
    from horovod.elastic import ObjectState, run_fn

    def restart() -> None:
        hvd.shutdown()
        hvd.init()

    def counted(state: Any) -> Any:
        state.rendezvous += 1
        return train(state)

    hvd.init()
    state = ObjectState(hvd.broadcast_object, hvd.rank, rendezvous=0, **values)
    return run_fn(counted, restart)(state)


def epochs_of(state: Any, at_epoch: Callable[[int, int], None]) -> list[Any]:
    """Train for four epochs and record the hosts by rank in each."""
    import horovod.numpy as hvd

    while state.epoch < 4:
        at_epoch(state.epoch, hvd.rank())
        hosts = hvd.allgather_object(os.environ["HOROVOD_HOSTNAME"])
        state.history = [*state.history, (state.epoch, state.rendezvous, hosts)]
        state.epoch += 1
        state.commit()
    return list(state.history)


def test_the_results_of_the_first_ranks() -> None:
    def train(state: Any) -> tuple[int, int]:
        import horovod.numpy as hvd

        return hvd.rank(), int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])

    results = horovod.run(
        lambda: elastic(train), num_proc=3, min_num_proc=2, hosts=f"{A}:2,{B}:2", reset_limit=0
    )
    assert results == [(0, 4), (1, 4)]


def test_a_function_that_is_not_elastic_works_while_nothing_fails() -> None:
    def rank() -> int:
        return int(os.environ["HOROVOD_RANK"])

    assert horovod.run(rank, num_proc=2, min_num_proc=1, cooldown_range=(1, 2)) == [0]


@pytest.mark.parametrize("way", ["is killed", "raises"])
def test_a_host_with_a_failure_is_left_and_training_goes_on_from_the_last_commit(way: str) -> None:
    def fail_once(epoch: int, rank: int) -> None:
        if (epoch, rank, os.environ["HOROVOD_HOSTNAME"]) == (1, 1, A):
            if way == "raises":
                raise LookupError("nothing under the third stone")
            os.kill(os.getpid(), signal.SIGKILL)

    def body() -> Any:
        return elastic(lambda state: epochs_of(state, fail_once), epoch=0, history=[])

    results = horovod.run(body, num_proc=4, min_num_proc=2, hosts=f"{A}:2,{B}:2")
    before = [(0, 1, [A, A, B, B])]
    assert results == [before + [(epoch, 2, [B, B]) for epoch in (1, 2, 3)]] * 2


def scheduled(hosts: Path, schedule: list[str]) -> Any:
    """Train in worlds of these hosts, one after the other."""

    def train(state: Any) -> Any:
        import horovod.numpy as hvd

        state.sizes = [*state.sizes, hvd.size()]
        if state.rendezvous == len(schedule):
            return state.sizes, state.rendezvous, os.environ["HOROVOD_HOSTNAME"]
        if hvd.rank() == 0:
            hosts.with_suffix(".new").write_text(schedule[state.rendezvous])
            hosts.with_suffix(".new").rename(hosts)
        while True:
            threading.Event().wait(0.02)  # a step, which newcomers can use to start
            state.commit()

    return elastic(train, sizes=[])


@pytest.mark.parametrize("reset_limit", [1, 2])
def test_hosts_come_and_go(tmp_path: Path, reset_limit: int) -> None:
    hosts = tmp_path / "hosts"
    schedule = [f"{A}\n", f"{A}\n{B}\n", f"{B}\n"]
    hosts.write_text(schedule[0])

    def run() -> list[Any]:
        return horovod.run(
            scheduled,
            (hosts, schedule),
            num_proc=2,
            min_num_proc=2,
            max_num_proc=4,
            slots=2,
            host_discovery_script=f"cat {hosts}",
            reset_limit=reset_limit,
        )

    if reset_limit == 2:
        assert run() == [([2, 4, 2], 3, B)] * 2
        return
    with pytest.raises(RuntimeError) as caught:
        run()
    assert str(caught.value).endswith("number of resets during elastic job exceeded limit: 1")


def test_the_timeout_ends_a_job_that_needs_all_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "10")

    def train(state: Any) -> None:
        import horovod.numpy as hvd

        if hvd.rank() == 1:
            raise LookupError("nothing under the third stone")
        while True:
            state.commit()

    with pytest.raises(RuntimeError) as caught:
        horovod.run(lambda: elastic(train), num_proc=2, min_num_proc=2, hosts=f"{A}:1,{B}:1")
    text = str(caught.value)
    assert text.startswith("timed out waiting for the minimum number of slots: 2 are needed")
    assert "after 10 s there is 1 worker that can go on" in text
    assert "fewer workers are allowed by min_num_proc" in text
    assert f"{FAILED}; the others have been ended. The first was worker 1 (rank 1, {B})" in text
    assert f"rank 1 on {B} raised LookupError: nothing under the third stone\n\nTraceb" in text
    assert isinstance(caught.value.__cause__, LookupError)


def test_ranks_that_disagree_end_the_job() -> None:
    def train(state: Any) -> None:
        import horovod.numpy as hvd

        hvd.allreduce(np.ones(hvd.rank() + 1), name="gradient")

    with pytest.raises(RuntimeError, match=r"cannot go on: .*Mismatched ALLREDUCE") as caught:
        horovod.run(lambda: elastic(train), num_proc=2, hosts=f"{A}:1,{B}:1", min_num_proc=1)
    assert isinstance(caught.value.__cause__, MismatchError)


def test_a_wanted_result_that_is_missing_is_an_error() -> None:
    def body() -> None:
        if os.environ["HOROVOD_RANK"] == "1":
            os._exit(0)

    with pytest.raises(RuntimeError, match="training has ended, but rank 1 has left no result"):
        horovod.run(body, num_proc=2, min_num_proc=2, hosts=f"{A}:1,{B}:1")


@pytest.mark.parametrize(
    ("script", "text"),
    [("exit 3", "exited with code 3"), ("echo localhost", "print localhost:N, or give slots$")],
)
def test_a_discovery_that_never_works(script: str, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        horovod.run(os.getpid, host_discovery_script=script)


def test_answers_of_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeHosts(tmp_path)
    monkeypatch.setenv("PATH", fake.environ["PATH"])
    data = np.arange(100_000)

    def fail_once(epoch: int, rank: int) -> None:
        if epoch == 1 and os.environ["FAKE_HOST"] == "host-a":
            raise LookupError("nothing under the third stone")

    def body(data: Any) -> Any:
        history = elastic(lambda state: epochs_of(state, fail_once), epoch=0, history=[])
        return history[-1], data * 2

    hosts = "host-a:1,host-b:1"
    ((last, doubled),) = horovod.run(body, (data,), num_proc=2, min_num_proc=1, hosts=hosts)
    assert last == (3, 2, ["host-b"])
    assert np.array_equal(doubled, data * 2)
    fake.assert_empty()
