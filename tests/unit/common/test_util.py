"""What programs ask of an installation, under the names by which they import it."""

from __future__ import annotations

import os
import sysconfig
import threading
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

import horovod.torch as hvd
from horovod.common import util
from horovod.core import built
from horovod.core.base import mpi_library
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.runner.util.threads import in_thread


@pytest.mark.parametrize(
    ("name", "is_there"),
    [("torch", True), ("horovod.torch", True), ("numpy", True), ("common", False), ("x.y", False)],
)
def test_extensions(name: str, is_there: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert util.extension_available(name, verbose=True) is is_there
    assert ("there is no module" in capsys.readouterr().err) is not is_there
    if is_there:
        util.check_extension(name, "HOROVOD_WITH_X", __file__, "mpi_lib_v2")
    else:
        with pytest.raises(ImportError, match="has not been built"):
            util.check_extension(name, "HOROVOD_WITH_X", __file__)


def test_what_is_built(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert util.gloo_built(verbose=True)
    found = [f(verbose=True) for f in (util.ddl_built, util.ccl_built)]
    assert found == [False] * 2
    monkeypatch.setattr(mpi_library, "why_not_built", lambda: "nothing is there")
    assert not util.mpi_built()
    assert capsys.readouterr().err == ""
    assert not util.mpi_built(verbose=True)
    assert capsys.readouterr().err == "Horovod: no MPI: nothing is there\n"
    assert util.nccl_built() == 0
    assert util.get_ext_suffix() == sysconfig.get_config_var("EXT_SUFFIX")
    util.check_installed_version("torch", "0.0.1")


def test_a_gpu_counts_only_if_collectives_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hvd, "_check_has_gpu", lambda: True)
    assert not util.gpu_available("torch", verbose=True)
    monkeypatch.setattr(built, "cuda_built", lambda: True)
    assert util.gpu_available("torch")
    assert not util.gpu_available("nothing")
    monkeypatch.setattr(hvd, "_check_has_gpu", lambda: False)
    assert not util.gpu_available("torch")


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD", "1")
    monkeypatch.setenv("GONE", "2")
    monkeypatch.delenv("NEW", raising=False)

    def inside() -> None:
        with util.env(OLD="x", NEW="y", GONE=None):
            assert (os.environ["OLD"], os.environ["NEW"]) == ("x", "y")
            assert "GONE" not in os.environ
            raise KeyError

    with pytest.raises(KeyError):
        inside()
    assert (os.environ["OLD"], os.environ["GONE"]) == ("1", "2")
    assert "NEW" not in os.environ


def test_a_cached_result_is_computed_once() -> None:
    calls: list[object] = []

    @util._cache
    def probe(x: int = 0, *, y: int = 0) -> int:
        """What it does."""
        calls.append((x, y))
        return x + y

    threads = [threading.Thread(target=probe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (probe(), probe(1), probe(1), probe(1, y=2)) == (0, 1, 1, 3)
    assert calls == [(0, 0), (1, 0), (1, 2)]
    assert probe.__doc__ == "What it does."


@pytest.mark.parametrize(
    ("ver", "target", "is_enough"),
    [
        ("2.1.0", "2.1.0", True),
        ("2.10.0", "2.9.9", True),
        ("1.13.1+cu117", "1.13.1", True),
        ("2.1", "2.1.0", True),
        ("2.1.0.post1", "2.1.0", True),
        ("2.1.0a0+git1", "2.1.0", False),
        ("2.1.0rc1", "2.1.0", False),
        ("2.1.0.dev5", "2.1.0", False),
        ("2.1.1rc1", "2.1.0", True),
        ("1.9.9", "1.10.0", False),
        ("1", "1.0.1", False),
    ],
)
def test_versions(ver: str, target: str, is_enough: bool) -> None:
    assert util.is_version_greater_equal_than(ver, target) is is_enough


@pytest.mark.parametrize(
    ("ver", "target"),
    [("1.0.0", "1.0"), ("1.0.0", "1.0.0rc1"), ("1.0.0", 1), (2.1, "1.0.0"), ("new", "1.0.0")],
)
def test_what_is_no_version(ver: object, target: object) -> None:
    with pytest.raises(ValueError, match="version"):
        util.is_version_greater_equal_than(ver, target)  # type: ignore[arg-type]


@given(st.lists(st.integers()), st.integers(1, 20))
def test_pieces_of_a_list(values: list[int], count: int) -> None:
    pieces = util.split_list(values, count)
    assert len(pieces) == count
    assert [value for piece in pieces for value in piece] == values
    lengths = [len(piece) for piece in pieces]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_powers_of_2() -> None:
    assert [n for n in range(-4, 20) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8, 16]


def test_the_operation_that_op_and_average_mean() -> None:
    ops = types.SimpleNamespace(Average="mean", Sum="sum")
    resolve = util.get_average_backwards_compatibility_fun(ops)
    assert (resolve(None, None), resolve(hvd.Sum, None), resolve(hvd.Max, None)) == (
        *("mean", "sum"),
        hvd.Max,
    )
    with pytest.warns(DeprecationWarning, match="op=Average"):
        assert resolve(None, False) == "sum"
    with pytest.warns(DeprecationWarning, match="op=Average"):
        assert resolve(None, True) == "mean"
    with pytest.raises(ValueError, match="not both"):
        resolve(hvd.Sum, True)


def test_in_thread() -> None:
    seen: list[tuple[object, ...]] = []
    thread = in_thread(lambda *words: seen.append(words), ("a", 1), name="worker")
    thread.join()
    assert seen == [("a", 1)]
    assert (thread.name, thread.daemon) == ("worker", True)
    assert not in_thread(len, ((),), daemon=False).daemon
    with pytest.raises(ValueError, match="expected a tuple"):
        in_thread(len, [()])  # type: ignore[arg-type]


def test_a_silent_thread_swallows_what_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda event: raised.append(event.exc_type))
    in_thread(int, ("x",), silent=True).join()
    assert raised == []
    in_thread(int, ("x",)).join()
    assert raised == [ValueError]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "PMI_RANK": "1", "PMI_SIZE": "2"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "PMI_RANK": "0"}, (1, 3)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
    ],
)
def test_rank_and_size_of_any_launcher(
    environ: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for prefix in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        monkeypatch.delenv(f"{prefix}_RANK", raising=False)
        monkeypatch.delenv(f"{prefix}_SIZE", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert get_env_rank_and_size() == expected


@pytest.mark.parametrize("name", ["HOROVOD_RANK", "PMI_SIZE"])
def test_a_rank_without_a_size_or_the_other_way_round(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for prefix in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        monkeypatch.delenv(f"{prefix}_RANK", raising=False)
        monkeypatch.delenv(f"{prefix}_SIZE", raising=False)
    monkeypatch.setenv(name, "1")
    with pytest.raises(RuntimeError, match=f"{name} is in the environment without"):
        get_env_rank_and_size()
