"""Jobs for launchers that describe a job by an object with attributes.

A command runs below a supervisor, as a function of ``horovod.run`` does, so the caller's process
keeps its signal handlers and children.
"""

from __future__ import annotations

import inspect
import os
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.launch.cli import jobs
from horovod.launch.cli.main import print_build_table
from horovod.launch.cli.options import chosen_settings, named_interfaces, split_command
from horovod.launch.cli.parser import make_parser
from horovod.launch.compat.arguments import HorovodArgs, as_arguments, as_options
from horovod.launch.run import mpi_launch
from horovod.launch.run.function import run, run_as_given
from horovod.launch.run.supervision import supervise
from horovod.settings import environment_of

# The arguments of ``horovod.run`` that horovodrun knows by other names.
_DESTS = {"min_num_proc": "min_np", "max_num_proc": "max_np", "slots": "slots_per_host"}
_DESTS |= {"cooldown_range": "blacklist_cooldown_range"}
_DEPRECATED = ("min_np", "max_np", "network_interface")


def parse_arguments(words: Sequence[str] | None = None) -> HorovodArgs:
    """A command line of ``horovodrun``, by default this process's, as attributes.

    Raises:
        SystemExit: it is invalid, or asks for help.
    """
    parser = make_parser()
    options, command = split_command(sys.argv[1:] if words is None else words, parser)
    return as_arguments(parser.parse_args(options), command, parser)


def run_arguments(args: Any, environ: Mapping[str, str] | None = None) -> list[Any] | None:
    """Run the job of ``args``; returns the results of its ``run_func`` by rank, or None.

    Blocks until the job has ended. The workers have ``environ``, by default this process's.

    Raises:
        ValueError: attributes are missing or invalid, or contradict each other.
        RuntimeError: a process failed, or the job could not continue; the text has the first error.
        OSError: a named file cannot be read or written.
    """
    given = as_options(args, make_parser())
    if given.check_build:
        check_build(given.verbose)
        return None
    function, command = getattr(args, "run_func", None), getattr(args, "command", None)
    if function is not None:
        return _call(function, given, getattr(args, "executable", None), environ)
    words = [command] if isinstance(command, str) else [*(command or ())]
    if not words:
        raise ValueError("neither command nor run_func says what to run")
    _run_command(words, given, {**(os.environ if environ is None else environ)})
    return None


def choose_controller(
    use_gloo: bool | None,
    gloo_run: Callable[[], Any],
    use_mpi: bool | None,
    mpi_run: Callable[[], Any],
    use_jsrun: bool | None,
    js_run: Callable[[], Any],
    verbosity: int | None = None,
) -> Any:
    """Call the chosen one of three functions, by default ``gloo_run``.

    Raises:
        ValueError: MPI was chosen and cannot be used.
    """
    if not use_gloo and (use_mpi or use_jsrun):
        mpi_launch.check_mpi("use_mpi" if use_mpi else "use_jsrun")
        return mpi_run() if use_mpi else js_run()
    return gloo_run()


def check_build(verbose: bool | int | None = False) -> None:
    """Print the table of ``horovodrun --check-build``."""
    print_build_table(bool(verbose))


def make_check_build_action(np_arg: Action | None = None) -> type[Action]:
    """An action that prints that table and exits; ``np_arg`` is not required then."""

    class CheckBuild(Action):
        def __call__(self, parser: ArgumentParser, *_: Any) -> None:
            if np_arg is not None:
                np_arg.required = False
            check_build()
            parser.exit()

    return CheckBuild


def set_env_from_args(env: dict[str, str], args: Any) -> dict[str, str]:
    """``env`` with the variables of the settings that ``args`` chooses.

    Raises:
        ValueError: a setting has an invalid value.
    """
    given = as_options(args, make_parser())
    env.update(environment_of(chosen_settings(given)))
    return env


def _call(
    function: Callable[[], Any],
    given: Namespace,
    executable: str | None,
    environ: Mapping[str, str] | None,
) -> list[Any]:
    arguments = {name: p.default for name, p in inspect.signature(run).parameters.items()}
    for name in arguments.keys() - set(_DEPRECATED):
        if (value := getattr(given, _DESTS.get(name, name), None)) is not None:
            arguments[name] = value
    arguments.update(
        func=function,
        executable=executable,
        network_interfaces=",".join(named_interfaces(given)) or None,
        use_mpi=jobs.controller_of(given) != "gloo" or None,
    )
    return run_as_given(arguments, {**(environ or {}), **jobs.settings_environment(given)})


def _run_command(words: list[str], given: Namespace, environ: Mapping[str, str]) -> None:
    if jobs.controller_of(given) != "gloo":
        _run_by_mpi(words, given, environ)
        return
    plan = jobs.plan_of(given, words, environ)
    python, is_elastic = sys.executable or "python3", plan.elastic is not None
    outcome = supervise(lambda: plan, executable=python, is_elastic=is_elastic, environ=environ)
    if outcome.status != 0:
        text = outcome.text.strip().removeprefix("horovodrun: ")
        raise RuntimeError(text or f"horovodrun exited with status {outcome.status}")


def _run_by_mpi(words: list[str], given: Namespace, environ: Mapping[str, str]) -> None:
    mpi_launch.check_mpi(f"use_{given.controller}")
    job = jobs.mpi_job(given, words, environ)
    is_jsrun = given.controller == "jsrun"
    run = mpi_launch.run_jsrun if is_jsrun else mpi_launch.run_mpirun
    status = run(job, environ, jobs.settings_environment(given), is_verbose=bool(given.verbose))
    if status != 0:
        name = "jsrun" if is_jsrun else "mpirun"
        raise RuntimeError(f"{name} failed with exit code {status}")
