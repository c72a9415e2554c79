"""Every way in which ranks can disagree, and every call that cannot be right."""

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.errors import MismatchError


def is_odd_one() -> bool:
    return hvd.rank() == hvd.size() - 1


@pytest.fixture(autouse=True)
def usable_afterwards():
    yield
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="afterwards")[0] == hvd.size()


@pytest.fixture
def several_ranks():
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")


def disagreements():
    common = np.ones((2, 3), np.float32)
    return {
        "shape": (lambda odd: hvd.allreduce(np.ones((2, 4 if odd else 3), np.float32), name="m")),
        "ndim": (lambda odd: hvd.allreduce(np.ones(6) if odd else np.ones((2, 3)), name="m")),
        "dtype": (lambda odd: hvd.allreduce(common.astype("i4") if odd else common, name="m")),
        "op": (lambda odd: hvd.allreduce(common, name="m", op=hvd.Max if odd else hvd.Sum)),
        "prescale": (
            lambda odd: hvd.allreduce(common, name="m", prescale_factor=2.0 if odd else 1)
        ),
        "postscale": (lambda odd: hvd.allreduce(common, name="m", postscale_factor=odd + 1.0)),
        "root": (lambda odd: hvd.broadcast(common, 1 if odd else 0, name="m")),
        "broadcast shape": (lambda odd: hvd.broadcast(common[: 1 + (not odd)], 0, name="m")),
        "allgather dim": (lambda odd: hvd.allgather(np.ones((2, 4 if odd else 3)), name="m")),
        "allgather ndim": (lambda odd: hvd.allgather(np.ones(6) if odd else common, name="m")),
        "allgather dtype": (lambda odd: hvd.allgather(common.astype("f8" if odd else "f4"), "m")),
    }


@pytest.mark.parametrize("way", list(disagreements()))
def test_every_disagreement_is_an_error_on_every_rank(several_ranks, way):
    for _ in range(2):
        with pytest.raises(MismatchError, match=r"'m': Mismatched .* rank \d sent .*rank \d sent"):
            disagreements()[way](is_odd_one())


def test_mismatch_is_an_internal_error_for_scripts(several_ranks):
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(np.ones(hvd.rank() + 1), name="scripts")
    assert issubclass(hvd.HorovodInternalError, RuntimeError)


def test_allgather_of_a_scalar_is_an_error_everywhere():
    with pytest.raises(MismatchError, match="rank-zero tensor"):
        hvd.allgather(np.ones(()))


def test_a_name_in_flight_is_refused(several_ranks):
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(3), name="busy")
        with pytest.raises(ValueError, match=r"'busy'.*still being processed"):
            hvd.allreduce_async(np.ones(3), name="busy")
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(np.ones(3), name="busy")
    hvd.synchronize(handle)


@pytest.mark.parametrize("root", [-1, 99])
def test_root_outside_of_the_world(root):
    with pytest.raises(ValueError, match=f"invalid root rank {root}"):
        hvd.broadcast(np.ones(3), root)


def test_arrays_that_cannot_be_sent():
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce(np.ones((4, 4)).T[1:])
    with pytest.raises(ValueError, match="complex64 is not supported"):
        hvd.allreduce(np.ones(3, np.complex64))
    read_only = np.ones(3)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        hvd.allreduce_(read_only)
    with pytest.raises(ValueError, match="expected a NumPy array, found list"):
        hvd.allreduce([1.0, 2.0])
    with pytest.raises(ValueError, match="op="):
        hvd.allreduce(np.ones(3), op=17)


def test_the_old_average_argument():
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(np.ones(1), average=False)[0] == hvd.size()
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(np.ones(1), average=True, op=hvd.Sum)
