"""``horovod.run`` by ``mpirun``: call and answers go through a store in the caller's process.

Rank 0 gets the store's address and secret from ``mpirun`` on standard input and broadcasts them
over MPI (``main`` below). All MPIs pass on that much input, but MPICH 5 not much more. The secret
is for this call alone, and nothing is unpickled without a proof of it.
"""

from __future__ import annotations

import io
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from subprocess import PIPE, Popen
from typing import Any, NoReturn

from horovod.core.base import mpi_library
from horovod.launch.calls.call import RESULT, Call, memory_file, read_failure, write_call
from horovod.launch.calls.worker import run_call
from horovod.launch.run.call_error import result_of
from horovod.launch.run.supervision import flush_streams
from horovod.launch.schedulers.mpirun import MpiJob, detect_mpi, mpirun_argv, mpirun_environment
from horovod.launch.workers.machine import is_this_machine
from horovod.rendezvous.identity.mpi import broadcast
from horovod.rendezvous.store.client import Store, StoreClient
from horovod.rendezvous.store.hosted import HostedStore, find_store, start_store
from horovod.rendezvous.store.proven_values import ProvenValues, UnprovenError

LENGTH = struct.Struct(">I")
STORE_TIMEOUT_S = 30.0


def call_by_mpirun(job: MpiJob, call: Call, environ: Mapping[str, str]) -> list[Any]:
    """Run ``call`` in the processes of ``job``, whose command starts a worker; results by rank.

    Raises:
        RuntimeError: mpirun failed, or is not there; the text has its exit code, and what the rank
            said that failed first.
        ValueError: this MPI cannot do what is asked for.
    """
    environment = mpirun_environment(environ, {}, job)
    argv = mpirun_argv(job, detect_mpi(environment), environment)
    spans_hosts = not all(is_this_machine(host.hostname) for host in job.hosts)
    hosted = start_store(spans_hosts, job.interfaces)
    try:
        with closing(find_store(hosted.addresses, hosted.secret, STORE_TIMEOUT_S)) as store:
            values = call_values(store, hosted.secret)
            pickled, content = io.BytesIO(), hosted.to_bytes()
            write_call(call, pickled)
            values.put("call", pickled.getvalue())
            # The length goes first: Open MPI 5 does not pass on the end of input.
            exit_code = _run(argv, environment, LENGTH.pack(len(content)) + content)
            answers = [_answer_of(values, rank) for rank in range(job.process_count)]
            if exit_code != 0:
                raise _error(exit_code, answers)
            return [_result(rank, answer) for rank, answer in enumerate(answers)]
    finally:
        if hosted.server is not None:
            hosted.server.close()


def call_values(store: Store, secret: bytes) -> ProvenValues:
    """The values ``call`` and ``answer/<rank>`` in the job's store."""
    return ProvenValues(store, secret, b"horovod call")


def _run(argv: list[str], environment: Mapping[str, str], payload: bytes) -> int:
    flush_streams()
    with Popen(argv, stdin=PIPE, env=dict(environment), start_new_session=True) as process:
        try:
            with suppress(BrokenPipeError):  # it ended early, and says why
                process.communicate(payload)
            return process.wait()
        except BaseException:
            process.terminate()
            raise


def _answer_of(values: ProvenValues, rank: int) -> io.BytesIO:
    """A file with the answer of a rank; empty if there is none.

    Raises:
        RuntimeError: what is there is not what the rank has left.
    """
    try:
        return io.BytesIO(values.take(f"answer/{rank}", 0.0) or b"")
    except UnprovenError:
        raise RuntimeError(
            f"the answer of rank {rank} has no proof of the job's secret, so it was altered on the "
            "way; it was not unpickled"
        ) from None


def _result(rank: int, answer: io.BytesIO) -> Any:
    if answer.read(1) != RESULT:
        raise RuntimeError(f"mpirun succeeded, but rank {rank} left no result")
    return result_of(rank, answer)


def _error(exit_code: int, answers: Sequence[io.BytesIO]) -> RuntimeError:
    text = f"mpirun failed with exit code {exit_code}"
    reported = {rank: read_failure(answer) for rank, answer in enumerate(answers)}
    failures = {rank: failure for rank, failure in reported.items() if failure is not None}
    if not failures:
        return RuntimeError(f"{text}; its output says why")
    rank = min(failures, key=lambda rank: failures[rank].time_ns)
    first = failures[rank]
    error = RuntimeError(f"{text}; rank {rank} {first.what}\n{first.traceback.rstrip()}")
    error.__cause__ = first.exception()
    return error


# The worker.


def main() -> NoReturn:
    """Run the call of this job; exits with 0 only if the result is in the store."""
    comm = mpi_library.load().COMM_WORLD.Dup()
    rank = comm.Get_rank()
    content, stdin = b"", sys.stdin.buffer
    if rank == 0:
        content = stdin.read(*LENGTH.unpack(stdin.read(LENGTH.size)))
    hosted = HostedStore.from_bytes(broadcast(comm, content))
    comm.Free()
    with memory_file() as call, memory_file() as answer:
        with closing(_connect(hosted)) as store:
            call.write(_call_in(store, hosted.secret))
        call.flush()
        try:
            run_call(call.fileno(), answer.fileno())
        except SystemExit:
            content = os.pread(answer.fileno(), os.fstat(answer.fileno()).st_size, 0)
            with closing(_connect(hosted)) as store:
                call_values(store, hosted.secret).put(f"answer/{rank}", content)
            raise


def _call_in(store: Store, secret: bytes) -> bytes:
    try:
        found = call_values(store, secret).take("call", 0.0)
    except UnprovenError:
        sys.exit(
            "horovod: the call has no proof of the job's secret, so it was altered on the way; it "
            "was not unpickled"
        )
    if found is None:
        sys.exit("horovod: there is no call in the store of the process that has called")
    return found


def _connect(hosted: HostedStore) -> StoreClient:
    return find_store(hosted.addresses, hosted.secret, STORE_TIMEOUT_S)
