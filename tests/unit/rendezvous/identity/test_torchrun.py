"""torchrun's store; skipped without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
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


def run(words: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def agreed(store: Any, size: int, secret: bytes = b"") -> list[tuple[str, bytes]]:
    from horovod.rendezvous.identity.torchrun import agree_on_world

    with ThreadPoolExecutor(size) as pool:
        ranks = [
            pool.submit(agree_on_world, identity_of(rank, size), store, secret, 60)
            for rank in range(size)
        ]
        return [rank.result() for rank in ranks]


def test_ranks_agree_on_a_world_in_a_store_that_others_have_used() -> None:
    store: Any = MemoryStore()
    store.set("asks/2", b"0" * 32)  # a rank that has died
    worlds = [agreed(store, 3) for _ in range(20)]
    assert all(len(set(found)) == 1 for found in worlds)
    assert len({world for [(world, _), *_] in worlds}) == 20
    secrets = {secret for [(_, secret), *_] in worlds}
    assert len(secrets) == 20
    assert {len(secret) for secret in secrets} == {32}


def test_a_secret_of_the_environment_is_not_published() -> None:
    store, secret = MemoryStore(), bytes(range(32))
    assert {found for _, found in agreed(store, 2, secret)} == {secret}
    assert not any(secret in value for value in store._values.values())


def test_values_of_another_length_are_refused() -> None:
    from horovod.rendezvous.identity.torchrun import agree_on_world

    store: Any = MemoryStore()
    store.set("asks/1", b"short")
    with pytest.raises(InitError, match="from rank 1 has 5 bytes in field length; expected 32"):
        agree_on_world(identity_of(0, 2), store, b"", 0)


def test_ranks_that_do_not_come_are_named() -> None:
    from horovod.rendezvous.identity.torchrun import agree_on_world

    for rank, missing in ((0, [1, 2]), (2, [0])):
        with pytest.raises(InitError, match="did not come") as caught:
            agree_on_world(identity_of(rank, 3), MemoryStore(), b"", 0.01)  # type: ignore[arg-type]
        assert list(caught.value.ranks) == missing


def test_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    process = run([*torchrun, "--standalone", str(script)], {})
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["met 0", "met 1"]


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
    ended = [process.communicate(timeout=500) for process in running]
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
