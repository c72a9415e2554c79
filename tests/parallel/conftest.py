"""Tests that every rank runs: ``horovodrun -np N python -m pytest tests/parallel``.

All ranks collect the same tests in the same order, so a test may use collectives freely. A test
that fails on one rank only would leave the others waiting; the stall shutdown time ends that.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import sets

# Ranks share the cores; threads of each rank's own would wait for each other there.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "20")
os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "40")
os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")

# Where the tensors of tests/parallel/torch are, as on a machine with a GPU: "cuda".
if "HOROVOD_TEST_DEVICE" in os.environ:
    import torch

    torch.set_default_device(os.environ["HOROVOD_TEST_DEVICE"])

# Not every environment has every framework: a binding's tests need its own.
collect_ignore = [
    name for name in ("torch", "tensorflow", "jax", "keras", "mxnet") if find_spec(name) is None
]
collect_ignore += ["torch_distributed"] if "torch" in collect_ignore else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A dtype has one of the modes, float32 has all: no code depends on a mode and on a dtype."""
    if os.environ.get("HOROVOD_TEST_ALL_MODES") == "1":
        return
    by_function: dict[str, list[tuple[pytest.Item, str, str]]] = defaultdict(list)
    for item in items:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        if parameters and {"dtype", "mode"} <= parameters.keys():
            dtype, mode = str(parameters["dtype"]), parameters["mode"]
            by_function[item.nodeid.partition("[")[0]].append((item, dtype, mode))
    left = set()
    for cases in by_function.values():
        modes = list(dict.fromkeys(mode for _, _, mode in cases))
        dtypes = list(dict.fromkeys(dtype for _, dtype, _ in cases))
        left |= {
            item
            for item, dtype, mode in cases
            if dtype not in ("float32", "f4")
            and dtypes.index(dtype) % len(modes) != modes.index(mode)
        }
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    """One world for the session; tests that end it start it again."""
    from horovod.core import world

    world.init()
    yield
    world.shutdown()


@pytest.fixture(scope="module")
def process_sets() -> Iterator[list[object]]:
    """The global process set and overlapping ones; a module that ends the world cannot use it."""
    from horovod.core import world

    world.init()
    with sets.registered(sets.overlapping(world.size())) as all_sets:
        yield all_sets
