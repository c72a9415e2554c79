"""The position of this process where Slurm's ``srun`` started it, and how its ranks find the store.

Slurm tells its processes their numbers, but does not connect them. So rank 0 keeps the job's store.
It writes the store's address and the job's secret into a file that only its user may read, in a
folder that all nodes share. The file is removed when all ranks have read it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.core.base.own_files import home_folder, open_own, replacing
from horovod.core.base.rank_info import cross_numbers
from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.identity.environment import ProcessInfo, hostname_of, position_of
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.hosted import HostedStore, find_store, start_store

_SIZE = "SLURM_STEP_NUM_TASKS"
_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
_FOLDER = "HOROVOD_RENDEZVOUS_DIR"
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)
_LONGEST_PAUSE_S = 0.25


def identify_by_slurm(environ: Mapping[str, str]) -> ProcessInfo:
    """The position that Slurm's variables give this process.

    Raises:
        InitError: one of them is missing, or they contradict each other; the text names it.
    """
    rank, size = position_of(environ, "SLURM_PROCID", _SIZE)
    counts = _tasks_per_node(environ, size)
    node, _ = position_of({**environ, "nodes": str(len(counts))}, "SLURM_NODEID", "nodes")
    local = {**environ, "tasks": str(counts[node])}
    local_rank, local_size = position_of(local, "SLURM_LOCALID", "tasks")
    return ProcessInfo(
        *(rank, size, local_rank, local_size),
        *cross_numbers(node, local_rank, dict(enumerate(counts))),
        hostname=hostname_of(environ),
        launcher="srun",
        group=str(node),
    )


def _tasks_per_node(environ: Mapping[str, str], size: int) -> list[int]:
    """``2(x3),1`` is 2, 2, 2, 1."""
    text = environ.get(_PER_NODE, "")
    matches = [_COUNT.fullmatch(part) for part in text.split(",")]
    counts = [int(m[1]) for m in matches if m for _ in range(int(m[2] or 1))]
    if not all(matches) or sum(counts) != size:
        raise InitError(
            f"init: {_PER_NODE}={text!r}: expected the numbers of tasks on each node, {size} in all"
        )
    return counts


def meet_in_file(
    identity: ProcessInfo, environ: Mapping[str, str], interfaces: Sequence[str], deadline: Deadline
) -> tuple[StoreClient, HostedStore]:
    """A connection to the job's store, whose address rank 0 writes into the step's file.

    Rank 0 blocks until all ranks have connected.

    Raises:
        InitError: not all connected in time, or they do not share the folder.
    """
    path = contact_file(identity, environ)
    if identity.rank != 0:
        hosted = wait_for_contact(path, deadline)
        store = find_store(hosted.addresses, hosted.secret, deadline.remaining_s())
        store.set(f"arrived/{identity.rank}", b"")
        return store, hosted
    hosted = start_store(identity.local_size < identity.size, interfaces)
    try:
        publish(hosted, path)
        store = find_store(hosted.addresses, hosted.secret, deadline.remaining_s())
        _await_arrivals(store, identity.size, deadline)
    except BaseException:
        if hosted.server is not None:
            hosted.server.close()
        raise
    finally:
        _withdraw(hosted, path)
    return store, hosted


def _await_arrivals(store: StoreClient, size: int, deadline: Deadline) -> None:
    """Block until all ranks have a connection to the store."""
    missing = set(range(1, size))
    for rank in range(1, size):
        with contextlib.suppress(TimeoutError):
            store.get(f"arrived/{rank}", deadline.remaining_s())
            missing.discard(rank)
    if missing:
        raise deadline.missed_by(missing, size)


def contact_file(identity: ProcessInfo, environ: Mapping[str, str]) -> Path:
    """The file of this job step; ``HOROVOD_RENDEZVOUS_DIR`` names its folder.

    Raises:
        InitError: neither that nor the home folder is known.
    """
    try:
        folder = Path(environ.get(_FOLDER) or home_folder() / ".horovod")
    except FileNotFoundError as error:
        raise InitError(f"init: {error}; {_FOLDER} names a folder of all nodes instead") from None
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    parts = [re.sub(r"\W", "_", environ.get(name, "0")) for name in names]
    return folder / "-".join(["slurm", *parts, *identity.scope.rstrip("/").split("-")]).rstrip("-")


def publish(store: HostedStore, path: Path) -> None:
    """Write how to find ``store`` into ``path``, at once and for this user alone.

    Raises:
        InitError: that is impossible, or another file is there; the text says why.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (left := _read(path)) is not None:  # left by a step of this name that failed
            HostedStore.from_bytes(left)
        with replacing(path) as file:
            file.write(store.to_bytes())
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:
        raise InitError(f"init: cannot write {path} ({_FOLDER}): {error}") from None


def _withdraw(store: HostedStore, path: Path) -> None:
    """Remove the file of ``publish``; any other file stays."""
    with contextlib.suppress(InitError, OSError):
        if _read(path) == store.to_bytes():
            path.unlink()


def wait_for_contact(path: Path, deadline: Deadline) -> HostedStore:
    """The store that rank 0 publishes; blocks until it has.

    Raises:
        InitError: it did not in time, or the file is not this user's own.
    """
    pause_s = 0.01
    while (message := _read(path)) is None:
        if deadline.has_passed:
            raise InitError(
                f"init: rank 0 has not written {path} within {deadline.timeout_s:g} s "
                f"(HOROVOD_START_TIMEOUT); the nodes must share this folder, which {_FOLDER} names",
                ranks=[0],
            )
        time.sleep(min(pause_s, deadline.remaining_s()))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    try:
        return HostedStore.from_bytes(message)
    except ValueError as error:
        raise InitError(f"init: {path}: {error}") from None


def _read(path: Path) -> bytes | None:
    """The contents of a file that is this user's alone; None if there is none."""
    with contextlib.suppress(OSError):
        os.listdir(path.parent)  # network file systems cache that a file was missing
    try:
        with open(open_own(path), "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InitError(f"init: cannot read {path} ({_FOLDER}): {error}") from None
    if mode & 0o077:
        raise InitError(f"init: {path} has mode {mode:o}; expected 600, since it has a secret")
    return content
