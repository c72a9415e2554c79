"""The command line of ``horovodrun``: words to options, options to a job, errors to plain text."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.launch.hosts import HostSlots, parse_hostfile, parse_hosts
from horovod.launch.job import JobPlan, run_job
from horovod.launch.machine import local_slots

__all__ = ["main", "split_command"]

_WITH_VALUE = (
    *("-np", "--num-proc", "-H", "--hosts", "-hostfile", "--hostfile"),
    *("--start-timeout", "--output-filename", "-f", "--experiment"),
)
_USAGE = """\
horovodrun -np N [options] command [argument ...]
       horovodrun --experiment FILE [--dry-run] [options]"""
_DESCRIPTION = """\
Start N processes of a command that train together, and end them together.

The first word that is no option begins the command; everything after it belongs to the command.
"""
_EPILOG = """\
examples:
  horovodrun -np 4 python train.py --epochs 3     four processes on this machine
  horovodrun -np 2 -H localhost:4 python train.py    the same, limited to four slots
  horovodrun -np 2 "cd job && exec python train.py"  one quoted word is run by /bin/sh
  horovodrun --experiment riseml.yml --dry-run       show what the file would run

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

each worker gets:
  HOROVOD_RANK, HOROVOD_SIZE              its number, and how many there are
  HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE  the same among the workers of its machine
  HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE  the same among equal local ranks of all machines
  HOROVOD_HOSTNAME                        the name of its machine, as listed with -H
  and the environment of horovodrun. Rank 0 reads horovodrun's standard input, the others none.
  Its lines come out with [rank]<stdout>: or [rank]<stderr>: in front.

exit status:
  0 if all workers exit with 0, 1 if one fails (the others are ended), 2 for a wrong command line,
  126 or 127 if the command cannot be run or found, 130 after Ctrl-C, 143 after SIGTERM.
"""


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run ``horovodrun`` with ``arguments`` (without its own name) and return its exit status.

    Blocks until the job has ended. Raises SystemExit for ``--help`` and wrong command lines.
    """
    options, command = split_command(arguments)
    parser = _parser()
    given = parser.parse_args(options)
    if given.version:
        print(_version())
        return 0
    if given.check_build:
        print(("\n" if given.verbose else "") + _build_table(), end="")
        return 0
    if given.experiment is not None:
        return _run_experiment(parser, given, command, os.environ if environ is None else environ)
    if given.dry_run:
        parser.error("--dry-run goes with --experiment FILE")
    if given.num_proc is None:
        parser.error("say with -np how many processes to start, for example -np 2")
    if not command:
        parser.error("no command to run; for example: horovodrun -np 2 python train.py")
    try:
        plan = _plan(given, command)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        return run_job(plan, os.environ if environ is None else environ).status
    except OSError as error:
        if plan.output_directory is None:
            raise
        parser.error(f"--output-filename: {error}")
    except KeyboardInterrupt:
        return 130


def _run_experiment(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    command: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    # Here, because only experiments need YAML and tables.
    from horovod.launch.experiment.command import run_file
    from horovod.launch.experiment.plan import JobOptions

    if given.num_proc is not None:
        parser.error("-np and --experiment: the file says how many processes there are")
    if command:
        parser.error(f"{command[0]}: a command and --experiment: the file says what to run")
    try:
        return run_file(
            Path(given.experiment),
            hosts=_hosts(given),
            options=JobOptions(
                extra_environment=_extra_environment(given),
                is_verbose=given.verbose,
                output_directory=_output_directory(given),
            ),
            is_dry_run=given.dry_run,
            environ=environ,
        )
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options, and the command: from the first word that is neither option nor its value.

    Argparse alone would look for our options among the command's words, too.
    """
    words = list(arguments)
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[:index], words[index + 1 :]
        if not word.startswith("-") or word == "-":
            break
        index += 2 if _takes_next_word(word) else 1
    return words[:index], words[index:]


def _takes_next_word(option: str) -> bool:
    if option in _WITH_VALUE:
        return True
    # Long options may be abbreviated; with "=" the value is in the same word.
    is_long = option.startswith("--") and "=" not in option
    return is_long and any(known.startswith(option) for known in _WITH_VALUE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version number")
    add("-np", "--num-proc", type=_count, metavar="N", help="how many processes to start")
    _add_hosts(parser)
    add(
        "-f",
        "--experiment",
        metavar="FILE",
        help="run the experiments of a file, instead of one command, on this machine; see below",
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
        "--start-timeout",
        type=_seconds,
        metavar="SEC",
        help="how long the processes wait for each other in init "
        "(default: HOROVOD_START_TIMEOUT or 30)",
    )
    add(
        "--output-filename",
        metavar="DIR",
        help="keep the lines of each rank in DIR/rank.<R>/stdout and DIR/rank.<R>/stderr, too",
    )
    add("--gloo", action="store_true", help="run without MPI, on the native engine; the default")
    add("--verbose", action="store_true", help="say which processes start and end")
    return parser


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H",
        "--hosts",
        metavar="NAME:SLOTS",
        help="the machine and how many processes it may run; default localhost:N. "
        "This version starts processes on this machine only.",
    )
    hosts.add_argument(
        "-hostfile",
        "--hostfile",
        metavar="PATH",
        help="the same as a file with lines of the form: name slots=N",
    )


def _plan(given: argparse.Namespace, command: Sequence[str]) -> JobPlan:
    hosts = _hosts(given) or parse_hosts(f"localhost:{given.num_proc}")
    return JobPlan(
        command=tuple(command),
        slots=local_slots(hosts, given.num_proc),
        extra_environment=_extra_environment(given),
        is_verbose=given.verbose,
        output_directory=_output_directory(given),
    )


def _hosts(given: argparse.Namespace) -> tuple[HostSlots, ...] | None:
    """The hosts that were named; None if none were."""
    if given.hostfile is not None:
        return parse_hostfile(Path(given.hostfile).read_text(encoding="utf-8"))
    return None if given.hosts is None else parse_hosts(given.hosts)


def _extra_environment(given: argparse.Namespace) -> dict[str, str]:
    if given.start_timeout is None:
        return {}
    return {"HOROVOD_START_TIMEOUT": f"{given.start_timeout:g}"}


def _output_directory(given: argparse.Namespace) -> Path | None:
    return None if given.output_filename is None else Path(given.output_filename)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 100_000):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of processes, 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds above 0")
    return value


def _version() -> str:
    from horovod import __version__

    return __version__


def _build_table() -> str:
    from horovod.launch.build_info import build_table

    return build_table(_version())
