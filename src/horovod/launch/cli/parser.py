"""The parser of ``horovodrun``'s command line, with the texts of its help."""

from __future__ import annotations

import argparse
from textwrap import indent

from horovod.launch.cli.mistakes import Parser
from horovod.launch.cli.options import add_options, file_form
from horovod.launch.model.argument_checks import process_number

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
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version number")
    add("-np", "--num-proc", type=process_number, metavar="N", help="how many processes to start")
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
