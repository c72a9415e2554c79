"""N processes become authenticated peers: who am I, where is the store, who else is there.

``world`` calls ``identify`` and, where there is more than one rank, ``meet``; the engine gets the
descriptors of the resulting ``Mesh``. The connection to the store stays open, and silent, until the
process ends, so that the next ``init`` need not make another.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import os
import threading
from collections.abc import Mapping
from typing import NamedTuple

from horovod.errors import InitError
from horovod.rendezvous import torchrun
from horovod.rendezvous.identity import Identity, identify
from horovod.rendezvous.membership import Deadline, SetLinks
from horovod.rendezvous.mesh import Mesh, connect
from horovod.rendezvous.store import StoreClient
from horovod.rendezvous.torchrun import TorchStore

__all__ = ["Identity", "Mesh", "SetLinks", "identify", "meet"]

_ADDRESS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
_SECRET = "_HOROVOD_SECRET_KEY"
_INTERFACES = "HOROVOD_GLOO_IFACE"


class _Contact(NamedTuple):
    """An open store and the job's secret; ``source`` tells from where."""

    source: tuple[object, ...]
    store: StoreClient | TorchStore
    secret: bytes


_lock = threading.Lock()
_contact: _Contact | None = None


def meet(
    identity: Identity,
    generation: int,
    region_bytes: int,
    timeout_s: float,
    environ: Mapping[str, str],
    link_timeout_s: float = 30.0,
) -> Mesh:
    """Meet the other ranks through the store that this job's launcher keeps; see ``mesh.connect``.

    ``HOROVOD_GLOO_IFACE`` in ``environ`` names the interfaces to other hosts, separated by commas;
    without it all are tried. Every rank counts ``generation`` up by one for each attempt, failed
    ones included. Blocks for about ``timeout_s`` at most. One thread of a process at a time.

    Raises:
        InitError: no store, wrong secret, not all ranks came, or hosts cannot reach each other.
    """
    deadline = Deadline(timeout_s)
    with _lock:
        contact = _find_contact(identity, environ, deadline)
        return connect(
            identity,
            contact.store,
            contact.secret,
            generation,
            region_bytes,
            timeout_s,
            link_timeout_s=link_timeout_s,
            interfaces=[name for name in environ.get(_INTERFACES, "").split(",") if name],
        )


def _find_contact(identity: Identity, environ: Mapping[str, str], deadline: Deadline) -> _Contact:
    global _contact
    source = _source(identity, environ)
    if _contact is not None and (_contact.source != source or _contact.store.is_closed):
        _close_contact()
    if _contact is None:
        _contact = _open_contact(identity, environ, deadline, source)
    return _contact


def _source(identity: Identity, environ: Mapping[str, str]) -> tuple[object, ...]:
    """What a contact depends on; a forked child must not speak on its parent's connection."""
    names = (_ADDRESS, _PORT, _SECRET, "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    return (os.getpid(), identity, *(environ.get(name) for name in names))


def _open_contact(
    identity: Identity,
    environ: Mapping[str, str],
    deadline: Deadline,
    source: tuple[object, ...],
) -> _Contact:
    if identity.launcher == "torchrun":
        torch_store = torchrun.open_store(identity, environ, deadline.remaining_s())
        try:
            secret = _given_secret(environ) or torchrun.agree_on_secret(
                identity, torch_store, deadline.remaining_s()
            )
        except TimeoutError:
            raise InitError(
                f"init: rank 0 of {identity.size} did not arrive within {deadline.timeout_s:g} s "
                "(HOROVOD_START_TIMEOUT)"
            ) from None
        return _Contact(source, torch_store, secret)
    address, secret = _launcher_store(identity, environ)
    store = StoreClient(address, secret, timeout_s=deadline.remaining_s())
    return _Contact(source, store, secret)


def _launcher_store(
    identity: Identity, environ: Mapping[str, str]
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
    secret = _given_secret(environ)
    if not secret:
        raise _bad_secret()
    return (address, int(port)), secret


def _given_secret(environ: Mapping[str, str]) -> bytes:
    """The secret in the environment; empty if there is none."""
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
        _contact.store.close()
        _contact = None
