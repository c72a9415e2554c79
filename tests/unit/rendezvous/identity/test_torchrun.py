"""torchrun's store; skipped without torch."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from worlds import MemoryStore, identity_of

from horovod.errors import InitError

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

SCRIPT = """
import os
from horovod.rendezvous.bootstrap import identify, meet
identity = identify(os.environ)
assert identity.launcher == "torchrun"
for generation in (1, 2):
    mesh = meet(identity, generation, 4096, 60, os.environ)
    assert len(set(mesh.pids)) == identity.size
    mesh.close()
# One write, because the ranks share this pipe.
os.write(1, f"met {identity.rank}\\n".encode())
"""


def free_port() -> int:
    """A port below those that the system gives to other processes."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


def run(words: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_value_that_is_no_secret_is_refused() -> None:
    from horovod.rendezvous.identity.torchrun import agree_on_secret

    store: Any = MemoryStore()
    made = agree_on_secret(identity_of(0, 2), store, 0)
    assert agree_on_secret(identity_of(1, 2), store, 0) == made
    store.set("secret", b"short")
    with pytest.raises(InitError, match="from rank 0 has 5 bytes in field length; expected 32"):
        agree_on_secret(identity_of(1, 2), store, 0)


@pytest.mark.timeout(240)
def test_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    process = run([*torchrun, "--standalone", str(script)], {})
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["met 0", "met 1"]


@pytest.mark.timeout(240)
def test_rank_0_hosts_the_store_where_the_agent_does_not() -> None:
    base = {
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
    }
    running = [
        run([sys.executable, "-c", SCRIPT], base | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    ended = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0, 0], ended
    assert [out for out, _ in ended] == ["met 0\n", "met 1\n"]
    assert not any("Warning" in err or "IPv6" in err for _, err in ended), ended


def test_absent_keys_and_closed_stores() -> None:
    from torch.distributed import TCPStore

    from horovod.errors import InitError
    from horovod.rendezvous.identity.torchrun import TorchStore

    server = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
    )
    store = TorchStore(server, "horovod/0/")
    with pytest.raises(TimeoutError, match=r"'absent' within 0.05 s"):
        store.get("absent", 0.05)
    store.set("key", b"\0\xff value")
    assert store.get("key", 30) == b"\0\xff value"
    assert server.get("horovod/0/key") == b"\0\xff value"
    store.close()
    with pytest.raises(InitError, match="has ended"):
        store.get("key", 30)
