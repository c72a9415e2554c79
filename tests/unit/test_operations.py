import pytest

import horovod.numpy as hvd
from horovod.core import gpus
from horovod.core.base import mpi_library
from horovod.core.operations import resolve_op


@pytest.mark.parametrize(
    ("average", "op", "expected"),
    [
        (None, None, hvd.Average),
        (None, hvd.Sum, hvd.Sum),
        (None, hvd.Min, hvd.Min),
    ],
)
def test_op(average, op, expected):
    assert resolve_op(average, op) == expected


@pytest.mark.parametrize(("average", "expected"), [(True, hvd.Average), (False, hvd.Sum)])
def test_average_is_deprecated(average, expected):
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        assert resolve_op(average, None) == expected


def test_both_or_nonsense_are_refused():
    with pytest.raises(ValueError, match="not both"):
        resolve_op(True, hvd.Sum)
    with pytest.raises(ValueError, match="expected one of Average, Sum"):
        resolve_op(None, 6)


def test_exports_exist():
    for name in hvd.__all__:
        assert hasattr(hvd, name)


def test_before_init_everything_says_so():
    assert not hvd.is_initialized()
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"has not been initialized; use hvd\.init\(\)"):
        hvd.size()
    assert hvd.nccl_built() == gpus.nccl_version()
    assert hvd.cuda_built() == gpus.has_cuda()
    assert hvd.gloo_built()
    assert hvd.mpi_built() is (mpi_library.why_not_built() is None)
    assert not any([hvd.ddl_built(), hvd.ccl_built()])
