"""Every way in which ranks can disagree: the same error on every rank, and nothing else breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.errors import MismatchError

ONES = np.ones((2, 3), np.float32)
ROWS = np.ones((2 * 12, 3), np.float32)  # a multiple of the number of ranks


def wide_if(odd: bool) -> np.ndarray:
    return np.ones((2, 4 if odd else 3), np.float32)


def flat(odd: bool, array: np.ndarray = ONES) -> np.ndarray:
    return array.ravel() if odd else array


def integers(odd: bool, array: np.ndarray = ONES) -> np.ndarray:
    return array.astype("i4") if odd else array


def wide(odd: bool) -> np.ndarray:
    return np.ones((24, 4 if odd else 3), np.float32)


def op(odd: bool) -> int:
    return hvd.Average if odd else hvd.Sum


# What a rank calls when it is the odd one and when it is not; what the error says.
ALLREDUCE: dict[str, tuple[Callable[..., object], str]] = {
    "shape": (lambda odd, **s: hvd.allreduce(wide_if(odd), name="m", **s), "shapes"),
    "ndim": (lambda odd, **s: hvd.allreduce(flat(odd), name="m", **s), "shapes"),
    "dtype": (lambda odd, **s: hvd.allreduce(integers(odd), name="m", **s), "data types"),
    "op": (lambda odd, **s: hvd.allreduce(ONES, name="m", op=op(odd), **s), "reduction op"),
    "Adasum": (
        lambda odd, **s: hvd.allreduce(ONES, name="m", op=hvd.Adasum if odd else hvd.Max, **s),
        "reduction op",
    ),
    "prescale": (
        lambda odd, **s: hvd.allreduce(ONES, name="m", prescale_factor=1.0 + odd, **s),
        "prescale and/or postscale",
    ),
    "postscale": (
        lambda odd, **s: hvd.allreduce(ONES, name="m", postscale_factor=1.0 + odd, **s),
        "prescale and/or postscale",
    ),
    "in place": (
        lambda odd, **s: hvd.allreduce_(wide_if(odd).copy(), name="m", **s),
        "shapes",
    ),
    "async": (
        lambda odd, **s: hvd.synchronize(hvd.allreduce_async(integers(odd), name="m", **s)),
        "data types",
    ),
}
GROUPED: dict[str, tuple[Callable[..., object], str]] = {
    "group size": (
        lambda odd, **s: hvd.grouped_allreduce([ONES] * (3 + odd), name="m", **s),
        "group sizes",
    ),
    "group member": (
        lambda odd, **s: hvd.grouped_allreduce([ONES, wide_if(odd)], name="m", **s),
        "tensor 2 of 2.*shapes",
    ),
    "group dtype": (
        lambda odd, **s: hvd.grouped_allreduce([integers(odd), ONES], name="m", **s),
        "tensor 1 of 2.*data types",
    ),
    "group op": (
        lambda odd, **s: hvd.grouped_allreduce([ONES, ONES], name="m", op=op(odd), **s),
        "reduction op",
    ),
    "gathered group size": (
        lambda odd, **s: hvd.grouped_allgather([ONES] * (1 + odd), "m", **s),
        "group sizes",
    ),
    "gathered group member": (
        lambda odd, **s: hvd.grouped_allgather([ONES, wide_if(odd)], "m", **s),
        "tensor 2 of 2",
    ),
    "scattered group member": (
        lambda odd, **s: hvd.grouped_reducescatter([ROWS, wide(odd)], "m", **s),
        "tensor 2 of 2.*shapes",
    ),
}
OTHERS: dict[str, tuple[Callable[..., object], str]] = {
    "broadcast shape": (lambda odd, root, **s: hvd.broadcast(ONES[odd:], root, "m", **s), "shapes"),
    "broadcast dtype": (
        lambda odd, root, **s: hvd.broadcast(integers(odd), root, "m", **s),
        "data types",
    ),
    "allgather dim": (lambda odd, **s: hvd.allgather(wide_if(odd), "m", **s), "dimension"),
    "allgather ndim": (lambda odd, **s: hvd.allgather(flat(odd), "m", **s), "dimensions"),
    "allgather dtype": (lambda odd, **s: hvd.allgather(integers(odd), "m", **s), "data types"),
    "alltoall dim": (lambda odd, **s: hvd.alltoall(wide(odd), None, "m", **s), "dimension"),
    "alltoall ndim": (lambda odd, **s: hvd.alltoall(flat(odd, ROWS), None, "m", **s), "dimensions"),
    "alltoall dtype": (
        lambda odd, **s: hvd.alltoall(integers(odd, ROWS), None, "m", **s),
        "data types",
    ),
    "scatter shape": (lambda odd, **s: hvd.reducescatter(wide(odd), "m", **s), "shapes"),
    "scatter rows": (lambda odd, **s: hvd.reducescatter(ROWS[odd:], "m", **s), "shapes"),
    "scatter dtype": (lambda odd, **s: hvd.reducescatter(integers(odd, ROWS), "m", **s), "types"),
    "scatter op": (lambda odd, **s: hvd.reducescatter(ROWS, "m", op(odd), **s), "reduction op"),
    "scatter factor": (
        lambda odd, **s: hvd.reducescatter(ROWS, "m", prescale_factor=1.0 + odd, **s),
        "prescale and/or postscale",
    ),
}
WAYS = {**ALLREDUCE, **GROUPED, **OTHERS}


@pytest.fixture(autouse=True)
def usable_afterwards() -> Iterator[None]:
    yield
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="afterwards")[0] == hvd.size()


def arrays_of(result: object) -> list[np.ndarray]:
    return list(result) if isinstance(result, (list, tuple)) else [np.asarray(result)]


def disagree(way: str, process_set: hvd.ProcessSet) -> None:
    """Each rank of the set in turn is the odd one; afterwards all agree under the same name."""
    call, text = WAYS[way]
    options: dict[str, object] = {"process_set": process_set}
    if "broadcast" in way:
        options["root"] = process_set.ranks[-1]
    for odd in range(process_set.size()):
        with pytest.raises(MismatchError, match=rf"m'.*{text}") as raised:
            call(process_set.rank() == odd, **options)
        assert type(raised.value) is MismatchError
        assert "Mismatched" in str(raised.value)
        for array in arrays_of(call(False, **options)):
            assert set(array.ravel()) <= {1, process_set.size()}


@pytest.mark.parametrize("way", list(WAYS))
def test_disagreement_is_an_error_on_every_rank(process_sets, way):
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")
    for process_set in process_sets:
        if process_set.included() and process_set.size() > 1:
            disagree(way, process_set)


@pytest.mark.parametrize("way", list(WAYS))
def test_other_process_sets_work_on(process_sets, way):
    """Members of one set disagree while operations of all other sets are in flight."""
    mine = [entry for entry in process_sets if entry.included()]
    for odd_set in process_sets:
        array = np.arange(30_000.0)
        others = [entry for entry in mine if entry is not odd_set]
        handles = [hvd.allreduce_async(array, name="m", process_set=entry) for entry in others]
        if odd_set in mine and odd_set.size() > 1:
            disagree(way, odd_set)
        for handle in handles:
            np.testing.assert_array_equal(hvd.synchronize(handle), array)


def test_root(process_sets):
    for process_set in process_sets:
        if process_set.included() and process_set.size() > 1:
            root = process_set.ranks[min(process_set.rank(), 1)]
            text = r"Mismatched BROADCAST root ranks: .*root rank \d.*root rank \d"
            with pytest.raises(MismatchError, match=text):
                hvd.broadcast(ONES, root, "m", process_set)
            first = process_set.ranks[0]
            result = hvd.broadcast(ONES * hvd.rank(), first, "m", process_set)
            np.testing.assert_array_equal(result, ONES * first)


def test_a_group_that_fails_touches_nothing():
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")
    arrays = [np.full(3 + (hvd.rank() == 0 and i == 4), 7.0) for i in range(5)]
    with pytest.raises(MismatchError, match="tensor 5 of 5"):
        hvd.grouped_allreduce_(arrays, name="m", op=hvd.Sum)
    assert all(set(array) == {7.0} for array in arrays)


def test_many_disagreements_in_flight():
    """Errors of one bucket do not spread to the operations beside them."""
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")
    arrays = [np.ones(5 + (i % 3 == 0 and hvd.rank() == i % hvd.size())) for i in range(60)]
    order = np.random.default_rng(hvd.rank()).permutation(60)
    handles = {i: hvd.allreduce_async(arrays[i], name=f"many {i}", op=hvd.Sum) for i in order}
    for i, handle in handles.items():
        if i % 3 == 0:
            with pytest.raises(MismatchError, match=f"many {i}'"):
                hvd.synchronize(handle)
        else:
            assert hvd.synchronize(handle).tolist() == [hvd.size()] * 5


def test_mismatch_is_an_internal_error_for_scripts():
    assert issubclass(MismatchError, hvd.HorovodInternalError)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
