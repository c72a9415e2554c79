"""``horovod.run`` by ``mpirun``: the call goes through standard input, answers through a store.

``mpirun`` gives its standard input to rank 0, which passes the call on over MPI (``mpi_worker``).
With it travels the secret of a store that the caller keeps: each rank leaves its answer there.
"""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from horovod.launch.call import Call, Failure, is_result, memory_file, read_failure, read_result
from horovod.launch.call import write_call as write_call_to
from horovod.launch.call_error import unpickling_error
from horovod.launch.machine import is_this_machine
from horovod.launch.mpirun import MpiJob, detect_mpi, mpirun_environment, mpirun_words
from horovod.rendezvous.hosting import HostedStore, start_store
from horovod.rendezvous.reach import find_store
from horovod.rendezvous.store import StoreClient

__all__ = ["LENGTH", "PART_BYTES", "call_by_mpirun"]

# Of an answer, in one value of the store.
PART_BYTES = 60_000
# Before the call.
LENGTH = struct.Struct(">Q")
_STORE_TIMEOUT_S = 30.0


def call_by_mpirun(job: MpiJob, call: Call, environ: Mapping[str, str]) -> list[Any]:
    """Run ``call`` on the processes of ``job``, whose command is that of a worker; results by rank.

    Raises:
        RuntimeError: mpirun failed, or is not there; the text has its exit code, and what the rank
            said that failed first.
        ValueError: this MPI cannot do what is asked for.
    """
    environment = mpirun_environment(environ, {}, job)
    words = mpirun_words(job, detect_mpi(environment), environment)
    spans_hosts = not all(is_this_machine(host.hostname) for host in job.hosts)
    hosted = start_store(spans_hosts, job.interfaces)
    try:
        exit_code = _run(words, environment, _payload(call, hosted))
        answers = _Answers(hosted, job.process_count)
        if exit_code != 0:
            raise _error(exit_code, answers.failures())
        return answers.results()
    finally:
        if hosted.server is not None:
            hosted.server.close()


def _payload(call: Call, hosted: HostedStore) -> bytes:
    """Its length, since Open MPI 5 does not pass on the end; a line about the store; the call."""
    stream = io.BytesIO()
    write_call_to(call, stream)
    content = hosted.encoded() + b"\n" + stream.getvalue()
    return LENGTH.pack(len(content)) + content


def _run(words: list[str], environment: Mapping[str, str], payload: bytes) -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, broken, closed
            stream.flush()
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, env=dict(environment), start_new_session=True
    ) as process:
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended early, and says why
                process.communicate(payload)
            return process.wait()
        except BaseException:
            process.terminate()
            raise


class _Answers:
    """What the ranks left in the store."""

    def __init__(self, hosted: HostedStore, count: int) -> None:
        store = find_store(hosted.addresses, hosted.secret, _STORE_TIMEOUT_S)
        try:
            self._files = [self._file(store, rank) for rank in range(count)]
        finally:
            store.close()

    def results(self) -> list[Any]:
        results = []
        for rank, file in enumerate(self._files):
            if not is_result(file.fileno()):
                raise RuntimeError(f"mpirun succeeded, but rank {rank} left no result")
            try:
                results.append(read_result(file))
            except Exception as error:
                raise unpickling_error(rank, error) from error
        return results

    def failures(self) -> dict[int, Failure]:
        found = {rank: read_failure(file) for rank, file in enumerate(self._files)}
        return {rank: failure for rank, failure in found.items() if failure is not None}

    def _file(self, store: StoreClient, rank: int) -> Any:
        file = memory_file()
        try:
            count = int(store.get(f"answer/{rank}/parts", 0.0))
        except TimeoutError:
            return file
        for part in range(count):
            file.write(store.get(f"answer/{rank}/{part}", 0.0))
        file.flush()
        return file


def _error(exit_code: int, failures: Mapping[int, Failure]) -> RuntimeError:
    text = f"mpirun failed with exit code {exit_code}"
    if not failures:
        return RuntimeError(f"{text}; its output says why")
    rank = min(failures, key=lambda rank: failures[rank].time_ns)
    first = failures[rank]
    error = RuntimeError(f"{text}; rank {rank} {first.what}\n{first.traceback.rstrip()}")
    error.__cause__ = first.exception()
    return error
