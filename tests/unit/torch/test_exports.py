"""The package exports what it says, imports explain themselves."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
import torch

import horovod.torch as hvd
from horovod.torch import compression, differentiable, elastic, functions, mpi_ops, optimizer


@pytest.mark.parametrize(
    "module",
    [hvd, compression, differentiable, elastic, elastic.state, functions, mpi_ops, optimizer],
    ids=str,
)
def test_all_lists_existing_names_once(module):
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)


@pytest.mark.parametrize("module", [hvd, mpi_ops], ids=str)
def test_all_lists_every_public_name(module):
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public - {"Any", "TYPE_CHECKING", "annotations"} <= set(module.__all__)


def test_package_and_mpi_ops_share_objects():
    for name in set(hvd.__all__) & set(mpi_ops.__all__):
        assert getattr(hvd, name) is getattr(mpi_ops, name)
    assert not hasattr(hvd, "is_homogeneous")
    assert callable(mpi_ops.is_homogeneous)


def test_reduce_ops_are_the_documented_numbers():
    assert (hvd.Average, hvd.Sum, hvd.Adasum) == (0, 1, 2)
    assert (hvd.Min, hvd.Max, hvd.Product) == (3, 4, 5)


def test_import_without_torch_says_what_to_install():
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import horovod.torch\n"
        "except ImportError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=500
    )
    assert "pip install 'horovod[pytorch]'" in result.stdout


@pytest.mark.skipif(
    not hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy"),
    reason="an older torch, whose compiler has to know our files",
)
def test_the_compiler_is_imported_by_programs_that_compile():
    script = (
        "import sys, torch\nbefore = set(sys.modules)\nimport horovod.torch\n"
        "print(*(name for name in set(sys.modules) - before if '_dynamo' in name))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=500
    )
    assert result.stdout == "\n"


def test_check_has_gpu():
    assert isinstance(hvd._check_has_gpu(), bool)
