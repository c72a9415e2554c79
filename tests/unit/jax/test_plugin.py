"""Whether the native plugin is used: chosen, tried out elsewhere, refused without harm."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

from horovod.core.base.plugins import works
from horovod.jax import plugin

REFUSED = """
import jax, jax.numpy as jnp
from pathlib import Path
import horovod.jax as hvd
from horovod.jax import plugin
plugin._TRIED = ((0, 0), (0, 0))
plugin._TEST_SCRIPT = {script!r}
hvd.init()
assert jax.jit(lambda x: hvd.allreduce(x + 1))(jnp.ones(2)).tolist() == [2.0, 2.0]
assert jax.grad(lambda x: hvd.allreduce(x) ** 2)(3.0) == 6.0
print(plugin.is_native())
"""


@pytest.fixture
def untried(monkeypatch, tmp_path):
    """A version of JAX that nobody has tried, with nothing remembered."""
    monkeypatch.setattr(plugin, "_TRIED", ((0, 0), (0, 0)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_test_passes_in_a_process_of_its_own(untried):
    version = (plugin._TRIED, plugin._TEST_SCRIPT)
    assert works(plugin._LIBRARY, "jax", jax.__version__, *version)


@pytest.mark.parametrize("script", ["raise SystemExit(1)", "import os; os.abort()"])
def test_what_fails_elsewhere_is_never_registered(untried, script):
    job = subprocess.run(
        [sys.executable, "-c", REFUSED.format(script=script)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert job.stdout.split() == ["False"], job.stderr
    assert job.stderr.count("run as host callbacks") == 1


@pytest.mark.parametrize(("value", "native"), [("0", "False"), ("1", "True")])
def test_the_setting(monkeypatch, value, native):
    monkeypatch.setenv("HOROVOD_JAX_NATIVE_OPS", value)
    script = "from horovod.jax.plugin import is_native; print(is_native())"
    job = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=500, check=True
    )
    assert job.stdout.split() == [native]


def test_a_missing_library_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(plugin, "_LIBRARY", tmp_path / "nothing.so")
    monkeypatch.setattr(plugin, "works", lambda *_: True)  # whatever the version
    with pytest.raises(ImportError, match="cannot be opened"):
        plugin._register()


@pytest.mark.parametrize(
    ("backend", "version", "has_cuda", "platforms"),
    [
        ("cpu", "cpu", True, ("cpu",)),
        ("gpu", "PJRT C API\ncuda 12090", True, ("cpu", "CUDA")),
        ("gpu", "cuda 12090", False, ()),
        ("gpu", "rocm 60000", True, ()),
        ("tpu", "libtpu", True, ()),
    ],
)
def test_which_platforms_have_a_handler(backend, version, has_cuda, platforms):
    assert plugin.platforms_for(backend, version, has_cuda) == platforms


def test_the_handler_for_cuda_is_in_the_library():
    plugin._register(("cpu", "CUDA"))
