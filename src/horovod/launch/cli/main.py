"""``horovodrun``: parses the command line, runs what it asks for, and prints errors as text."""

from __future__ import annotations

import errno
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod import __version__
from horovod.launch.cli.jobs import (
    controller_of,
    mpi_job,
    named_hosts,
    plan_of,
    plan_without_command,
    settings_environment,
)
from horovod.launch.cli.options import is_elastic, named_interfaces, split_command
from horovod.launch.cli.parser import command_problem, make_parser
from horovod.launch.jobs.fixed import run_job
from horovod.launch.kubernetes.options import pod_form
from horovod.launch.model.job_plan import JobPlan

# They have options of their own, and so come first.
_OWN_OPTIONS = ("--simulate", "--calibrate")
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run ``horovodrun`` with ``arguments`` (without its own name) and return its exit status.

    Blocks until the job has ended. Raises SystemExit for ``--help`` and wrong command lines.
    """
    environ = os.environ if environ is None else environ
    if arguments and arguments[0] in _OWN_OPTIONS:
        return _run_own(arguments, environ)
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions of a word
        import argcomplete  # here, because it is an extra

        argcomplete.autocomplete(parser)
    options, command = split_command(arguments, parser)
    given = parser.parse_args(options)
    if given.doctor:
        return _doctor(parser, options, command, environ)
    if given.version:
        print(__version__)
        return 0
    if given.check_build:
        print_build_table(given.verbose)
        return 0
    try:
        return _run(parser, given, command, environ)
    except KeyboardInterrupt:
        return 130


def _run_own(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    # Here, because jobs need neither NumPy nor tables.
    if arguments[0] == "--simulate":
        from horovod.launch.simulation.command import run_simulation

        return run_simulation(arguments[1:], environ)
    from horovod.launch.simulation.calibrate import run_calibration

    return run_calibration(arguments[1:])


def _run(
    parser: ArgumentParser, given: Namespace, command: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Run an experiment, a check of the network or a job."""
    try:
        if given.experiment is not None:
            return _run_experiment(given, command, environ)
        if given.dry_run:
            raise ValueError("--dry-run goes with --experiment FILE")
        if given.simulate or given.calibrate:
            raise ValueError(f"--{'simulate' if given.simulate else 'calibrate'} comes first")
        if given.check_network:
            return _check_network(given, command)
    except BrokenPipeError:  # of standard output
        raise
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        _check_command(given, command, environ)
        job = _job_or_status(given, command, environ)
    except BrokenPipeError:  # of standard output
        raise
    except (OSError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    return job if isinstance(job, int) else _run_plan(parser, job, environ)


def _check_command(given: Namespace, command: Sequence[str], environ: Mapping[str, str]) -> None:
    if given.json:
        raise ValueError("--json goes with --check-network or --doctor")
    if given.num_proc is None and "LSB_JOBID" not in environ:
        raise ValueError("say with -np how many processes to start, for example -np 2")
    if not command:
        raise ValueError("no command to run; for example: horovodrun -np 2 python train.py")
    if (problem := command_problem(command, environ)) is not None:
        raise ValueError(problem)


def _job_or_status(
    given: Namespace, command: Sequence[str], environ: Mapping[str, str]
) -> JobPlan | int:
    """The job, if horovodrun starts it; the status of a job that is printed or that MPI runs."""
    if (form := pod_form(given)) is not None:
        _refuse_others(given, "--kubernetes")
        # Here, because only manifests need YAML.
        from horovod.launch.kubernetes.manifest import manifest

        print(manifest(given, form, command, settings_environment(given)), end="")
        return 0
    if given.slurm_script:
        return _print_slurm_script(given, command)
    if given.slurm_args is not None:
        raise ValueError("--slurm-args goes with --slurm-script")
    controller = controller_of(given)
    if given.controller is None and "LSB_JOBID" in environ:
        controller = _controller_in_lsf(given, environ)
    if controller != "gloo":
        _refuse_others(given, f"--{controller}")
        return _run_by_mpi(given, controller, command, environ)
    return plan_of(given, command, environ)


def _run_plan(parser: ArgumentParser, plan: JobPlan, environ: Mapping[str, str]) -> int:
    try:
        if plan.elastic is not None:
            return _run_elastic(parser, plan, environ)
        return run_job(plan, environ).status
    except OSError as error:
        if error.errno in _SCARCE:
            sys.exit(
                f"horovodrun: the job cannot run: {error.strerror}; are there limits of open files "
                "or processes (ulimit -n, -u, or a container's)?"
            )
        if plan.output_directory is None:
            raise
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        parser.error(f"--output-filename: {reason}")


def _run_elastic(parser: ArgumentParser, plan: JobPlan, environ: Mapping[str, str]) -> int:
    # Here, because other jobs do not need it.
    from horovod.launch.elastic.driver import run_elastic_job
    from horovod.launch.elastic.memory import JobRefusedError

    try:
        return run_elastic_job(plan, environ).status
    except JobRefusedError as error:
        parser.error(f"--job-id: {error}")


def _print_slurm_script(given: Namespace, command: Sequence[str]) -> int:
    from horovod.launch.schedulers.slurm import batch_script

    _refuse_others(given, "--slurm-script", "Slurm starts its processes once")
    if given.hosts is not None or given.hostfile is not None:
        raise ValueError("--slurm-script and -H: Slurm chooses the nodes")
    slots, options = given.slots_per_host, given.slurm_args or ""
    script = batch_script(command, given.num_proc, slots, options, settings_environment(given))
    print(script, end="")
    return 0


def _run_experiment(given: Namespace, command: Sequence[str], environ: Mapping[str, str]) -> int:
    # Here, because only experiments need YAML and tables.
    from horovod.launch.experiment.command import print_file, run_file

    if given.num_proc is not None:
        raise ValueError("-np and --experiment: the file says how many processes there are")
    if command:
        raise ValueError(f"{command[0]}: a command and --experiment: the file says what to run")
    path = Path(given.experiment)
    if given.job_id is not None:
        raise ValueError("--job-id and --experiment: each line is a job of its own")
    _refuse_others(given, "--experiment", "an experiment keeps its size")
    if given.kubernetes is not None:
        if given.dry_run:
            raise ValueError("--dry-run and --kubernetes: a manifest starts nothing anyway")
        if given.slots_per_host is not None:
            raise ValueError("--slots-per-host and --experiment: the file says how many processes")
        return print_file(path, given, settings_environment(given))
    pod_form(given)
    hosts = named_hosts(given)
    options = plan_without_command(given, settings_environment(given), environ)
    return run_file(path, hosts=hosts, options=options, is_dry_run=given.dry_run, environ=environ)


def _check_network(given: Namespace, command: Sequence[str]) -> int:
    # Here, because jobs need neither tables nor NumPy.
    from horovod.launch.network.command import check_network

    if command:
        raise ValueError(f"{command[0]}: a command and --check-network, which runs its own")
    if given.num_proc is not None:
        raise ValueError(
            "-np and --check-network: it starts one process on each host of -H; leave out -np"
        )
    _refuse_others(given, "--check-network")
    return check_network(given, named_hosts(given), named_interfaces(given))


def _doctor(
    parser: ArgumentParser, options: Sequence[str], rest: Sequence[str], environ: Mapping[str, str]
) -> int:
    # Here, because jobs need neither NumPy nor tables.
    from horovod.launch.doctor.report import run_doctor

    # Options may follow the job.
    options, others = split_command([*options, *rest[1:]], parser)
    if others:
        parser.error(f"{others[0]}: --doctor looks at one job, {rest[0]}")
    given = parser.parse_args(options)
    known = {"doctor", "json"}
    for name, value in vars(given).items():
        if name not in known and value != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} and --doctor: it looks at a job only")
    return run_doctor(rest[0] if rest else "", environ, is_json=given.json)


def _refuse_others(
    given: Namespace, option: str, why: str = "its workers are started by horovodrun"
) -> None:
    """Refuse what ``option`` excludes: MPI, unless that is the option, elastic jobs and reports."""
    controller = controller_of(given)
    if f"--{controller}" not in ("--gloo", option):
        raise ValueError(f"--{controller} and {option}: the processes are started without MPI")
    if is_elastic(given):
        raise ValueError(f"{option} and an elastic job: {why}")
    if given.report is not None:
        raise ValueError(f"--report and {option}: a report is of one job that horovodrun starts")


def _controller_in_lsf(given: Namespace, environ: Mapping[str, str]) -> str:
    """Choose, without an option for it, what starts the processes in an LSF job; print it."""
    from horovod.launch.run.mpi_launch import why_no_jsrun

    own = is_elastic(given) or given.report is not None or named_hosts(given) is not None
    reason = "as the options require" if own else why_no_jsrun(environ)
    if reason:
        text, chosen = f"horovodrun starts the processes itself: {reason}", "gloo"
    else:
        text, chosen = "jsrun starts the processes; with --gloo horovodrun does it", "jsrun"
    print(f"horovodrun: in this LSF job {text}", file=sys.stderr)
    return chosen


def _run_by_mpi(
    given: Namespace, controller: str, command: Sequence[str], environ: Mapping[str, str]
) -> int:
    # Here, because few jobs need it.
    from horovod.launch.run import mpi_launch

    mpi_launch.check_mpi(f"--{controller}")
    job = mpi_job(given, command, environ)
    run = mpi_launch.run_jsrun if controller == "jsrun" else mpi_launch.become_mpirun
    return run(job, environ, settings_environment(given), is_verbose=given.verbose)


def print_build_table(is_verbose: bool) -> None:
    """Print what works here and, if ``is_verbose``, what is missing for the rest."""
    from horovod.launch.cli.build_info import build_table, problems

    print(("\n" if is_verbose else "") + build_table(__version__), end="")
    for problem in problems() if is_verbose else ():
        print(problem)
