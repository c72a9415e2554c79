"""Forked children beside a world: the numbers of their parent, and nothing else of it."""

from __future__ import annotations

import atexit
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.core import world
from horovod.core.basics import HorovodBasics
from horovod.core.joining import ProvisionalRank
from horovod.core.position import here
from horovod.core.process_sets import ids_and_ranks
from horovod.errors import InitError, ShutdownError
from horovod.rendezvous.bootstrap import ProcessInfo
from horovod.settings import Settings

NUMBERS: tuple[Callable[[], Any], ...] = (
    hvd.rank,
    hvd.size,
    hvd.local_rank,
    hvd.local_size,
    hvd.cross_rank,
    hvd.cross_size,
    hvd.is_homogeneous,
    hvd.is_initialized,
    hvd.mpi_enabled,
    hvd.gloo_enabled,
    HorovodBasics().rank,
    HorovodBasics().is_initialized,
    hvd.global_process_set.rank,
    hvd.global_process_set.size,
    hvd.global_process_set.included,
    ids_and_ranks,
)


@pytest.fixture(autouse=True)
def works_afterwards() -> Iterator[None]:
    yield
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, name="after forks")[0] == hvd.size()


def in_fork(function: Callable[[], Any]) -> Any:
    """What ``function`` returns in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, pickle.dumps(function()))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return pickle.loads(answer)


def numbers() -> list[Any]:
    return [number() for number in NUMBERS]


def error_of(function: Callable[[], Any]) -> tuple[type[BaseException], str]:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        function()
    return caught.type, str(caught.value)


def refusal() -> str:
    return (
        f"this process was forked from rank {hvd.rank()} (pid {os.getpid()}), which alone can use "
        "Horovod's collectives; hvd.rank() and hvd.size() work here"
    )


def test_a_forked_child_has_the_numbers_of_its_parent():
    assert in_fork(numbers) == numbers()
    assert hvd.is_initialized()


def test_a_fork_of_a_forked_child_has_them_too():
    found, (kind, text) = in_fork(lambda: in_fork(lambda: (numbers(), error_of(hvd.barrier))))
    assert found == numbers()
    assert (kind, text) == (ValueError, refusal())


def test_processes_of_a_pool_have_the_numbers():
    with get_context("fork").Pool(2) as pool:
        assert pool.map(_numbers_of, range(4)) == [numbers()] * 4


def _numbers_of(_: int) -> list[Any]:
    return numbers()


def _collectives() -> list[Callable[[], Any]]:
    ones = np.ones(4)
    gathered = [lambda: hvd.allgather_object({})]  # needs no world where there is one rank
    return [
        *(gathered if hvd.size() > 1 else []),
        lambda: hvd.allreduce(ones, name="x"),
        lambda: hvd.allreduce_async_(ones, name="x"),
        lambda: hvd.grouped_allreduce([ones, ones], name="x"),
        lambda: hvd.allgather(ones, name="x"),
        lambda: hvd.broadcast(ones, 0, name="x"),
        lambda: hvd.alltoall(ones, name="x"),
        lambda: hvd.reducescatter(ones, name="x"),
        lambda: hvd.broadcast_object({}, 0),
        hvd.barrier,
        hvd.join,
        world.engine,
        world.current,
    ]


def test_collectives_are_refused_in_a_forked_child():
    found = in_fork(lambda: [error_of(collective) for collective in _collectives()])
    assert found == [(ValueError, refusal())] * len(_collectives())


def test_recordings_are_refused_in_a_forked_child():
    calls = [hvd.stop_timeline, hvd.dump_recorder, lambda: hvd.start_timeline("x")]
    assert in_fork(lambda: list(map(error_of, calls))) == [(ValueError, refusal())] * 3


def test_a_forked_child_cannot_change_process_sets():
    if hvd.size() == 1:
        pytest.skip("a world of one has no proper subset")
    own = hvd.add_process_set([0])

    def asked() -> list[Any]:
        return [
            own.included(),
            own.size(),
            error_of(lambda: hvd.add_process_set([hvd.size() - 1])),
            error_of(lambda: hvd.remove_process_set(own)),
            error_of(lambda: hvd.allreduce(np.ones(1), process_set=own)),
        ]

    included, size, *errors = in_fork(asked)
    assert (included, size) == (hvd.rank() == 0, 1)
    assert errors == [
        (ValueError, f"add_process_set: {refusal()}"),
        (ValueError, f"remove_process_set: {refusal()}"),
        (ValueError, refusal()),
    ]
    assert hvd.remove_process_set(own)


def test_a_forked_child_cannot_wait_for_its_parent():
    handle = hvd.allreduce_async(np.ones(3), name="of the parent", op=hvd.Sum)
    found = in_fork(
        lambda: [error_of(lambda: hvd.poll(handle)), error_of(lambda: hvd.synchronize(handle))]
    )
    assert found == [(ShutdownError, refusal())] * 2
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 3


def test_a_forked_child_cannot_join_a_world():
    def tried() -> list[Any]:
        first = error_of(hvd.init)
        hvd.shutdown()
        second = error_of(lambda: hvd.init([0]))
        return [first, second, error_of(world.restart), numbers()]

    *errors, found = in_fork(tried)
    assert errors == [(InitError, f"init: {refusal()}")] * 3
    assert found == numbers()


def test_a_forked_child_ends_with_all_exit_handlers():
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_world_ends_and_begins_while_a_forked_child_lives():
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    answers, answer = context.Pipe(duplex=False)

    def wait() -> None:
        reader.recv()
        answer.send((numbers(), error_of(hvd.init)[1]))

    before = numbers(), f"init: {refusal()}"
    child = context.Process(target=wait)
    child.start()
    try:
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init()
        assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
        assert child.is_alive()
    finally:
        writer.send("end")
        child.join(30)
    assert answers.recv() == before
    assert child.exitcode == 0


def test_a_fork_between_two_worlds_is_of_none():
    hvd.shutdown()
    kind, text = in_fork(lambda: error_of(hvd.rank))
    assert kind is ValueError
    assert "has not been initialized" in text
    assert in_fork(hvd.is_initialized) is False


def test_a_fork_before_an_elastic_rank_connects_has_its_provisional_numbers(monkeypatch):
    hvd.shutdown()
    place = ProcessInfo(3, 5, 1, 2, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(here, "provisional", ProvisionalRank(place, Settings(), None, ()))
        found, refused = in_fork(lambda: ((hvd.rank(), hvd.size()), error_of(hvd.barrier)))
    assert found == (3, 5)
    assert refused[1].startswith(f"this process was forked from rank 3 (pid {os.getpid()})")


def test_a_new_program_in_a_forked_child_is_no_fork():
    program = "import horovod.numpy as hvd; print(hvd.is_initialized()); hvd.rank()"

    def run() -> tuple[str, str]:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        return done.stdout, done.stderr

    out, err = in_fork(run)
    assert out == "False\n"
    assert re.search("ValueError: Horovod has not been initialized", err)
