"""A detached agent behind proxies: one for each host of a job, for one launcher after another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from launching import TIMEOUT_S, assert_gone

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.host_plan import HostPlan, WorkerSpec
from horovod.launch.remote.job_folder import host_folder_path
from horovod.launch.wire.frames import MAGIC, Frame, FrameReader, Kind, encode
from horovod.launch.workers.python_command import python_command
from horovod.rendezvous.store.server import StoreServer

pytestmark = [pytest.mark.timeout(TIMEOUT_S), pytest.mark.usefixtures("no_child_is_left")]

SECRET = os.urandom(32)
SLOT = RankInfo(3, 4, 0, 1, 1, 2, "host-a")


class Bridge:
    """The launcher's end of a connection."""

    def __init__(self, environ: dict[str, str], run: str) -> None:
        self.process = subprocess.Popen(
            python_command(sys.executable, "remote.proxy", ("fred", "host-a", run)),
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    @property
    def _stdout(self) -> BinaryIO:
        assert self.process.stdout is not None
        return self.process.stdout  # type: ignore[return-value]

    def say(self, *frames: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(frames))

    def hello(self) -> Frame:
        assert self._stdout.read(len(MAGIC)) == MAGIC
        return self.next(Kind.HELLO)

    def next(self, kind: Kind) -> Frame:
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.kind == kind:
                    return frame
            data = os.read(self._stdout.fileno(), 65536)
            assert data, f"no {kind.name}"
            self._frames += self._reader.feed(data)

    def end(self) -> str:
        """The text of its error."""
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        return errors.decode()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def bridges(environ: dict[str, str]) -> Iterator[list[Bridge]]:
    bridges: list[Bridge] = []
    yield bridges
    for bridge in bridges:
        bridge.process.kill()
        bridge.process.communicate()


def start_of(line: str, store: tuple[str, int]) -> list[bytes]:
    plan = HostPlan(
        hostname="host-a",
        argv=("sh", "-c", line),
        environment={"PATH": os.environ["PATH"]},
        stores=(store,),
        secret=SECRET,
        reconnect_timeout_s=60.0,
    )
    spec = WorkerSpec(7, SLOT, {})
    return [encode(Kind.PLAN, plan.to_bytes()), encode(Kind.START, spec.to_bytes())]


def test_one_launcher_follows_another(environ: dict[str, str], bridges: list[Bridge]) -> None:
    def connect(run: str) -> Bridge:
        bridges.append(Bridge(environ, run))
        return bridges[-1]

    first = connect("run-1")
    assert json.loads(first.hello().payload)["workers"] == []
    line = "echo ready; read line <go; yes 'a line that is rather long' | head -c 3000000; echo end"
    folder = host_folder_path("fred", "host-a", environ)
    os.mkfifo(folder / "go")
    with StoreServer(SECRET) as store:
        first.say(*start_of(f"cd {folder}; {line}; exit 3", store.address))
        pid = first.next(Kind.STARTED).number
        assert first.next(Kind.OUTPUT).payload == b"ready\n"

        # A new start of the job is refused while the agent lives, and accepted afterwards.
        assert "another horovodrun has a job of this id here" in connect("run-2").end()
        first.process.kill()
        first.end()
        (folder / "go").write_text("go\n")
        assert_gone([pid])

        second = connect("run-1")
        hello = json.loads(second.hello().payload)
        assert [worker["number"] for worker in hello["workers"]] == [7]
        assert (hello["workers"][0]["pid"], hello["workers"][0]["rank_info"]["rank"]) == (pid, 3)
        assert 50_000 < hello["dropped_lines"] < 112_000
        assert second.next(Kind.OUTPUT).payload == b"a line that is rather long\n"
        second.next(Kind.CLOSED)
        second.next(Kind.CLOSED)
        assert second.next(Kind.EXITED).number == 3
        second.process.kill()
        second.end()

        third = connect("run-2")
        assert json.loads(third.hello().payload)["workers"] == []
        third.say(*start_of("exec sleep 1000", store.address))
        pid = third.next(Kind.STARTED).number
        third.say(encode(Kind.END, stream=1))
        assert third.next(Kind.EXITED).number == -15
        third.next(Kind.GONE)
        assert [path.name for path in folder.iterdir()] == ["go"], "which is not the agent's"
        assert third.process.stdin is not None
        assert third.end() == ""
        assert_gone([pid])
