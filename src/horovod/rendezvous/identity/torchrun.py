"""The store that torchrun gives its processes, as a ``Store``, and the job's secret in it.

torchrun has no place for a secret of ours, so rank 0 makes one and publishes it in torchrun's own
store. That store answers every process that reaches its port, so the secret keeps out only the
others. Within a host, both ends of a socket must also belong to one user. A secret in the
environment of all ranks (``_HOROVOD_SECRET_KEY``) is used instead and sent nowhere. Torch is
imported here only, when the first method runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from horovod.core.base.checked import BadMessageError
from horovod.errors import InitError
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.identity.environment import ProcessInfo

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_SECRET_KEY = "secret"
_LONGEST_PAUSE_S = 0.05


class TorchStore:
    """A ``Store`` over torch's ``TCPStore``; every key gets ``prefix`` in front."""

    def __init__(self, store: TCPStore, prefix: str) -> None:
        self._store: TCPStore | None = store
        self._prefix = prefix

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._store is None

    def set(self, key: str, value: bytes) -> None:
        """See ``Store.set``."""
        try:
            # The stub says str; the binding takes bytes and returns them unchanged.
            self._open_store().set(self._prefix + key, value)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise InitError(f"init: torchrun's store failed: {error}") from None

    def get(self, key: str, timeout_s: float) -> bytes:
        """See ``Store.get``. Polls, since torch logs a warning for each wait that times out."""
        deadline = Deadline(timeout_s)
        pause_s = 0.001
        try:
            while not self._open_store().check([self._prefix + key]):
                if deadline.has_passed:
                    raise TimeoutError(f"store: no process set {key!r} within {timeout_s:g} s")
                time.sleep(min(pause_s, deadline.remaining_s()))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return bytes(self._open_store().get(self._prefix + key))
        except RuntimeError as error:
            raise InitError(f"init: torchrun's store failed: {error}") from None

    def close(self) -> None:
        """See ``Store.close``."""
        self._store = None

    def _open_store(self) -> TCPStore:
        if self._store is None:
            raise InitError("init: the connection to torchrun's store has ended")
        return self._store


def open_store(identity: ProcessInfo, environ: Mapping[str, str], timeout_s: float) -> TorchStore:
    """Connect to the store at MASTER_ADDR:MASTER_PORT, or host it where torchrun's agent does not.

    Keys carry torchrun's restart count, so processes started anew never read old values.

    Raises:
        InitError: an address is missing or wrong, no store listens there, or torch is missing.
    """
    address, port = _address(environ)
    agent_hosts = environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True"
    prefix = f"horovod/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/"
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ImportError as error:
        raise InitError(f"init: started by torchrun, but torch cannot be used: {error}") from None
    try:
        store = TCPStore(
            address,
            port,
            is_master=identity.rank == 0 and not agent_hosts,
            timeout=timedelta(seconds=max(timeout_s, 0.001)),
            wait_for_workers=False,
            multi_tenant=True,  # the script's own init_process_group may use this port as well
        )
    except RuntimeError as error:
        raise InitError(
            f"init: cannot reach torchrun's store at {address}:{port} (MASTER_ADDR, MASTER_PORT): "
            f"{error}"
        ) from None
    return TorchStore(store, prefix)


def agree_on_secret(identity: ProcessInfo, store: TorchStore, timeout_s: float) -> bytes:
    """The job's secret, which rank 0 makes; blocks until rank 0 has published it.

    Raises:
        TimeoutError: rank 0 did not publish it within ``timeout_s``.
        InitError: the value has another length.
    """
    if identity.rank == 0:
        secret = os.urandom(SECRET_BYTES)
        store.set(_SECRET_KEY + identity.scope, secret)
        return secret
    found = store.get(_SECRET_KEY + identity.scope, timeout_s)
    if len(found) != SECRET_BYTES:
        error = BadMessageError(
            "secret", "length", f"{len(found)} bytes", f"{SECRET_BYTES} bytes", "rank 0"
        )
        raise InitError(f"init: {error}")
    return found


def _address(environ: Mapping[str, str]) -> tuple[str, int]:
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not address:
        raise InitError("init: MASTER_ADDR is not set; expected an address, as torchrun sets it")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise InitError(f"init: MASTER_PORT={port!r}: expected a port from 1 to 65535")
    # torch looks the peer's name up and warns if that fails; a number needs no look-up.
    is_here = address in ("localhost", os.uname().nodename)
    return ("127.0.0.1" if is_here else address), int(port)
