"""``hvd.metrics()``: what a rank has counted."""

import os

import numpy as np

import horovod.numpy as hvd


def difference(before, after):
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def test_operations_tensors_and_bytes_are_counted_by_kind():
    before = hvd.metrics()
    hvd.allreduce(np.ones(10, np.float32), name="metrics.a", op=hvd.Sum)
    hvd.grouped_allreduce([np.ones(2), np.ones(3)], name="metrics.b", op=hvd.Sum)
    hvd.broadcast(np.ones(4, np.int8), 0, name="metrics.c")
    counted = difference(before, hvd.metrics())
    assert counted["allreduce_operations"] == 2
    assert counted["allreduce_tensors"] == 3
    assert counted["allreduce_bytes"] == 40 + 5 * 8
    assert counted["broadcast_bytes"] == 4
    assert counted["buckets"] >= 3  # debug mode has some of its own
    assert counted["fused_tensors"] >= 2
    assert "errors" not in counted
    assert "allgather_operations" not in counted


def test_a_name_that_comes_again_and_again_makes_steps():
    tensor = np.ones(3, np.float32)
    for _ in range(30):  # more than ten periods of whatever name another test has used
        hvd.allreduce_(tensor, name="metrics.step", op=hvd.Max)
    before = hvd.metrics()
    for _ in range(5):
        hvd.allreduce_(tensor, name="metrics.step", op=hvd.Max)
    counted = difference(before, hvd.metrics())
    assert counted.get("steps", 0) in (0, 5)  # 0: another name still gives the pace
    assert hvd.metrics()["step_seconds"] > 0


def test_waiting_and_failing_are_counted():
    before = hvd.metrics()
    handle = hvd.allreduce_async(np.ones(3), name="metrics.wait")
    hvd.synchronize(handle)
    rank = hvd.rank()
    try:
        hvd.allreduce(np.ones(2 + rank), name="metrics.wrong", op=hvd.Sum)
        has_failed = False
    except hvd.HorovodInternalError:
        has_failed = True
    after = hvd.metrics()
    assert has_failed == (hvd.size() > 1)
    assert after["errors"] - before["errors"] == int(has_failed)
    if not os.environ.get("HOROVOD_DEBUG_COLLECTIVES"):  # which has operations of its own
        assert after["in_flight_operations"] == 0
    assert after["queued_seconds"] > before["queued_seconds"]
