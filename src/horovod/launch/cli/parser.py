"""The parser of ``horovodrun``'s command line, with the texts of its help.

Mistakes are found before a process starts, with the word that was meant.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from horovod.launch.cli.options import add_options, file_form
from horovod.launch.model.argument_checks import OneLineParser

# Options of torchrun and mpirun, and what they are called here.
_OTHER_NAMES = {
    "--np": "-np",
    "-n": "-np",
    "--nproc": "-np",
    "--nproc-per-node": "-np, the number of processes on all hosts together",
    "--nnodes": "-H, the hosts with their slots, as in -H node-1:2,node-2:2",
    "--host": "-H",
    "--master-addr": "-H: horovodrun finds the addresses itself",
    "--master-port": "-H: horovodrun finds the ports itself",
    "--rdzv-endpoint": "-H: horovodrun finds the addresses itself",
    "--max-restarts": "--reset-limit, in an elastic job",
    "-x": "VAR=VALUE horovodrun ...: all processes get the environment of horovodrun",
}


class Parser(OneLineParser):
    """The one of ``horovodrun`` itself: it has a long help and ``short_help``, for most jobs."""

    def __init__(self, short_help: str, **details: Any) -> None:
        super().__init__(add_help=False, **details)
        self.short_help = short_help
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="print the usual options")
        self.add_argument("--help-all", action=_Help, nargs=0, help="print all of this")

    def problem_of(self, word: str) -> str:
        """A sentence about a word that is not known, perhaps an option of ``torchrun``."""
        name = word.partition("=")[0]
        meant = _OTHER_NAMES.get(name.replace("_", "-"))
        if meant is None:
            return super().problem_of(word)
        return f"{name}: no such option; did you mean {meant}?"


class _Help(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, given: Any, values: Any, option: str | None = None
    ) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_help() if option == "--help-all" else parser.short_help, end="")
        parser.exit()


def command_problem(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Why the command is no program but a Python file, or None."""
    word = command[0]
    if not word.endswith(".py") or " " in word:
        return None
    if shutil.which(word, path=environ.get("PATH", os.defpath)) is not None:
        return None
    what = "a Python file, not a program" if Path(word).is_file() else "no program"
    return f"{word}: {what}; did you mean: python {' '.join(command)}?"


def is_own_python(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the command is the Python that horovodrun runs in, which has the same packages."""
    found = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    return found is not None and Path(found).parent == Path(sys.executable).parent


_USAGE = """\
horovodrun -np N [options] command [argument ...]
       horovodrun --experiment FILE [--dry-run] [options]
       horovodrun --check-network [-H HOSTS] [--json]
       horovodrun --doctor [JOB] [--json]
       horovodrun --simulate RANKS [options]"""
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


_SHORT_HELP = """\
usage: horovodrun -np N [options] command [argument ...]

Start N processes of a command that train together, and end them together.

  horovodrun -np 4 python train.py --epochs 3            four processes on this machine
  horovodrun -np 6 -H node-1:2,node-2:4 python train.py  on two machines, by ssh
  horovodrun -np 4 --min-np 2 --host-discovery-script ./hosts.sh python train.py
                                                         machines come and go
  horovodrun --experiment riseml.yml                     the experiments of a file
  horovodrun --doctor                                    why a job is slow, hangs or has failed

usual options:
  -np N                   how many processes to start
  -H NAME:SLOTS,...       the machines, and how many processes each may run
  --hostfile PATH         the same as a file
  -p PORT, -i FILE        port and private key for ssh
  --network-interfaces A  interfaces that the machines use
  --output-filename DIR   keep the output of each rank in files
  --report FILE           write a page about the job when it has ended
  --timeline-filename F   record the operations for a trace viewer
  --log-level LEVEL       trace, debug, info, warning, error or fatal
  --autotune              find the best settings while the job runs
  --config-file YAML      settings in a file
  --verbose               say which processes start and end

  --check-build, --check-network, --version
  --help-all              all options, settings, files, variables and exit codes
"""


def make_parser() -> Parser:
    """The parser of all options."""
    parser = Parser(
        _SHORT_HELP,
        prog="horovodrun",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG.replace("{file}", indent(file_form(), "  ")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    return parser
