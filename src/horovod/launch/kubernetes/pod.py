"""The launcher in each pod: ``python -m horovod.launch.kubernetes.pod``, written into manifests.

Every pod starts its own processes with their ranks in the world of all pods. A pod exits with 0 if
all processes of all pods do. The pod that fails first exits with 1, and the others end themselves
with 143, so ``kubectl get pods`` shows where to look.

``PodRendezvous`` connects the pods: arrivals, failures, and a barrier after each line. Pod 0 runs a
store for the pods, and for each line a second store for its ranks, as a launcher does. A pod that
fails writes the reason into the pods' store. A thread of every pod waits for a failure there; then,
or when pod 0 is gone, it ends its pod with SIGTERM.
"""

from __future__ import annotations

import argparse
import ipaddress
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from horovod.core.base.checked import BadMessageError, printable
from horovod.core.base.rank_info import RankInfo
from horovod.errors import InitError
from horovod.launch.jobs.fixed import run_job
from horovod.launch.model.host_plan import Rendezvous
from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.launch.model.job_plan import JobPlan
from horovod.launch.workers.processes import describe_exit
from horovod.rendezvous.allgather import StoreAllgather
from horovod.rendezvous.base.authentication import prove
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.bootstrap import secret_in
from horovod.rendezvous.store.channel import StoreUnreachableError
from horovod.rendezvous.store.client import StoreClient, wait_for
from horovod.rendezvous.store.server import StoreServer
from horovod.settings import Settings

_FAILURE = "failure"
_RETRY_S = 0.5
_GOODBYE_S = 10.0
# A request is repeated after this time.
_REQUEST_S = 3600.0
_SHOWN = 16

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Pod:
    """One pod of ``count``. ``store`` is the name and port of the pods' store in pod 0."""

    index: int
    count: int
    store: tuple[str, int]
    secret: bytes = field(repr=False)


class PodRendezvous:
    """Connects the pods within ``with``; they wait ``timeout_s`` for each other.

    Entering raises InitError if pods do not arrive, or do not have the secret.
    """

    def __init__(self, pod: Pod, timeout_s: float) -> None:
        self._pod = pod
        self._deadline = Deadline(timeout_s)
        self._resources = ExitStack()
        self._addresses: list[str] = []  # of this pod, if it is pod 0
        self._is_over = False

    def __enter__(self) -> PodRendezvous:
        with ExitStack() as resources:
            if self._pod.index == 0:
                self._addresses = self._own_addresses()
                resources.enter_context(self._open_store())
            self._client = resources.enter_context(closing(self._connect()))
            self._arrive()
            news = resources.enter_context(closing(self._connect()))
            threading.Thread(
                target=self._await_failure, args=(news,), name="horovod-pods", daemon=True
            ).start()
            self._resources = resources.pop_all()
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is not None and not self._is_over:
            self.fail(str(error) if isinstance(error, Exception) else "was ended")
        self._is_over = True
        self._resources.close()

    def rendezvous_of(self, line: int) -> Rendezvous:
        """The rendezvous of the ranks of line number ``line``, with a secret of its own."""
        secret = prove(self._pod.secret, b"horovod line", str(line).encode())
        key = f"store/{line}"
        if self._pod.index == 0:
            addresses = [(self._addresses[0], 0)]
            server = self._resources.enter_context(StoreServer(secret, addresses=addresses))
            self._client.set(key, " ".join(map(str, server.address)).encode())
        return Rendezvous(*_address_in(wait_for(self._client, key)), secret)

    def finish(self, line: int) -> None:
        """Wait until all pods have finished the line. If a pod fails, this process ends."""
        barrier = self._barrier(f"end/{line}", Deadline(math.inf))
        barrier.post(b"")
        while barrier.poll(_REQUEST_S) is None:
            pass

    def fail(self, reason: str) -> None:
        """Tell the other pods that the job has failed."""
        self._is_over = True
        with suppress(InitError):
            self._client.set(_FAILURE, f"pod {self._pod.index}: {reason}".encode())

    def leave(self) -> None:
        """The job has finished. Pod 0 waits until the others know."""
        self._is_over = True
        barrier = self._barrier("leave", Deadline(_GOODBYE_S))
        with suppress(InitError):
            barrier.post(b"")
            if self._pod.index == 0:
                barrier.wait()

    def _open_store(self) -> StoreServer:
        addresses = [(address, self._pod.store[1]) for address in self._addresses]
        try:
            return StoreServer(self._pod.secret, addresses=addresses)
        except OSError as error:
            raise InitError(f"cannot listen at port {self._pod.store[1]}: {error}") from None

    def _own_addresses(self) -> list[str]:
        """The addresses of pod 0's name, which DNS may not have yet; pod 0 listens only there."""
        name, port = self._pod.store
        look_up = partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
        found = self._retried(look_up, f"{name} is no name of this pod")
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def _connect(self) -> StoreClient:
        def connect() -> StoreClient:
            timeout_s = max(self._deadline.remaining_s(), _RETRY_S)
            return StoreClient(self._pod.store, self._pod.secret, timeout_s=timeout_s)

        return self._retried(connect, f"pod 0 did not come within {self._deadline.timeout_s:g} s")

    def _retried(self, attempt: Callable[[], _Result], problem: str) -> _Result:
        while True:
            try:
                return attempt()
            except (OSError, StoreUnreachableError) as error:
                if self._deadline.has_passed:
                    raise InitError(f"{problem}: {error}") from None
            time.sleep(_RETRY_S)

    def _arrive(self) -> None:
        """Wait for all pods."""
        try:
            self._barrier("arrival", self._deadline).exchange(b"")
        except InitError as error:
            missing = error.ranks
            if not missing:
                raise
            shown = ", ".join(map(str, missing[:_SHOWN])) + ("..." if missing[_SHOWN:] else "")
            raise InitError(
                f"{len(missing)} of {self._pod.count} pods did not come within "
                f"{self._deadline.timeout_s:g} s: {shown}"
            ) from None

    def _barrier(self, key: str, deadline: Deadline) -> StoreAllgather:
        pods = range(self._pod.count)
        return StoreAllgather(self._client, self._pod.secret, key, self._pod.index, pods, deadline)

    def _await_failure(self, news: StoreClient) -> None:
        reason = "pod 0 is gone"
        with suppress(InitError, ValueError):
            reason = wait_for(news, _FAILURE).decode(errors="replace")
        if not self._is_over:
            self._is_over = True
            print(f"horovodrun: ending this pod: {reason}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)


def _address_in(value: bytes) -> tuple[str, int]:
    """The host and port of a store in pod 0's message; raises InitError."""
    host, _, port = value.decode(errors="replace").partition(" ")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        port = ""
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
        found = printable(repr(value[:80]))
        error = BadMessageError("store", "address", found, "an address and a port", "pod 0")
        raise InitError(str(error))
    return host, int(port)


# The launcher.

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
    slots = assign_ranks(hosts, given.num_proc)
    name = os.uname().nodename
    own = (slot for slot in slots if slot.hostname == str(pod.index))
    return tuple(replace(slot, hostname=name) for slot in own)


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
    with suppress(InitError):
        if secret := secret_in(environ):
            return secret
    raise ValueError(f"{_SECRET} is missing or not base64; the Secret of the job holds it")


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


if __name__ == "__main__":
    # The first process of a container has no default action for signals.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    sys.exit(main(sys.argv[1:], os.environ))
