"""The command line of ``horovodrun``: words to options, options to a job, errors to plain text."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from horovod.launch.cli.elastic_options import elastic_job, is_elastic
from horovod.launch.cli.options import (
    add_options,
    chosen_settings,
    file_form,
    named_interfaces,
    split_command,
    unused_options,
)
from horovod.launch.jobs.fixed import run_job
from horovod.launch.jobs.report import REPORT_ENVIRONMENT, check_report
from horovod.launch.kubernetes.options import PodForm, pod_form
from horovod.launch.model.hosts import HostSlots, parse_hostfile, parse_hosts
from horovod.launch.model.job_plan import JobPlan, OtherHosts
from horovod.launch.model.ssh import SshOptions
from horovod.launch.workers.machine import place
from horovod.settings import Settings, environment_of
from horovod.trace.folders import JOB_ID

if TYPE_CHECKING:
    from horovod.launch.schedulers.mpirun import MpiJob

__all__ = [
    "controller_of",
    "main",
    "make_parser",
    "mpi_job",
    "plan_of",
    "print_build_table",
    "settings_environment",
]

_USAGE = """\
horovodrun -np N [options] command [argument ...]
       horovodrun --experiment FILE [--dry-run] [options]
       horovodrun --check-network [-H HOSTS] [--json]
       horovodrun --doctor [JOB] [--json]"""
_DESCRIPTION = """\
Start N processes of a command that train together, and end them together.

The first word that is no option begins the command; everything after it belongs to the command.
"""
_EPILOG = """\
examples:
  horovodrun -np 4 python train.py --epochs 3     four processes on this machine
  horovodrun -np 6 -H node-1:2,node-2:4 python train.py  two there, four there, by ssh
  horovodrun -np 2 "cd job && exec python train.py"  one quoted word is run by /bin/sh
  horovodrun -np 2 --log-level debug --output-filename logs python train.py
  horovodrun -np 4 --min-np 2 --host-discovery-script ./hosts.sh python train.py
                                     machines come and go (docs/elastic.md)
  horovodrun --experiment riseml.yml --dry-run       show what the file would run
  horovodrun --kubernetes -np 8 --kubernetes-image team/train:1 python train.py
                                     print a job of eight pods, for kubectl apply -f -
  horovodrun --doctor                  why the newest job is slow, hangs or has failed

an experiment file (docs/experiments.md):
  project: digits
  train:
    framework: tensorflow             # the section below is for programs of any framework
    tensorflow: {horovod: {workers: 2}}
    resources: {gpus: 0}
    parameters: {lr: [0.01, 0.02]}    # one experiment for each combination of values
    concurrency: 1                    # how many of them run at a time
    run:                              # all processes run a line, wait for each other, go on
      - python train.py --lr {{lr}}
  Folders of the experiments are made in ./output; processes find theirs in OUTPUT_DIR.

settings are environment variables of the workers. An option wins over the file of --config-file,
which wins over the environment of horovodrun. The keys of the file, with their defaults:

{file}
each worker gets:
  HOROVOD_RANK, HOROVOD_SIZE              its number, and how many there are
  HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE  the same among the workers of its machine
  HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE  the same among equal local ranks of all machines
  HOROVOD_HOSTNAME                        the name of its machine, as listed with -H
  and the environment of horovodrun, without CUDA_VISIBLE_DEVICES on other machines. Rank 0, if it
  is on this machine, reads horovodrun's standard input, the others none.
  Its lines come out with [rank]<stdout>: or [rank]<stderr>: in front.

exit status:
  0 if all workers exit with 0, 1 if one fails (the others are ended), 2 for a wrong command line,
  126 or 127 if the command cannot be run or found, 130 after Ctrl-C, 143 after SIGTERM.
  --doctor and --check-network: 0 if nothing is wrong, 1 if something is, 2 for a wrong command line
  or, with --doctor, without recordings to look at.
"""


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run ``horovodrun`` with ``arguments`` (without its own name) and return its exit status.

    Blocks until the job has ended. Raises SystemExit for ``--help`` and wrong command lines.
    """
    parser = make_parser()
    options, command = split_command(arguments, parser)
    given = parser.parse_args(options)
    if given.doctor:
        return _doctor(parser, options, command, os.environ if environ is None else environ)
    if given.version:
        print(_version())
        return 0
    if given.check_build:
        print_build_table(given.verbose)
        return 0
    if given.experiment is not None:
        return _run_experiment(parser, given, command, os.environ if environ is None else environ)
    if given.dry_run:
        parser.error("--dry-run goes with --experiment FILE")
    if given.check_network:
        return _check_network(parser, given, command)
    if given.json:
        parser.error("--json goes with --check-network or --doctor")
    environ = os.environ if environ is None else environ
    if given.num_proc is None and "LSB_JOBID" not in environ:
        parser.error("say with -np how many processes to start, for example -np 2")
    if not command:
        parser.error("no command to run; for example: horovodrun -np 2 python train.py")
    try:
        form = pod_form(given)
        elastic = is_elastic(given)
        if form is not None:
            _refuse_mpi(given, "--kubernetes")
            _refuse_elastic(elastic, "--kubernetes")
            _refuse_report(given, "--kubernetes")
            return _print_manifest(given, form, command)
        controller = controller_of(given)
        if given.controller is None and "LSB_JOBID" in environ:
            controller = _controller_in_lsf(given, elastic, environ)
        if controller != "gloo":
            _refuse_elastic(elastic, f"--{controller}")
            _refuse_report(given, f"--{controller}")
            return _run_by_mpi(given, controller, command, environ)
        plan = plan_of(given, command, environ)
    except (OSError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    try:
        if plan.elastic is not None:
            return _run_elastic(parser, plan, environ)
        return run_job(plan, environ).status
    except OSError as error:
        if plan.output_directory is None:
            raise
        parser.error(f"--output-filename: {error}")
    except KeyboardInterrupt:
        return 130


def _run_elastic(parser: argparse.ArgumentParser, plan: JobPlan, environ: Mapping[str, str]) -> int:
    # Here, because other jobs need none of it.
    from horovod.launch.elastic.driver import run_elastic_job
    from horovod.launch.elastic.memory import JobRefusedError

    try:
        return run_elastic_job(plan, environ).status
    except JobRefusedError as error:
        parser.error(f"--job-id: {error}")


def _print_manifest(given: argparse.Namespace, form: PodForm, command: Sequence[str]) -> int:
    # Here, because only manifests need YAML.
    from horovod.launch.kubernetes.command import manifest

    print(manifest(given, form, command, settings_environment(given)), end="")
    return 0


def _run_experiment(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    command: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    # Here, because only experiments need YAML and tables.
    from horovod.launch.experiment.command import print_file, run_file
    from horovod.launch.experiment.plan import JobOptions

    if given.num_proc is not None:
        parser.error("-np and --experiment: the file says how many processes there are")
    if command:
        parser.error(f"{command[0]}: a command and --experiment: the file says what to run")
    path = Path(given.experiment)
    try:
        if given.job_id is not None:
            raise ValueError("--job-id and --experiment: each line is a job of its own")
        _refuse_mpi(given, "--experiment")
        _refuse_report(given, "--experiment")
        if is_elastic(given):
            raise ValueError("--experiment and an elastic job: an experiment keeps its size")
        if given.kubernetes is not None:
            _refuse_with_pods(given)
            return print_file(path, given, settings_environment(given))
        pod_form(given)
        variables = settings_environment(given)
        return run_file(
            path,
            hosts=_hosts(given),
            options=JobOptions(
                extra_environment=variables,
                is_verbose=given.verbose,
                output_directory=_output_directory(given),
                is_timestamped=given.prefix_output_with_timestamp,
                others=_others(given, {**environ, **variables}),
            ),
            is_dry_run=given.dry_run,
            environ=environ,
        )
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


def _check_network(
    parser: argparse.ArgumentParser, given: argparse.Namespace, command: Sequence[str]
) -> int:
    # Here, because a job needs neither tables nor what is measured with.
    from horovod.launch.network.command import check_network

    if command:
        parser.error(f"{command[0]}: a command and --check-network, which runs its own")
    if given.num_proc is not None:
        parser.error("-np and --check-network: it starts one process on each host")
    try:
        _refuse_mpi(given, "--check-network")
        _refuse_elastic(is_elastic(given), "--check-network")
        _refuse_report(given, "--check-network")
        return check_network(given, _hosts(given), named_interfaces(given))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


def _doctor(
    parser: argparse.ArgumentParser,
    options: Sequence[str],
    rest: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    # Here, because a job needs neither NumPy nor tables.
    from horovod.launch.doctor.report import run_doctor

    # What follows the job is no command's.
    given = parser.parse_args([*options, *rest[1:]])
    known = {"doctor", "json"}
    for name, value in vars(given).items():
        if name not in known and value != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} and --doctor: it looks at a job only")
    return run_doctor(rest[0] if rest else "", environ, is_json=given.json)


def _refuse_mpi(given: argparse.Namespace, option: str) -> None:
    controller = controller_of(given)
    if controller != "gloo":
        raise ValueError(f"--{controller} and {option}: the processes are started without MPI")


def _refuse_elastic(is_elastic: bool, option: str) -> None:
    if is_elastic:
        raise ValueError(f"{option} and an elastic job: its workers are started by horovodrun")


def _refuse_report(given: argparse.Namespace, option: str) -> None:
    if given.report is not None:
        raise ValueError(f"--report and {option}: a report is of one job that horovodrun starts")


def _report(given: argparse.Namespace) -> Path | None:
    return None if given.report is None else check_report(Path(given.report))


def _refuse_with_pods(given: argparse.Namespace) -> None:
    if given.dry_run:
        raise ValueError("--dry-run and --kubernetes: a manifest starts nothing anyway")
    if given.slots_per_host is not None:
        raise ValueError("--slots-per-host and --experiment: the file says how many processes")


def make_parser() -> argparse.ArgumentParser:
    """What knows all options."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG.replace("{file}", indent(file_form(), "  ")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version number")
    add("-np", "--num-proc", type=_count, metavar="N", help="how many processes to start")
    add(
        "-f",
        "--experiment",
        metavar="FILE",
        help="run the experiments of a file instead of one command; see below",
    )
    add(
        "--dry-run",
        action="store_true",
        help="with --experiment: check the file and print what would run, and start nothing",
    )
    add(
        "-cb",
        "--check-build",
        action="store_true",
        help="print the frameworks, controllers and operations that work here",
    )
    add(
        "--check-network",
        action="store_true",
        help="measure latency and bandwidth between the hosts of -H, or within this machine, and "
        "name what is slow",
    )
    add(
        "--doctor",
        action="store_true",
        help="say why a job is slow, hangs or has failed, which rank is to blame and what to do: "
        "of a job that runs or has ended, by its id or a folder of recordings; default: the newest",
    )
    add(
        "--json",
        action="store_true",
        help="with --check-network or --doctor: print JSON for programs",
    )
    add("--verbose", action="store_true", help="say which processes start and end")
    add("--config-file", metavar="YAML", help="settings in a file, see below")
    add_options(parser)
    return parser


def plan_of(
    given: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]
) -> JobPlan:
    """The job of a command that we start ourselves.

    Raises:
        ValueError: options contradict each other.
        OSError: a file that they name cannot be read.
        RuntimeError: the hosts of an LSF job do not answer.
    """
    hosts = _hosts(given)
    variables = settings_environment(given)
    report = _report(given)
    plan = JobPlan(
        command=tuple(command),
        extra_environment={**variables, **(REPORT_ENVIRONMENT if report else {})},
        is_verbose=given.verbose,
        output_directory=_output_directory(given),
        is_timestamped=given.prefix_output_with_timestamp,
        others=_others(given, {**environ, **variables}),
        report=report,
    )
    if is_elastic(given):
        return elastic_job(given, replace(plan, hosts=hosts or ()), {**environ, **variables})
    if hosts is None and "LSB_JOBID" in environ:
        from horovod.launch.run.mpi_launch import lsf_hosts

        hosts = lsf_hosts(environ, SshOptions(given.ssh_port, given.ssh_identity_file))
    hosts = hosts or parse_hosts(f"localhost:{given.num_proc}")
    placement = place(hosts, given.num_proc or sum(host.slots for host in hosts))
    others = replace(plan.others, addresses=placement.remote)
    return replace(plan, slots=placement.slots, others=others)


def _others(
    given: argparse.Namespace,
    environ: Mapping[str, str],
    addresses: Mapping[str, tuple[str, ...]] | None = None,
) -> OtherHosts:
    return OtherHosts(
        addresses=addresses or {},
        ssh=SshOptions(given.ssh_port, given.ssh_identity_file),
        interfaces=named_interfaces(given),
        start_timeout_s=Settings.from_env(environ).start_timeout_s,
    )


def _hosts(given: argparse.Namespace) -> tuple[HostSlots, ...] | None:
    """The hosts that were named; None if none were."""
    if given.hostfile is not None:
        return parse_hostfile(Path(given.hostfile).read_text(encoding="utf-8"))
    return None if given.hosts is None else parse_hosts(given.hosts)


def _output_directory(given: argparse.Namespace) -> Path | None:
    return None if given.output_filename is None else Path(given.output_filename)


def settings_environment(given: argparse.Namespace) -> dict[str, str]:
    """What the workers read in ``init``, as far as an option or, after it, the file chose it."""
    chosen = chosen_settings(given)
    notices = unused_options(given, controller_of(given))
    if given.config_file is not None:
        # PyYAML costs as much as all the rest of a start.
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


def controller_of(given: argparse.Namespace) -> str:
    """What starts the processes: ``gloo`` (we do), ``mpi`` or ``jsrun``."""
    if given.controller is None and given.config_file is not None:
        from horovod.launch.cli.config_file import read_config_file

        given.controller = read_config_file(Path(given.config_file)).controller
    controller: str = given.controller or "gloo"
    return controller


def _controller_in_lsf(
    given: argparse.Namespace, is_elastic: bool, environ: Mapping[str, str]
) -> str:
    """What starts the processes in a job of LSF's without an option for it; prints which."""
    from horovod.launch.run.mpi_launch import why_no_jsrun

    own = is_elastic or given.report is not None or _hosts(given) is not None
    reason = "as the options want it" if own else why_no_jsrun(environ)
    if reason:
        said, chosen = f"horovodrun starts the processes itself: {reason}", "gloo"
    else:
        said, chosen = "jsrun starts the processes; with --gloo horovodrun does it", "jsrun"
    print(f"horovodrun: in this LSF job {said}", file=sys.stderr)
    return chosen


def _run_by_mpi(
    given: argparse.Namespace, controller: str, command: Sequence[str], environ: Mapping[str, str]
) -> int:
    # Here, because few jobs need it.
    from horovod.launch.run import mpi_launch

    mpi_launch.check_mpi()
    job = mpi_job(given, command, environ)
    run = mpi_launch.run_jsrun if controller == "jsrun" else mpi_launch.become_mpirun
    return run(job, environ, settings_environment(given), is_verbose=given.verbose)


def mpi_job(
    given: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]
) -> MpiJob:
    """The job of a command that ``mpirun`` or ``jsrun`` starts. Raises as ``plan_of``."""
    from horovod.launch.run import mpi_launch
    from horovod.launch.schedulers.mpirun import MpiJob

    ssh = SshOptions(given.ssh_port, given.ssh_identity_file)
    hosts = _hosts(given)
    if hosts is None and mpi_launch.is_lsf_job(environ):
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
        mpi_words=tuple(shlex.split(given.mpi_args or "")),
        binding_words=None if given.binding_args is None else tuple(given.binding_args.split()),
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 100_000):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of processes, 1 or more")
    return int(text)


def _version() -> str:
    from horovod import __version__

    return __version__


def print_build_table(is_verbose: bool) -> None:
    """What works here, and, if ``is_verbose``, what is missing for the rest."""
    from horovod.launch.cli.build_info import build_table, problems

    print(("\n" if is_verbose else "") + build_table(_version()), end="")
    for problem in problems() if is_verbose else ():
        print(problem)
