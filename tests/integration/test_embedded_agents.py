"""Jobs on embedded agents, which another engine has started: here the test itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from embedded_jobs import HERE, call
from launching import assert_gone

from horovod.launch.calls.call import Call
from horovod.launch.embedded.agent_news import AgentDirectory, FoundAgent
from horovod.launch.embedded.embedded_agent import EmbeddedAgent
from horovod.launch.model.job_plan import ElasticPlan, EmbeddedAgentAddress, JobPlan, Limits
from horovod.launch.run.function import run_call

pytestmark = pytest.mark.usefixtures("nothing_is_left")

ENGINE = """
import sys
from horovod.launch.embedded.embedded_agent import EmbeddedAgent
name, secret = sys.stdin.readline().split()
with EmbeddedAgent("127.0.0.1", bytes.fromhex(secret), launcher="127.0.0.1",
           environment={"GUEST": name}) as agent:
    print(agent.address[1], flush=True)
    sys.exit(agent.wait())
"""


@dataclass
class Engine:
    """A process with an embedded agent, which listens at ``address``."""

    process: subprocess.Popen[str]
    address: tuple[str, int]


@contextmanager
def two_agents(secret: bytes) -> Iterator[dict[str, EmbeddedAgent]]:
    with ExitStack() as agents:
        yield {
            f"node/{name}": agents.enter_context(
                EmbeddedAgent(HERE, secret, launcher=HERE, environment={"GUEST": name})
            )
            for name in ("a", "b")
        }


@contextmanager
def two_engines(secret: bytes) -> Iterator[dict[str, Engine]]:
    with ExitStack() as processes:
        engines = {}
        for name in ("a", "b"):
            process = processes.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ENGINE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            processes.callback(process.kill)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{name} {secret.hex()}\n")
            process.stdin.flush()
            engines[f"node/{name}"] = Engine(process, (HERE, int(process.stdout.readline())))
        yield engines


def position_of_worker() -> tuple[Any, ...]:
    import horovod.numpy as hvd

    hvd.init()
    sum_ = float(hvd.allreduce(np.array([hvd.rank() + 1.0]), op=hvd.Sum)[0])
    names = os.environ["GUEST"], os.environ["HOROVOD_HOSTNAME"]
    print("hello from", names[0])
    return hvd.rank(), hvd.local_rank(), hvd.local_size(), *names, sum_


def test_a_job_on_agents(capfd: pytest.CaptureFixture[str]) -> None:
    secret = os.urandom(32)
    with two_agents(secret) as agents:
        found = call(position_of_worker, agents, secret)
        assert found == [(0, 0, 2, "a", "node", 3), (1, 1, 2, "b", "node", 3)]
        assert [agent.wait() for agent in agents.values()] == [0, 0]
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0]<stdout>:hello from a", "[1]<stdout>:hello from b"]
    assert err == ""


def test_the_error_of_a_rank(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("of rank 1")
        signal.pause()

    secret = os.urandom(32)
    with (
        two_agents(secret) as agents,
        pytest.raises(RuntimeError, match="rank 1 raised KeyError: 'of rank 1'") as caught,
    ):
        call(fail, agents, secret)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "KeyError: 'of rank 1'" in capfd.readouterr().err


def test_an_agent_that_is_lost_is_named() -> None:
    def wait_for_an_end() -> None:
        import horovod.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        hvd.allreduce(np.ones(1), name=f"only in rank {hvd.rank()}")

    secret = os.urandom(32)
    with (
        two_agents(secret) as agents,
        pytest.raises(RuntimeError, match=r"(?s)connection to node/b \(rank 1\).*Process name: 1"),
    ):
        call(wait_for_an_end, agents, secret)


def test_strangers_are_not_let_in() -> None:
    with two_agents(os.urandom(32)) as agents:
        with pytest.raises(RuntimeError, match="could not connect to some embedded agents"):
            call(position_of_worker, agents, os.urandom(32))
        for agent in agents.values():
            with socket.create_connection(agent.address) as stranger:
                stranger.sendall(b"x" * 100)
                while stranger.recv(1000):  # its handshake, and then the end
                    pass


def test_the_end_of_an_agent_ends_its_worker(tmp_path: Path) -> None:
    def hang() -> None:
        Path(tmp_path, os.environ["GUEST"]).write_text(str(os.getpid()))
        signal.pause()

    secret, file = os.urandom(32), Path(tmp_path, "b")
    with two_agents(secret) as agents, ThreadPoolExecutor(1) as pool:
        found = pool.submit(call, hang, agents, secret)
        while not (file.exists() and file.read_text()) and not found.done():
            time.sleep(0.01)
        agents["node/b"].end()
        with pytest.raises(RuntimeError, match="rank 1"):
            found.result()
        assert agents["node/b"].wait() == 1
        assert not psutil.pid_exists(int(file.read_text()))


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_engines_process_ends_agent_and_worker(
    tmp_path: Path, signum: signal.Signals
) -> None:
    def hang() -> None:
        file = Path(tmp_path, os.environ["GUEST"])
        file.with_suffix(".new").write_text(f"{os.getppid()} {os.getpid()}")
        file.with_suffix(".new").rename(file)
        signal.pause()

    secret = os.urandom(32)
    files = [tmp_path / "a", tmp_path / "b"]
    with two_engines(secret) as engines, ThreadPoolExecutor(1) as pool:
        found = pool.submit(call, hang, engines, secret)
        while not all(file.exists() for file in files) and not found.done():
            time.sleep(0.01)
        engines["node/b"].process.send_signal(signum)
        with pytest.raises(RuntimeError, match="rank 1"):
            found.result()
        assert_gone([int(pid) for file in files for pid in file.read_text().split()])


def test_an_elastic_job_gets_another_agent() -> None:
    secret, book = os.urandom(32), AgentDirectory()
    agents: dict[str, EmbeddedAgent] = {}
    lock = threading.Lock()

    def tell(name: str, agent: EmbeddedAgent | None) -> None:
        with lock:
            agents.pop(name, None)
            agents.update({name: agent} if agent else {})
            addresses = {
                name: EmbeddedAgentAddress(*g.address, secret) for name, g in agents.items()
            }
            book.write({name: FoundAgent(address) for name, address in addresses.items()})

    def task(node: str) -> None:
        """Like an engine that starts a failed task again."""
        for attempt in range(3):
            name = f"{node}/{attempt}"
            with EmbeddedAgent(HERE, secret, launcher=HERE, ends_with_failure=True) as agent:
                tell(name, agent)
                exit_code = agent.wait()
            tell(name, None)
            if exit_code == 0:
                return

    tasks = [threading.Thread(target=task, args=(node,)) for node in ("one", "two")]
    for each in tasks:
        each.start()
    limits = Limits(2, 2, 3, None, 60, None)
    plan = JobPlan(elastic=ElasticPlan(limits, most_results=3))
    found = run_call(Call(count_with_a_loss, (), {}), plan, agents=book)
    for each in tasks:
        each.join()
    assert found == [(0, 2, 20), (1, 2, 20)]


def count_with_a_loss() -> tuple[int, int, int]:
    import horovod.numpy as hvd
    from horovod.elastic import ObjectState, run_fn

    def restart() -> None:
        hvd.shutdown()
        hvd.init()

    def count(state: Any) -> tuple[int, int, int]:
        while state.step < 20:
            hvd.allreduce(np.ones(1))
            if state.step == 10 and not state.has_lost:
                state.has_lost = True
                state.commit()
                if hvd.rank() == 1:
                    os._exit(3)
            state.step += 1
            state.commit()
        return hvd.rank(), hvd.size(), state.step

    hvd.init()
    state = ObjectState(hvd.broadcast_object, hvd.rank, step=0, has_lost=False)
    return run_fn(count, restart)(state)
