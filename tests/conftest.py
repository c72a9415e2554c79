"""What all tests and the jobs that they start have in their environment."""

import os
import zlib

import pytest

# Launchers say nothing about jobs that end well, unless a test wants to hear it.
os.environ["HOROVOD_QUIET"] = "1"
# A program of a test runs a few times: XLA takes longer to optimise it than that saves.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# What takes long and is of one kind: CI runs a third of it each day (HOROVOD_TEST_PART=0/3 to 2/3).
_DIVIDED = (
    "integration/test_data_planes.py",
    "integration/test_elastic_examples.py",
    "integration/test_examples.py",
    "integration/test_jax_examples.py",
    "integration/test_tensorflow_examples.py",
    "integration/test_tensorflow_failures.py",
    "integration/test_tensorflow_order.py",
    "integration/test_torch_distributed.py::test_an_example_learns",
    "integration/test_tutorials.py",
    "hosts/test_data_planes.py",
    "hosts/test_link_protection.py::test_collectives_are_right",
    "engines/estimators/test_examples.py",
)
# The bindings' tests, so that each day has the same time of them. Those of torch and NumPy on three
# ranks, and of three ranks on two hosts, are there every day.
_DAYS = {
    "test_parallel.py::test_on_one_rank": 0,
    "test_parallel_keras.py::test_on_two_ranks[tensorflow]": 0,
    "test_parallel.py::test_jax_without_native_ops": 0,
    "test_parallel.py::test_jax_on_two_ranks": 1,
    "test_parallel_keras.py::test_on_two_ranks[jax]": 1,
    "test_parallel_keras.py::test_callbacks_of_jax_on_more_ranks_than_cores": 1,
    "test_parallel.py::test_tensorflow_": 2,
    "test_parallel_keras.py::test_on_two_ranks[torch]": 2,
    "hosts/test_bodies.py::test_numpy": 0,
    "hosts/test_bodies.py::test_torch": 1,
    "hosts/test_bodies.py::test_what_is_special_about_hosts[1+1]": 1,
    "hosts/test_bodies.py::test_what_is_special_about_hosts[2+2]": 2,
    "hosts/test_bodies.py::test_what_is_special_about_hosts[1+1+1+1]": 2,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    part, _, parts = os.environ.get("HOROVOD_TEST_PART", "").partition("/")
    if not part:
        return
    for item in items:
        days = [day for name, day in _DAYS.items() if name in item.nodeid]
        if any(name in item.nodeid for name in _DIVIDED):
            days.append(zlib.crc32(item.nodeid.encode()))
        if any(day % int(parts) != int(part) for day in days):
            item.add_marker(pytest.mark.skip(reason="not in today's part of these tests"))
