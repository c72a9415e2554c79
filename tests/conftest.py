"""What all tests and the jobs that they start have in their environment."""

import os
import zlib

import pytest

# Launchers say nothing about jobs that end well, unless a test wants to hear it.
os.environ["HOROVOD_QUIET"] = "1"
# A program of a test runs a few times: XLA takes longer to optimise it than that saves.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# What takes long and is of one kind: CI runs a sixth of it each day (HOROVOD_TEST_PART=0/6 to 5/6).
_DIVIDED = (
    "integration/test_compute_service.py",
    "integration/test_data_planes.py",
    "integration/test_elastic_examples.py",
    "integration/test_examples.py",
    "integration/test_experiment.py::test_the_example_trains_and_saves",
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
# Sets of tests, so that each day has about the same time of them; TensorFlow 2.15 and MXNet are on
# even days. Every day has the bindings of torch and NumPy on three ranks, and one set on hosts.
_DAYS = {
    "engines/estimators/": (0, 3),
    "engines/ray/": (1, 4),
    "engines/spark/": (2, 5),
    "test_parallel.py::test_on_one_rank": (1,),
    "test_parallel.py::test_jax_without_native_ops": (0,),
    "test_parallel_keras.py::test_on_two_ranks[jax]": (0,),
    "test_parallel_keras.py::test_callbacks_of_jax_on_more_ranks_than_cores": (0,),
    "test_parallel.py::test_jax_on_two_ranks": (2,),
    "test_parallel_keras.py::test_on_two_ranks[tensorflow]": (3,),
    "test_parallel_keras.py::test_on_two_ranks[torch]": (4,),
    "test_parallel.py::test_tensorflow_": (5,),
    "hosts/test_bodies.py::test_what_is_special_about_hosts[1+1]": (0,),
    "hosts/test_bodies.py::test_numpy": (1,),
    "hosts/test_bodies.py::test_what_is_special_about_hosts[2+2]": (2,),
    "hosts/test_bodies.py::test_torch": (3,),
    "hosts/test_bodies.py::test_what_is_special_about_hosts[1+1+1+1]": (4,),
    "hosts/test_bodies.py::test_what_is_special_about_hosts[1+2]": (5,),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    part, _, parts = os.environ.get("HOROVOD_TEST_PART", "").partition("/")
    if not part:
        return
    for item in items:
        if int(part) not in _days_of(item.nodeid, int(parts)):
            item.add_marker(pytest.mark.skip(reason="not in today's part of these tests"))


def _days_of(test: str, parts: int) -> list[int]:
    """The days that have this test, one at least: of divided tests, one of its set's days."""
    sets = [days for name, days in _DAYS.items() if name in test]
    days = [day for day in range(parts) if all(day in each for each in sets)]
    assert days, f"{test}: no day of {parts} has all of its sets"
    if any(name in test for name in _DIVIDED):
        return [days[zlib.crc32(test.encode()) % len(days)]]
    return days
