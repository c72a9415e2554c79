"""From the environment to a mesh: which rank this process is, and its connections to the others.

``core/world.py`` calls ``recognise`` and, if there is more than one rank, ``meet``. The engine gets
the descriptors of the resulting ``Mesh``. The connection to the store stays open without traffic
until the process ends, for the next ``init``. Each ``init`` has a new generation and its own keys
in the store.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from horovod.core.base import mpi_library
from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.descriptors import raise_limit
from horovod.rendezvous.base.membership import Mesh as Mesh
from horovod.rendezvous.base.membership import SetLinks as SetLinks
from horovod.rendezvous.identity import mpi as mpi_identity
from horovod.rendezvous.identity.elastic_client import ElasticClient as ElasticClient
from horovod.rendezvous.identity.elastic_client import RemovedError as RemovedError
from horovod.rendezvous.identity.elastic_client import this_client as this_client
from horovod.rendezvous.identity.environment import ProcessInfo as ProcessInfo
from horovod.rendezvous.identity.environment import identify as identify
from horovod.rendezvous.identity.secret_socket import ask_for_secret
from horovod.rendezvous.store.client import Store, StoreClient

if TYPE_CHECKING:
    from horovod.rendezvous.identity.torchrun import TorchStore
    from horovod.rendezvous.store.server import StoreServer

_ADDRESS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
_SECRET = "_HOROVOD_SECRET_KEY"
_INTERFACES = "HOROVOD_GLOO_IFACE"


class _Contact(NamedTuple):
    """An open store and the job's secret. ``source`` is what both were found with."""

    source: tuple[object, ...]
    store: StoreClient | TorchStore
    secret: bytes
    server: StoreServer | None = None  # if this process is the store's server
    launcher: str = ""  # where the program has opened the store

    def close(self) -> None:
        self.store.close()
        if self.server is not None:
            self.server.close()


_lock = threading.Lock()
_contact: _Contact | None = None


def recognise(
    environ: Mapping[str, str],
    timeout_s: float,
    comm: Any = None,
    *,
    by_mpi: bool = False,
    mpi_threads: bool = True,
) -> ProcessInfo:
    """The rank of this process. In an elastic job, or under MPI, it blocks until all ranks call.

    Args:
        comm: the argument of ``init``: ranks, an mpi4py communicator, or None for all.
        by_mpi: ask MPI although something else may have started the process.
        mpi_threads: several threads will call MPI at a time.

    Raises:
        InitError: the launcher's variables make no sense, or not all processes came in time; or an
            elastic job has removed this process, or has no driver.
        ValueError: a communicator, but MPI did not start the processes of this world.
    """
    is_communicator = mpi_library.is_communicator(comm)
    if is_communicator and comm.Get_size() == 1:
        return ProcessInfo(hostname=os.uname().nodename, launcher="mpirun", comm=comm)
    is_ours = "HOROVOD_RANK" in environ or "TORCHELASTIC_RUN_ID" in environ
    # A process of mpirun in a Slurm job may have the variables of both.
    if not is_ours and (by_mpi or is_communicator or mpi_identity.is_started_by_mpi(environ)):
        return mpi_identity.identify_by_mpi(environ, timeout_s, comm, needs_threads=mpi_threads)
    if is_communicator:
        raise ValueError(
            "init: comm is an mpi4py communicator, but MPI did not start the processes of this "
            "world; use mpirun or horovodrun --mpi, or give a list of ranks"
        )
    if (client := this_client(environ)) is not None:
        assignment = client.request_assignment(lambda: launcher_store(environ, timeout_s))
        identity = assignment.process_info(environ)
    elif not is_ours and _is_step(environ):
        from horovod.rendezvous.identity.slurm import identify_by_slurm

        identity = identify_by_slurm(environ)
    else:
        identity = identify(environ)
    return identity.restricted_to(comm) if comm else identity


def _is_step(environ: Mapping[str, str]) -> bool:
    """Whether Slurm's srun started this process as one of several.

    A program in a batch script or in a shell of srun has Slurm's variables too.
    """
    return environ.get("SLURM_STEP_NUM_TASKS", "1") != "1" and "SLURM_PROCID" in environ


def meet(
    identity: ProcessInfo,
    generation: int,
    region_bytes: int,
    timeout_s: float,
    environ: Mapping[str, str],
    link_timeout_s: float = 30.0,
    protection: str = "control",
    connections: int = 1,
    proposal: str = "",
) -> Mesh:
    """Connect to the other ranks through the job's store; see ``mesh.connect``.

    ``HOROVOD_GLOO_IFACE`` in ``environ`` names the interfaces to other hosts, separated by commas;
    without it all are tried. Every rank increments ``generation`` for each attempt, also after a
    failed one. Blocks for about ``timeout_s`` at most. One thread of a process at a time.

    Raises:
        InitError: no store, wrong secret, missing ranks, or hosts that cannot reach each other.
    """
    # Imported here, since launchers and their agents need the store alone.
    from horovod.rendezvous.mesh import connect

    raise_limit()  # for links to many hosts and for unauthenticated peers
    deadline = Deadline(timeout_s)
    with _lock:
        contact = _find_contact(identity, environ, deadline)
        # A rank that has the store itself must not end before the others have read the last
        # answer: talking about the proposal makes it wait for them.
        is_outside = isinstance(contact.store, StoreClient) and contact.server is None
        return connect(
            identity,
            contact.store,
            contact.secret,
            generation,
            region_bytes,
            timeout_s,
            link_timeout_s=link_timeout_s,
            interfaces=_interfaces_of(environ),
            protection=protection,
            connections=connections,
            proposal=proposal if is_outside else "",
        )


def job_store(identity: ProcessInfo, environ: Mapping[str, str], timeout_s: float) -> Store:
    """The store of this job, through which data planes connect.

    Raises:
        InitError: it cannot be reached.
    """
    with _lock:
        return _find_contact(identity, environ, Deadline(timeout_s)).store


def launcher_store(environ: Mapping[str, str], timeout_s: float) -> Store:
    """This process's connection to the store of our launcher.

    Raises:
        InitError: it cannot be reached.
    """
    return job_store(identify(environ), environ, timeout_s)


def new_launcher_store(environ: Mapping[str, str], timeout_s: float) -> Store:
    """Another connection to it, for a thread that waits there; the caller closes it.

    Raises:
        InitError: it cannot be reached.
    """
    address, secret = _launcher_store(identify(environ), environ, timeout_s)
    return StoreClient(address, secret, timeout_s=timeout_s)


def launcher_address(environ: Mapping[str, str]) -> str:
    """The host of our launcher's store, as this process reaches it; empty if there is none."""
    return environ.get(_ADDRESS, "")


def listening_hosts(environ: Mapping[str, str], spans_hosts: bool) -> list[str]:
    """The addresses to listen at for processes of this job: loopback, or those that others reach.

    Raises:
        InitError: there is no interface of the names in ``HOROVOD_GLOO_IFACE``.
    """
    from horovod.rendezvous.store.hosted import reachable_hosts

    found = reachable_hosts(_interfaces_of(environ)) if spans_hosts else []
    return found or ["127.0.0.1"]


def use_store(
    identity: ProcessInfo, environ: Mapping[str, str], store: TorchStore, secret: bytes
) -> None:
    """Meet the other ranks in a store that the program has opened, as ``identity``."""
    global _contact
    with _lock:
        if _contact is not None:
            _close_contact()
        _contact = _Contact(_source(identity, environ), store, secret, launcher=identity.launcher)


def drop_store(launcher: str) -> None:
    """Close the connection to the store if this launcher's was the last: its server may end."""
    with _lock:
        if _contact is not None and _contact.launcher == launcher:
            _close_contact()


def _find_contact(
    identity: ProcessInfo, environ: Mapping[str, str], deadline: Deadline
) -> _Contact:
    global _contact
    source = _source(identity, environ)
    if _contact is not None and (_contact.source != source or _contact.store.is_closed):
        _close_contact()
    if _contact is None:
        _contact = _Contact(source, *_open_store(identity, environ, deadline))
    return _contact


def _source(identity: ProcessInfo, environ: Mapping[str, str]) -> tuple[object, ...]:
    """The facts that a contact depends on. A forked child must not use its parent's connection."""
    names = (_ADDRESS, _PORT, _SECRET, "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    # The rank of a worker of our launcher may change in an elastic job; its store does not. That of
    # torch.distributed is chosen by the program.
    own = None if identity.launcher in ("horovodrun", "torch.distributed") else identity
    return (os.getpid(), own, *(environ.get(name) for name in names))


def _open_store(
    identity: ProcessInfo, environ: Mapping[str, str], deadline: Deadline
) -> tuple[StoreClient | TorchStore, bytes, StoreServer | None]:
    """The store, the job's secret, and the server if it is in this process."""
    if identity.launcher == "mpirun":
        from horovod.rendezvous.store.hosted import find_store

        hosted = mpi_identity.host_store(identity, _interfaces_of(environ))
        store = find_store(hosted.addresses, hosted.secret, deadline.remaining_s())
        return store, hosted.secret, hosted.server
    if identity.launcher == "srun":
        from horovod.rendezvous.identity.slurm import meet_in_file

        interfaces = _interfaces_of(environ)
        store, hosted = meet_in_file(identity, environ, interfaces, deadline)
        return store, hosted.secret, hosted.server
    if identity.launcher == "torchrun":
        from horovod.rendezvous.identity import torchrun

        torch_store = torchrun.open_store(identity, environ, deadline.remaining_s())
        world, secret = torchrun.agree_on_world(
            identity, torch_store, secret_in(environ), deadline.remaining_s()
        )
        return torch_store.part(world), secret, None
    address, secret = _launcher_store(identity, environ, deadline.remaining_s())
    return StoreClient(address, secret, timeout_s=deadline.remaining_s()), secret, None


def _interfaces_of(environ: Mapping[str, str]) -> list[str]:
    return [name for name in environ.get(_INTERFACES, "").split(",") if name]


def _launcher_store(
    identity: ProcessInfo, environ: Mapping[str, str], timeout_s: float
) -> tuple[tuple[str, int], bytes]:
    address, port = environ.get(_ADDRESS, ""), environ.get(_PORT, "")
    if not address or not port:
        raise InitError(
            f"init: HOROVOD_SIZE={identity.size} but {_ADDRESS if not address else _PORT} is not "
            "set, so the other ranks cannot be found; start the script with "
            f"'horovodrun -np {identity.size} python ...'"
        )
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise InitError(f"init: {_PORT}={port!r}: expected a port from 1 to 65535")
    secret = secret_in(environ)
    if not secret and identity.launcher == "other":
        secret = ask_for_secret(int(port), timeout_s)
        if not secret:
            raise InitError(
                f"init: {_SECRET} is missing, and no RendezvousServer of this user and container "
                f"serves port {port} here; its launcher must be running, and give its {_SECRET} to "
                "workers elsewhere (docs/security.md)"
            )
    if not secret:
        raise _bad_secret()
    return (address, int(port)), secret


def secret_in(environ: Mapping[str, str]) -> bytes:
    """The secret in the environment; empty if there is none.

    Raises:
        InitError: it is not base64.
    """
    try:
        return base64.b64decode(environ.get(_SECRET, ""), validate=True)
    except binascii.Error:
        raise _bad_secret() from None


def _bad_secret() -> InitError:
    return InitError(f"init: {_SECRET} is missing or not base64; horovodrun sets it")


@atexit.register
def _close_contact() -> None:
    global _contact
    if _contact is not None:
        _contact.close()
        _contact = None
