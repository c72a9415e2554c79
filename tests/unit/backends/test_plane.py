"""Choosing a data plane by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from horovod.backends import Backend
from horovod.backends.data_plane import find_backend
from horovod.backends.gloo import GlooBackend
from horovod.backends.mpi import MpiBackend
from horovod.errors import InitError

MODULE = """
from horovod.backends.gloo import GlooBackend

class Complete(GlooBackend):
    @classmethod
    def why_unavailable(cls):
        return None

class Lacking(Complete):
    @classmethod
    def why_unavailable(cls):
        return "its switch is off"
"""
ENTRY_POINTS = """
[horovod.backends]
Mine = plane_of_ours:Complete
lacking = plane_of_ours:Lacking
broken = plane_that_is_not_there:Backend
another = plane_of_ours:MODULE_CONSTANT
kind = pathlib:Path
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another installed package with a data plane."""
    (tmp_path / "plane_of_ours.py").write_text(MODULE)
    information = tmp_path / "plane_of_ours-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plane-of-ours\nVersion: 1\n"
    )
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("plane_of_ours", None)


def test_another_package_brings_a_data_plane() -> None:
    backend = find_backend("mine")
    assert issubclass(backend, Backend)
    assert backend.__name__ == "Complete"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    known = "another, broken, gloo, kind, lacking, mine, mpi, native"
    with pytest.raises(InitError, match=f"HOROVOD_CPU_OPERATIONS=ccl: .*known are {known}"):
        find_backend("ccl")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lacking", "its switch is off"),
        ("broken", "plane_that_is_not_there:Backend cannot be imported: No module"),
        ("another", "cannot be imported"),
        ("kind", "pathlib:Path is no subclass of horovod.backends.Backend"),
    ],
)
def test_an_unusable_data_plane_gives_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InitError, match=f"HOROVOD_CPU_OPERATIONS={name}: .*{reason}"):
        find_backend(name)


@pytest.mark.parametrize(
    ("backend", "package", "advice"),
    [(GlooBackend, "torch", "pip install torch"), (MpiBackend, "mpi4py", "pip install mpi4py")],
)
def test_a_missing_package_is_named_with_what_installs_it(
    backend: type[Backend], package: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("horovod.backends.gloo", "horovod.core.base.mpi_library"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    from horovod.core.base import mpi_library

    mpi_library.why_not_built.cache_clear()
    try:
        reason = backend.why_unavailable()
    finally:
        mpi_library.why_not_built.cache_clear()
    assert reason is not None
    assert package in reason
    assert advice in reason
