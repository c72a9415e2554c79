"""Worlds that follow each other in one process."""

from __future__ import annotations

import mxnet as mx
import pytest

import horovod.mxnet as hvd


def works():
    return hvd.allreduce(mx.nd.ones(2), op=hvd.Sum).asnumpy().tolist() == [hvd.size()] * 2


def test_worlds_follow_each_other():
    lost = [hvd.allreduce(mx.nd.ones(1)) for _ in range(hvd.rank())]  # rank 0 does not call
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"init"):
        hvd.allreduce(mx.nd.ones(1))
    for result in lost:
        with pytest.raises(mx.MXNetError, match="HorovodInternalError"):
            result.asnumpy()
    hvd.init()
    assert works()
