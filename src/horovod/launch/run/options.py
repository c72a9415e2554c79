"""Checks the parameters of ``horovod.run`` before anything is started.

The only effect is to read a hostfile.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from horovod.launch.model.argument_checks import (
    check_count,
    check_integer,
    check_limits,
    check_seconds,
    renamed,
)
from horovod.launch.model.hosts import HostSlots, interface_names, parse_hostfile, parse_hosts
from horovod.launch.model.job_plan import ElasticPlan, JobPlan, Limits, OtherHosts, check_hosts
from horovod.launch.model.ssh import SshOptions
from horovod.launch.workers.machine import Placement, place
from horovod.launch.workers.python_command import python_command
from horovod.settings import Settings, environment_of

# Frames between the caller of horovod.run and the warning.
_STACKLEVEL = 5
# These have no effect without the parameters that make a job elastic.
_ELASTIC_PARAMETERS = ("max_num_proc", "reset_limit", "cooldown_range")


class RunOptions(NamedTuple):
    """A checked call of ``horovod.run``: a job of this launcher or, if ``uses_mpi``, of mpirun."""

    plan: JobPlan
    executable: str
    uses_mpi: bool = False
    mpi_options: tuple[str, ...] = ()


def check_options(given: Mapping[str, Any]) -> RunOptions:
    """The options in ``given``, the arguments of ``horovod.run`` by name.

    Raises:
        ValueError: arguments contradict each other, or a value is invalid.
        TypeError: an argument has another type than documented.
        OSError: the hostfile cannot be read.
    """
    values = _resolve_aliases(given)
    _refuse_conflicts(values)
    is_elastic = _is_elastic_run(values)
    _warn_of_unused(values, is_elastic)
    ssh, interfaces = _ssh(values), _interfaces(values)
    process_count = check_count("num_proc", values["num_proc"])
    hosts = _hosts(values, process_count)
    placement = Placement(()) if is_elastic else place(hosts, process_count)
    start_timeout_s = check_seconds("start_timeout", values["start_timeout"])
    waits_s = start_timeout_s or Settings.from_env().start_timeout_s
    chosen = {"start_timeout_s": start_timeout_s} if start_timeout_s else {}
    executable, uses_mpi = _executable(values["executable"]), bool(values["use_mpi"])
    folder = values["output_filename"]
    module = "run.mpi_function" if uses_mpi else "calls.worker"
    plan = JobPlan(
        command=tuple(python_command(executable, module)),
        slots=placement.slots,
        extra_environment=environment_of(chosen),
        is_verbose=bool(values["verbose"]),
        output_directory=None if folder is None else Path(folder),
        others=OtherHosts(placement.remote, ssh, interfaces, waits_s),
        hosts=hosts,
        elastic=_elastic_plan(values, process_count, hosts) if is_elastic else None,
    )
    return RunOptions(plan, executable, uses_mpi, _mpi_words(values))


def _resolve_aliases(given: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(given)
    for old, new, default in (
        ("np", "num_proc", 1),
        ("min_np", "min_num_proc", None),
        ("max_np", "max_num_proc", None),
        ("network_interface", "network_interfaces", None),
    ):
        values[new] = renamed(old, values.pop(old), new, values[new], _STACKLEVEL + 1, default)
    return values


def _refuse_conflicts(values: Mapping[str, Any]) -> None:
    for one, other in (
        ("hosts", "hostfile"),
        ("hosts", "host_discovery_script"),
        ("hostfile", "host_discovery_script"),
        ("use_gloo", "use_mpi"),
    ):
        if values[one] and values[other]:
            raise ValueError(f"give {one} or {other}, not both")


def _warn_of_unused(values: Mapping[str, Any], is_elastic: bool) -> None:
    """Warn of arguments without an effect on the job."""
    has_script = values["host_discovery_script"] is not None
    for names, where, is_used in (
        (("mpi_args",), "with use_mpi=True", values["use_mpi"]),
        (("slots",), "with host_discovery_script", has_script),
        (_ELASTIC_PARAMETERS, "in an elastic job, see min_num_proc", is_elastic),
    ):
        for name in names:
            if values[name] is not None and not is_used:
                text = f"{name}={values[name]!r} has an effect only {where}"
                warnings.warn(text, UserWarning, _STACKLEVEL)


def _mpi_words(values: Mapping[str, Any]) -> tuple[str, ...]:
    text = values["mpi_args"]
    if text is None:
        return ()
    if not isinstance(text, str):
        raise TypeError(f"mpi_args={text!r}: expected words in one text")
    return tuple(shlex.split(text))


def _ssh(values: Mapping[str, Any]) -> SshOptions:
    port, identity_file = values["ssh_port"], values["ssh_identity_file"]
    if port is not None and not 0 < check_integer("ssh_port", port) < 65536:
        raise ValueError(f"ssh_port={port!r}: expected a port number")
    return SshOptions(port, None if identity_file is None else str(Path(identity_file)))


def _interfaces(values: Mapping[str, Any]) -> tuple[str, ...]:
    names = values["network_interfaces"]
    if names is None:
        return ()
    texts = names.split(",") if isinstance(names, str) else list(names)
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"network_interfaces={names!r}: expected names, or one comma string")
    return interface_names(texts)


def _hosts(values: Mapping[str, Any], process_count: int) -> tuple[HostSlots, ...]:
    if values["hostfile"] is not None:
        return parse_hostfile(Path(values["hostfile"]).read_text(encoding="utf-8"))
    if values["hosts"] is not None:
        return parse_hosts(values["hosts"])
    if values["host_discovery_script"] is not None:
        return ()
    is_elastic = values["min_num_proc"] is not None
    most = values["max_num_proc"] if is_elastic else None
    return (HostSlots("localhost", most or process_count),)


def _executable(executable: str | None) -> str:
    name = executable or sys.executable
    if not name:
        raise ValueError("executable: this process does not know its Python interpreter; name one")
    if shutil.which(name) is None:
        raise ValueError(f"executable={name!r}: there is no such program that can be run")
    return name


# Elastic jobs.


def _is_elastic_run(values: Mapping[str, Any]) -> bool:
    """Whether the arguments of ``horovod.run`` describe an elastic job.

    Raises:
        ValueError: such a job cannot be what else is asked for.
    """
    is_elastic = values["min_num_proc"] is not None or values["host_discovery_script"] is not None
    if is_elastic and values["use_mpi"]:
        raise ValueError(
            "use_mpi=True and an elastic job: the processes that mpirun starts are always the same"
        )
    return is_elastic


def _elastic_plan(
    values: Mapping[str, Any], process_count: int, hosts: tuple[HostSlots, ...]
) -> ElasticPlan:
    """The elastic plan of arguments that ``_is_elastic_run`` has checked.

    Raises:
        ValueError: they contradict each other, or a value is out of its range.
        TypeError: one is of another kind than documented.
    """
    limits = _limits(values, process_count)
    script = values["host_discovery_script"]
    if script is None:
        check_hosts(hosts, limits, "cooldown_range=(1, 60)")
        return ElasticPlan(limits)
    command = os.fspath(script)
    if not command.strip():
        raise ValueError(
            f"host_discovery_script={script!r}: expected a command, for example './hosts.sh'"
        )
    slots = values["slots"]
    return ElasticPlan(limits, command, None if slots is None else check_count("slots", slots))


def _limits(values: Mapping[str, Any], np: int) -> Limits:
    given = (values["min_num_proc"], values["max_num_proc"], values["reset_limit"])
    limits = check_limits(np, *given, Settings.from_env().elastic_timeout_s)
    bounds = values["cooldown_range"]
    if bounds is None:
        return limits
    try:
        lower, upper = map(float, bounds)
    except (TypeError, ValueError):
        expected = "expected two numbers of seconds, for example (1, 60)"
        raise ValueError(f"cooldown_range={bounds!r}: {expected}") from None
    try:
        return replace(limits, cooldown=(lower, upper))
    except ValueError as error:
        raise ValueError(f"cooldown_range={bounds!r}: {error}") from None
