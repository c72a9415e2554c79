"""``meet``: the sources of store and secret, and the reuse of the connection."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from worlds import MemoryStore

from horovod.errors import InitError
from horovod.rendezvous import bootstrap
from horovod.rendezvous.bootstrap import ProcessInfo, identify, meet
from horovod.rendezvous.identity import torchrun
from horovod.rendezvous.store.server import StoreServer

SECRET = b"s" * 32
SCRIPT = """
import os, sys
from horovod.rendezvous.bootstrap import identify, meet
identity = identify(os.environ)
for generation in range(1, 4):
    mesh = meet(identity, generation, 4096, 60, os.environ)
    assert len(mesh.pids) == identity.size and mesh.pids[identity.rank] == os.getpid()
    mesh.close()
assert "torch" not in sys.modules and "asyncio" not in sys.modules
print("met", identity.rank)
"""


@pytest.fixture(autouse=True)
def fresh_contact() -> Iterator[None]:
    yield
    bootstrap._close_contact()


def environment(rank: int, size: int, server: StoreServer) -> dict[str, str]:
    names = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    names |= {"CROSS_RANK": 0, "CROSS_SIZE": 1}
    return {
        **{f"HOROVOD_{name}": str(value) for name, value in names.items()},
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server.address[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.address[1]),
        "_HOROVOD_SECRET_KEY": base64.b64encode(SECRET).decode(),
    }


def test_processes_form_three_worlds_over_one_store_connection() -> None:
    with StoreServer(SECRET) as server:
        running = [
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT],
                env={**os.environ, **environment(rank, 3, server)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(3)
        ]
        answers = [process.communicate(timeout=500)[0] for process in running]
    assert answers == [f"met {rank}\n" for rank in range(3)]
    assert [process.returncode for process in running] == [0, 0, 0]


def test_the_connection_is_kept_and_renewed_when_lost() -> None:
    with StoreServer(SECRET) as server:
        environ = environment(0, 1, server)
        identity = identify(environ)
        meet(identity, 1, 4096, 60, environ).close()
        first = bootstrap._contact
        meet(identity, 2, 4096, 60, environ).close()
        assert bootstrap._contact is first
        assert first is not None
        first.store.close()
        meet(identity, 3, 4096, 60, environ).close()
        assert bootstrap._contact is not first


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "", "start the script with 'horovodrun -np 2"),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", "", "HOROVOD_GLOO_RENDEZVOUS_PORT is not set"),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", "0", "='0': expected a port"),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", "http", "='http': expected a port"),
        ("_HOROVOD_SECRET_KEY", "", "_HOROVOD_SECRET_KEY is missing, and no RendezvousServer"),
        ("_HOROVOD_SECRET_KEY", "%%%", "_HOROVOD_SECRET_KEY is missing or not base64"),
    ],
)
def test_a_bad_address_is_refused_by_name(name: str, value: str, text: str) -> None:
    with StoreServer(SECRET) as server:
        environ = environment(0, 2, server) | {name: value}
        with pytest.raises(InitError, match=text) as raised:
            meet(identify(environ), 1, 4096, 1, environ)
    assert "%%%" not in str(raised.value)


@pytest.mark.parametrize("given", [SECRET, b""])
def test_under_torchrun_a_secret_in_the_environment_goes_before_a_made_one(
    monkeypatch: pytest.MonkeyPatch, given: bytes
) -> None:
    store: Any = MemoryStore()
    store.part = lambda prefix: store
    monkeypatch.setattr(torchrun, "open_store", lambda *arguments: store)
    environ = {"_HOROVOD_SECRET_KEY": base64.b64encode(given).decode()}
    meet(ProcessInfo(0, 1, 0, 1, 0, 1, "here", "torchrun"), 1, 4096, 30, environ).close()
    assert bootstrap._contact is not None
    assert (bootstrap._contact.secret == SECRET) is bool(given)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, "MASTER_ADDR is not set"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "-1"}, "MASTER_PORT='-1'"),
    ],
)
def test_under_torchrun_a_bad_address_is_refused_by_name(
    environ: dict[str, str], text: str
) -> None:
    with pytest.raises(InitError, match=text):
        meet(ProcessInfo(0, 2, 0, 2, 0, 1, "here", "torchrun"), 1, 4096, 1, environ)
