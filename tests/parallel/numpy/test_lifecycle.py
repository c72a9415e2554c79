"""init and shutdown, again and again."""

import os
import threading

import numpy as np
import pytest

import horovod.numpy as hvd


@pytest.fixture(autouse=True)
def initialised_afterwards():
    yield
    hvd.init()


def test_init_again_is_a_no_op():
    before = hvd.rank()
    hvd.init()
    assert hvd.rank() == before
    assert hvd.is_initialized()


def test_nothing_works_after_shutdown():
    hvd.barrier()
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    for call in (
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.local_size,
        hvd.cross_rank,
        hvd.cross_size,
    ):
        with pytest.raises(ValueError, match=r"has not been initialized; use hvd\.init"):
            call()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.allreduce(np.ones(1))


def test_a_hundred_worlds_leave_nothing_behind():
    def one_world():
        hvd.shutdown()
        hvd.init()
        assert hvd.allreduce(np.ones(2), op=hvd.Sum)[0] == hvd.size()

    one_world()
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(100):
        one_world()
    # Fewer are right: worlds that failed in other tests may end meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(os.listdir("/proc/self/task")) <= threads


def test_what_is_pending_fails_at_shutdown():
    if hvd.size() == 1:
        pytest.skip("with one rank nothing stays pending")
    hvd.barrier()
    with pytest.raises(hvd.HorovodInternalError, match="shut down"):
        _shut_down_with_one_pending()
    hvd.shutdown()


def _shut_down_with_one_pending():
    # Another rank may be faster: then the first line fails already.
    never = hvd.allreduce_async(np.ones(1), name=f"never.{hvd.rank()}")
    hvd.shutdown()
    hvd.synchronize(never)


def test_threads_share_the_world():
    results = [0.0] * 4

    def reduce(index):
        results[index] = hvd.allreduce(np.ones(1000), op=hvd.Sum, name=f"thread{index}")[-1]

    threads = [threading.Thread(target=reduce, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [hvd.size()] * 4


def test_a_world_leaves_nothing_for_handles_that_nobody_synchronises():
    if hvd.size() == 1:
        pytest.skip("one rank waits for nobody")
    done = hvd.allreduce_async(np.ones(3), name="done before the end", op=hvd.Sum)
    forgotten = hvd.allreduce_async(np.ones(3), name=f"only on rank {hvd.rank()}")
    while not hvd.poll(done):
        pass
    size = hvd.size()
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    assert hvd.poll(done)
    assert hvd.poll(forgotten)
    assert hvd.synchronize(done).tolist() == [size] * 3
    with pytest.raises(hvd.HorovodInternalError):
        hvd.synchronize(forgotten)
    assert hvd.synchronize(forgotten) is None
