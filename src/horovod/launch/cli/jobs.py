"""From a parsed command line to the job that it describes."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.launch.cli.options import chosen_settings, is_elastic, named_interfaces, unused_options
from horovod.launch.cli.parser import is_own_python
from horovod.launch.jobs.report import REPORT_ENVIRONMENT
from horovod.launch.model.argument_checks import writable_file
from horovod.launch.model.host_plan import command_argv
from horovod.launch.model.hosts import HostSlots, parse_hostfile, parse_hosts
from horovod.launch.model.job_plan import ElasticPlan, JobPlan, Limits, OtherHosts, check_hosts
from horovod.launch.model.ssh import SshOptions
from horovod.launch.workers.debugger import debugged
from horovod.launch.workers.machine import place
from horovod.settings import Settings, environment_of
from horovod.trace.folders import JOB_ID
from horovod.trace.setup import DYNAMIC

if TYPE_CHECKING:
    from horovod.launch.schedulers.mpirun import MpiJob


def plan_of(given: Namespace, command: Sequence[str], environ: Mapping[str, str]) -> JobPlan:
    """The job of a command whose processes horovodrun starts itself.

    Raises:
        ValueError: options contradict each other.
        OSError: a named file cannot be read, or the timeline cannot be written.
        RuntimeError: the hosts of an LSF job do not answer.
    """
    hosts = named_hosts(given)
    variables = settings_environment(given)
    settings = Settings.from_env({**environ, **variables})
    if settings.metrics_port and is_own_python(command, environ):
        from horovod.metrics.setup import check_export

        check_export(settings)
    report = None if given.report is None else writable_file("--report", Path(given.report))
    plan = replace(
        plan_without_command(given, variables, environ),
        command=tuple(command),
        extra_environment={**variables, **(REPORT_ENVIRONMENT if report else {})},
        has_full_prefix=given.full_prefix,
        is_quiet=settings.quiet or given.debug_rank is not None,
        report=report,
    )
    if is_elastic(given):
        if given.debug_rank is not None:
            raise ValueError("--debug-rank and an elastic job: its ranks change")
        return _elastic_job(given, replace(plan, hosts=hosts or ()), {**environ, **variables})
    if hosts is None and "LSB_JOBID" in environ:
        from horovod.launch.run.mpi_launch import lsf_hosts

        hosts = lsf_hosts(environ, plan.others.ssh)
    hosts = hosts or parse_hosts(f"localhost:{given.num_proc}")
    placement = place(hosts, given.num_proc or sum(host.slots for host in hosts))
    if placement.slots[0].hostname not in placement.remote:
        _check_folder("--timeline-filename", "HOROVOD_TIMELINE", settings.timeline)
        if settings.autotune:
            _check_folder("--autotune-log-file", "HOROVOD_AUTOTUNE_LOG", settings.autotune_log)
    others = replace(plan.others, addresses=placement.remote)
    return _with_debugger(given, replace(plan, slots=placement.slots, others=others), environ)


def _check_folder(option: str, variable: str, name: str) -> None:
    """``OSError`` if rank 0, on this machine, could not write the file that ``option`` names."""
    folder = Path(name).parent
    if name in ("", DYNAMIC) or os.access(folder, os.W_OK):
        return
    problem = "cannot be written to" if folder.is_dir() else "is no folder"
    raise OSError(f"{option} {name} ({variable}): {folder} {problem}")


def _elastic_job(given: Namespace, plan: JobPlan, environ: Mapping[str, str]) -> JobPlan:
    """``plan`` with what the command line says of an elastic job.

    ``environ`` has the settings that it chose.

    Raises:
        ValueError: options are missing or contradict each other.
    """
    count = given.num_proc
    if count is None:
        raise ValueError("say with -np how many processes to start with, for example -np 2")
    bounds = given.blacklist_cooldown_range
    limits = Limits(
        np=count,
        min_np=count if given.min_np is None else given.min_np,
        max_np=given.max_np,
        reset_limit=given.reset_limit,
        elastic_timeout_s=Settings.from_env(environ).elastic_timeout_s,
        cooldown=None if bounds is None else (bounds[0], bounds[1]),
    )
    script, hosts = given.host_discovery_script or "", plan.hosts
    if given.host_discovery_script is None:
        hosts = hosts or (HostSlots("localhost", given.max_np or count),)
        check_hosts(hosts, limits, "--blacklist-cooldown-range 1 60")
    elif not script.strip():
        raise ValueError("--host-discovery-script: expected a command, for example ./hosts.sh")
    elastic = ElasticPlan(limits, script, given.slots_per_host, given.job_id or "")
    return replace(plan, hosts=hosts, elastic=elastic)


def _with_debugger(given: Namespace, plan: JobPlan, environ: Mapping[str, str]) -> JobPlan:
    rank, port = given.debug_rank, given.debug_port
    if rank is None:
        if port is not None:
            raise ValueError("--debug-port goes with --debug-rank")
        return plan
    if rank >= len(plan.slots):
        raise ValueError(f"--debug-rank {rank}: expected a rank from 0 to {len(plan.slots) - 1}")
    if (host := plan.slots[rank].hostname) in plan.others.addresses:
        raise ValueError(f"--debug-rank {rank}: it is on {host}; expected one on this machine")
    debugged(command_argv(plan.command), port)
    if port is not None and is_own_python(plan.command, environ) and not find_spec("debugpy"):
        raise ValueError("--debug-port needs debugpy: pip install debugpy")
    return replace(plan, debug_rank=rank, debug_port=port)


def mpi_job(given: Namespace, command: Sequence[str], environ: Mapping[str, str]) -> MpiJob:
    """The job of a command that ``mpirun`` or ``jsrun`` starts. Raises as ``plan_of``."""
    from horovod.launch.run import mpi_launch
    from horovod.launch.schedulers.mpirun import MpiJob

    ssh = SshOptions(given.ssh_port, given.ssh_identity_file)
    hosts = named_hosts(given)
    if hosts is None and "LSB_JOBID" in environ:
        hosts = mpi_launch.lsf_hosts(environ, ssh)
    count = given.num_proc or sum(host.slots for host in hosts or ())
    return MpiJob(
        command=tuple(command),
        process_count=count,
        hosts=hosts or (HostSlots("localhost", count),),
        ssh=ssh,
        interfaces=named_interfaces(given),
        output_directory=_output_directory(given),
        is_timestamped=given.prefix_output_with_timestamp,
        is_tcp_only=given.tcp,
        mpi_options=tuple(shlex.split(given.mpi_args or "")),
        binding_options=None if given.binding_args is None else tuple(given.binding_args.split()),
    )


def plan_without_command(
    given: Namespace, variables: Mapping[str, str], environ: Mapping[str, str]
) -> JobPlan:
    """The part of a plan that all jobs have; workers get ``variables`` on top of ``environ``."""
    timeout_s = Settings.from_env({**environ, **variables}).start_timeout_s
    ssh = SshOptions(given.ssh_port, given.ssh_identity_file)
    return JobPlan(
        extra_environment=variables,
        is_verbose=given.verbose,
        output_directory=_output_directory(given),
        is_timestamped=given.prefix_output_with_timestamp,
        others=OtherHosts(ssh=ssh, interfaces=named_interfaces(given), start_timeout_s=timeout_s),
    )


def named_hosts(given: Namespace) -> tuple[HostSlots, ...] | None:
    """The named hosts; None without -H and --hostfile."""
    if given.hostfile is not None:
        return parse_hostfile(_text_of_hostfile(Path(given.hostfile)))
    return None if given.hosts is None else parse_hosts(given.hosts)


def _text_of_hostfile(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"--hostfile {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--hostfile {path}: expected text, in UTF-8") from None


def _output_directory(given: Namespace) -> Path | None:
    return None if given.output_filename is None else Path(given.output_filename)


def settings_environment(given: Namespace) -> dict[str, str]:
    """The variables of the settings that options or the configuration file have chosen."""
    chosen = chosen_settings(given)
    notices = unused_options(given, controller_of(given))
    if given.config_file is not None:
        # Importing PyYAML takes as long as the rest of the start.
        from horovod.launch.cli.config_file import read_config_file

        found = read_config_file(Path(given.config_file))
        chosen = {**found.settings, **chosen}
        notices += found.notices
    for notice in notices:
        print(f"horovodrun: {notice}", file=sys.stderr)
    variables = environment_of(chosen)
    if given.tcp:
        variables["NCCL_IB_DISABLE"] = "1"
    return variables if given.job_id is None else {**variables, JOB_ID: given.job_id}


def controller_of(given: Namespace) -> str:
    """The starter of the processes: ``gloo`` (horovodrun itself), ``mpi`` or ``jsrun``."""
    if given.controller is None and given.config_file is not None:
        from horovod.launch.cli.config_file import read_config_file

        given.controller = read_config_file(Path(given.config_file)).controller
    return str(given.controller or "gloo")
