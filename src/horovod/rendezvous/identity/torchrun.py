"""A store of torch, such as torchrun's, as a ``Store``, and the job's secret in it.

torchrun has no place for a secret of ours, so rank 0 makes one and publishes it in torchrun's own
store. That store answers every process that reaches its port, so the secret keeps out only the
others. Within a host, both ends of a socket must also belong to one user. A secret in the
environment of all ranks (``_HOROVOD_SECRET_KEY``) is used instead and sent nowhere. Torch is
imported here only, when the first method runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from horovod.core.base.checked import BadMessageError
from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.identity.environment import ProcessInfo

if TYPE_CHECKING:
    from torch.distributed import Store as TorchsStore  # type: ignore[attr-defined]

_NAME_BYTES = 16
_LONGEST_PAUSE_S = 0.05
_NO_VALUE = "no value"  # which no key gets


class TorchStore:
    """A ``Store`` over one of torch; every key gets ``prefix`` in front. For several threads."""

    def __init__(self, store: TorchsStore, prefix: str, title: str = "torchrun's store") -> None:
        self._store: TorchsStore | None = store
        self._prefix = prefix
        self._title = title

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
            raise InitError(f"init: {self._title} failed: {error}") from None

    def get(self, key: str, timeout_s: float) -> bytes:
        """See ``Store.get``."""
        return self.get_any([key], timeout_s)[1]

    def get_any(self, keys: Sequence[str], timeout_s: float) -> tuple[str, bytes]:
        """The first of these keys that has a value, and the value; errors as ``Store.get``.

        Polls, since torch logs a warning for each wait that times out.
        """
        deadline = Deadline(timeout_s)
        pause_s = 0.001
        try:
            while True:
                for key in keys:
                    if (value := self._value(self._prefix + key)) is not None:
                        return key, value
                if deadline.has_passed:
                    names = " or ".join(map(repr, keys))
                    raise TimeoutError(f"store: no process set {names} within {timeout_s:g} s")
                time.sleep(min(pause_s, deadline.remaining_s()))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except RuntimeError as error:
            raise InitError(f"init: {self._title} failed: {error}") from None

    def part(self, prefix: str) -> TorchStore:
        """The same store, whose keys get ``prefix``, too."""
        return TorchStore(self._open_store(), self._prefix + prefix, self._title)

    def close(self) -> None:
        """See ``Store.close``."""
        self._store = None

    def _value(self, key: str) -> bytes | None:
        """What a key has, at once."""
        store = self._open_store()
        if hasattr(store, "check"):
            return bytes(store.get(key)) if store.check([key]) else None
        # An older torch answers with the expected value where there is none.
        value = bytes(store.compare_set(key, _NO_VALUE, _NO_VALUE))
        return None if value == _NO_VALUE.encode() else value

    def _open_store(self) -> TorchsStore:
        if self._store is None:
            raise InitError(f"init: the connection to {self._title} has ended")
        return self._store


def open_store(identity: ProcessInfo, environ: Mapping[str, str], timeout_s: float) -> TorchStore:
    """Connect to the store at MASTER_ADDR:MASTER_PORT, or host it where torchrun's agent does not.

    Raises:
        InitError: an address is missing or wrong, no store listens there, or torch is missing.
    """
    address, port = _address(environ)
    agent_hosts = environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True"
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
    return TorchStore(store, "horovod/")


def agree_on_world(
    identity: ProcessInfo, store: TorchStore, secret: bytes, timeout_s: float
) -> tuple[str, bytes]:
    """What this world's keys begin with, and its secret; blocks until all ranks are here.

    The store can be older than the world: torchrun keeps one through all its restarts, whose number
    its agents count differently. So each rank asks under a name that is new, and takes only the
    answer to that. Rank 0 answers until every rank has said that it got its answer.

    Args:
        secret: of all ranks; empty: rank 0 makes one and publishes it.

    Raises:
        InitError: ranks are missing, or a value has another length.
    """
    scope = identity.scope
    if identity.rank == 0:
        world, made = os.urandom(_NAME_BYTES), secret or os.urandom(SECRET_BYTES)
        answer = world if secret else world + made
        _answer_ranks(store, identity, answer, Deadline(timeout_s))
        return f"{world.hex()}/", made
    name = os.urandom(_NAME_BYTES).hex()
    store.set(f"{scope}asks/{identity.rank}", name.encode())
    try:
        answer = store.get(f"{scope}answer/{name}", timeout_s)
    except TimeoutError:
        raise InitError(f"init: rank 0 did not come in {timeout_s:g} s", ranks=[0]) from None
    _check_length("answer", answer, _NAME_BYTES + (0 if secret else SECRET_BYTES), 0)
    world = answer[:_NAME_BYTES]
    store.set(f"{scope}got/{world.hex()}/{name}", b"1")
    return f"{world.hex()}/", secret or answer[_NAME_BYTES:]


def _answer_ranks(
    store: TorchStore, identity: ProcessInfo, answer: bytes, deadline: Deadline
) -> None:
    scope, world = identity.scope, answer[:_NAME_BYTES].hex()
    names: dict[int, str] = {}
    missing, pause_s = list(range(1, identity.size)), 0.001
    while missing:
        for rank in list(missing):
            asked = _value(store, f"{scope}asks/{rank}")
            if asked is None:
                continue
            _check_length("asks", asked, 2 * _NAME_BYTES, rank)
            name = asked.decode(errors="replace")
            if names.get(rank) != name:
                names[rank] = name
                store.set(f"{scope}answer/{name}", answer)
            elif _value(store, f"{scope}got/{world}/{name}") is not None:
                missing.remove(rank)
        if missing and deadline.has_passed:
            raise InitError(f"init: {ranks_text(missing)} did not come", ranks=missing)
        time.sleep(pause_s if missing else 0)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _value(store: TorchStore, key: str) -> bytes | None:
    try:
        return store.get(key, 0)
    except TimeoutError:
        return None


def _check_length(key: str, value: bytes, expected: int, rank: int) -> None:
    if len(value) != expected:
        lengths = (f"{len(value)} bytes", f"{expected} bytes")
        raise InitError(f"init: {BadMessageError(key, 'length', *lengths, f'rank {rank}')}")


def _address(environ: Mapping[str, str]) -> tuple[str, int]:
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not address:
        raise InitError("init: MASTER_ADDR is not set; expected an address, as torchrun sets it")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise InitError(f"init: MASTER_PORT={port!r}: expected a port from 1 to 65535")
    # torch looks the peer's name up and warns if that fails; a number needs no look-up.
    is_here = address in ("localhost", os.uname().nodename)
    return ("127.0.0.1" if is_here else address), int(port)
