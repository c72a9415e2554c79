"""The launcher in each pod: ``python -m horovod.launch.kubernetes.pod``, written into manifests.

Every pod starts its own processes with their ranks in the world of all pods. A pod exits with 0 if
all processes of all pods do. The pod that fails first exits with 1, and the others end themselves
with 143, so ``kubectl get pods`` shows where to look.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from horovod.core.base.rank_info import RankInfo
from horovod.errors import InitError
from horovod.launch.jobs.fixed import run_job
from horovod.launch.kubernetes.pod_rendezvous import Pod, PodRendezvous
from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.launch.model.job_plan import JobPlan
from horovod.launch.workers.processes import describe_exit
from horovod.settings import Settings

_INDEX = "JOB_COMPLETION_INDEX"
_SECRET = "_HOROVOD_SECRET_KEY"
# Nodes may take minutes to pull a large image.
_DEFAULT_TIMEOUT_S = 600.0


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run this pod's part of the job; returns the exit status. SystemExit for wrong arguments."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if bool(given.command) == bool(given.line):
        parser.error("expected a command, or lines")
    count = -(-given.num_proc // given.slots_per_host)
    try:
        pod = Pod(_index(environ, count), count, _store(given.store), _secret(environ))
        is_given = "HOROVOD_START_TIMEOUT" in environ
        timeout_s = Settings.from_env(environ).start_timeout_s if is_given else _DEFAULT_TIMEOUT_S
    except ValueError as error:
        parser.error(str(error))
    try:
        with PodRendezvous(pod, timeout_s) as rendezvous:
            return _run(_plans(given, pod), environ, rendezvous)
    except (InitError, OSError) as error:
        print(f"horovodrun: pod {pod.index} of {count}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(plans: Sequence[JobPlan], environ: Mapping[str, str], rendezvous: PodRendezvous) -> int:
    for number, plan in enumerate(plans):
        outcome = run_job(plan, environ, rendezvous.rendezvous_of(number))
        if outcome.status:
            worker = outcome.rank_info
            what = f"rank {worker.rank} {describe_exit(outcome.exit_code)}" if worker else ""
            rendezvous.fail(what or f"ended with status {outcome.status}")
            return outcome.status
        rendezvous.finish(number)
    rendezvous.leave()
    return 0


def _plans(given: argparse.Namespace, pod: Pod) -> list[JobPlan]:
    """One job for each line, or one for the command."""
    lines = [("/bin/sh", "-c", line) for line in given.line] or [tuple(given.command)]
    folder = None if given.output_filename is None else Path(given.output_filename)
    slots = _slots(given, pod)
    return [
        JobPlan(
            command=line,
            slots=slots,
            is_verbose=given.verbose,
            output_directory=folder / f"line.{number}" if folder and given.line else folder,
            is_timestamped=given.prefix_output_with_timestamp,
        )
        for number, line in enumerate(lines, start=1)
    ]


def _slots(given: argparse.Namespace, pod: Pod) -> tuple[RankInfo, ...]:
    """The slots of this pod, among those of all pods."""
    hosts = [HostSlots(str(index), given.slots_per_host) for index in range(pod.count)]
    name = os.uname().nodename
    return tuple(
        dataclasses.replace(slot, hostname=name)
        for slot in assign_ranks(hosts, given.num_proc)
        if slot.hostname == str(pod.index)
    )


def _index(environ: Mapping[str, str], count: int) -> int:
    text = environ.get(_INDEX, "")
    if not (text.isascii() and text.isdecimal() and int(text) < count):
        raise ValueError(f"{_INDEX}={text!r}: expected a number from 0 to {count - 1}")
    return int(text)


def _store(text: str) -> tuple[str, int]:
    name, _, port = text.rpartition(":")
    if not (name and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"--store {text}: expected NAME:PORT")
    return name, int(port)


def _secret(environ: Mapping[str, str]) -> bytes:
    try:
        secret = base64.b64decode(environ.get(_SECRET, ""), validate=True)
    except binascii.Error:
        secret = b""
    if not secret:
        raise ValueError(f"{_SECRET} is missing or not base64; the Secret of the job holds it")
    return secret


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovod.launch.kubernetes.pod",
        description="This pod's part of a job; 'horovodrun --kubernetes' writes the command.",
    )
    add = parser.add_argument
    add("-np", "--num-proc", type=int, required=True, help="processes of all pods")
    add("--slots-per-host", type=int, required=True, help="processes of each pod")
    add("--store", required=True, metavar="NAME:PORT", help="where pod 0 listens")
    add("--line", action="append", default=[], help="a line for the shell, instead of a command")
    add("--verbose", action="store_true", help="say which processes start and end")
    add("--output-filename", metavar="DIR", help="keep the lines of each rank there, too")
    add("--prefix-output-with-timestamp", action="store_true", help="begin lines with the time")
    add("command", nargs="*")
    return parser


def _exit_on_signal(signum: int, frame: FrameType | None) -> NoReturn:
    """The first process of a container has no default action for signals."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit_on_signal)
    sys.exit(main(sys.argv[1:], os.environ))
