"""The import paths that existing programs use lead to the one thing there is."""

from __future__ import annotations

import inspect

import pytest

import horovod
import horovod.runner
import horovod.runner.launch
from horovod import errors
from horovod.common import basics, exceptions
from horovod.common import process_sets as common_process_sets
from horovod.core import position, process_sets, world

# What ``world`` has for bindings of frameworks and not for scripts.
FOR_BINDINGS = {
    "at_end",
    "at_fork",
    "confirm",
    "current",
    "engine",
    "generation",
    "has_others",
    "has_place",
    "has_spare_cores",
    "init_as",
    "is_initialized",
    "metrics",
    "object_key",
    "settle",
    "port_address",
    "restart",
    "keep_failure",
    "take_failure",
    "rethrow_interrupt",
    "settings",
    "data_plane_name",
}
# Where the functions that ``world`` has are defined.
HOMES = (world.__name__, position.__name__)
RUN_PARAMETERS = (
    "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts "
    "hostfile host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache "
    "output_filename verbose use_gloo use_mpi mpi_args network_interface network_interfaces "
    "executable np min_np max_np"
)


def test_run() -> None:
    assert horovod.run is horovod.runner.run
    parameters = inspect.signature(horovod.run).parameters
    assert list(parameters) == RUN_PARAMETERS.split()
    defaults = [p.default for p in parameters.values()]
    assert defaults == [inspect.Parameter.empty, (), None, 1, *[None] * 23]
    assert callable(horovod.runner.launch.run_commandline)


@pytest.mark.parametrize("module", [horovod, horovod.runner])
def test_a_name_that_is_not_there(module: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'walk'"):
        module.walk  # type: ignore[attr-defined]  # noqa: B018


def test_errors() -> None:
    for name in exceptions.__all__:
        assert getattr(exceptions, name) is getattr(errors, name)
    interrupt = exceptions.HostsUpdatedInterrupt(skip_sync=True)
    assert isinstance(interrupt, RuntimeError)
    assert interrupt.skip_sync
    assert not exceptions.HostsUpdatedInterrupt().skip_sync
    mismatch = exceptions.HorovodVersionMismatchError("torch", "2.1", "2.0")
    assert isinstance(mismatch, ImportError)
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == ("torch", "2.1", "2.0")
    assert "torch 2.1 is in use" in str(mismatch)


def test_process_sets() -> None:
    for name in common_process_sets.__all__:
        assert getattr(common_process_sets, name) is getattr(process_sets, name)


def test_world_has_every_question_about_the_position() -> None:
    questions = {
        name: value
        for name, value in inspect.getmembers(position, inspect.isfunction)
        if value.__module__ == position.__name__
    }
    assert {"rank", "size", "has_others", "settings"} <= questions.keys()
    for name, question in questions.items():
        assert getattr(world, name) is question


def test_basics() -> None:
    handed_over = basics.HorovodBasics(__file__, "mpi_lib_v2")
    functions = {
        name
        for name, value in inspect.getmembers(world, inspect.isfunction)
        if value.__module__ in HOMES and not name.startswith("_")
    }
    assert {"init", "rank", "size"} <= functions
    for name in functions - FOR_BINDINGS:
        assert getattr(handed_over, name) is getattr(world, name)
    handed_over.init()
    try:
        assert handed_over.rank() == 0
        assert handed_over._get_process_set_ids_and_ranks() == {0: [0]}
    finally:
        handed_over.shutdown()
