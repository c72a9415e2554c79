"""Each import path of the launcher does what a launcher of others expects of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import facts
import pytest

from horovod.launch.compat import rendezvous_server
from horovod.rendezvous.identity.secret_socket import SecretSocket
from horovod.runner import _HorovodArgs
from horovod.runner.common.util.config_parser import set_env_from_args
from horovod.runner.common.util.hosts import (
    HostInfo,
    SlotInfo,
    get_host_assignments,
    parse_host_files,
    parse_hosts,
)
from horovod.runner.common.util.settings import Settings
from horovod.runner.common.util.timeout import Timeout, TimeoutException
from horovod.runner.elastic.discovery import FixedHosts, HostDiscoveryScript, HostManager
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars, gloo_run
from horovod.runner.http.http_client import put_data_into_kvstore, read_data_from_kvstore
from horovod.runner.http.http_server import KVStoreServer, RendezvousServer
from horovod.runner.launch import _run, parse_args, run_controller

LAUNCHER = facts.launcher()
SECRET = "_HOROVOD_SECRET_KEY"
MEET = """
import numpy, horovod.numpy as hvd
hvd.init()
print(hvd.rank(), hvd.local_size(), hvd.allreduce(numpy.ones(1), op=hvd.Sum)[0])
"""
WAIT = """
import sys, numpy, horovod.numpy as hvd
hvd.init()
print("met", flush=True)
if hvd.rank() == 0:
    sys.stdin.read()
hvd.allreduce(numpy.ones(1), name="after")
"""


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server leaves in the environment belongs to its own test."""
    monkeypatch.setenv(SECRET, "")


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    found = RendezvousServer(verbose=0)
    yield found
    found.stop()


class Job:
    """Two workers, started by hand with the variables that other launchers write."""

    def __init__(self, server: RendezvousServer, environ: Mapping[str, str], **changes: str):
        port = server.start()
        slots = get_host_assignments(parse_hosts("localhost:2"), 2)
        server.init(slots)
        variables = create_run_env_vars("127.0.0.1", ["lo"], port)
        self.environments = [
            {**environ, "HOROVOD_START_TIMEOUT": "30", **variables, **create_slot_env_vars(slot)}
            for slot in slots
        ]
        self.environments[1].update(changes)

    def start(self, script: str) -> list[subprocess.Popen[str]]:
        return [
            subprocess.Popen(
                [sys.executable, "-c", script],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for environment in self.environments
        ]

    def run(self, script: str) -> list[tuple[str, str]]:
        return [process.communicate(timeout=500) for process in self.start(script)]


def without_secret() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != SECRET}


@pytest.mark.parametrize(("path", "names"), LAUNCHER["paths"].items())
def test_path(path: str, names: str) -> None:
    module = import_module(path)
    assert [name for name in names.split() if not hasattr(module, name)] == []


@pytest.mark.parametrize(("statement", "word"), LAUNCHER["replaced"].items())
def test_what_is_replaced_says_by_what(statement: str, word: str) -> None:
    with pytest.raises(ImportError, match=r"docs/migrating\.md") as caught:
        exec(statement)
    assert word in str(caught.value)


def test_other_names_are_missing_as_usual() -> None:
    module = import_module("horovod.runner.gloo_run")
    assert not hasattr(module, "walk")
    with pytest.raises(ModuleNotFoundError):
        import_module("horovod.runner.walk")


@pytest.mark.parametrize("passes_environment_on", [True, False])
def test_workers_started_by_hand_meet(passes_environment_on: bool, server: Any) -> None:
    environ = without_secret()
    job = Job(server, environ)
    if passes_environment_on:
        for environment in job.environments:
            environment[SECRET] = os.environ[SECRET]
    for rank, (output, errors) in enumerate(job.run(MEET)):
        assert output == f"{rank} 2 2.0\n", errors
        assert errors == ""


def test_what_an_image_says_of_mpi_is_ignored(server: RendezvousServer) -> None:
    job = Job(server, without_secret())
    for environment in job.environments:
        environment["HOROVOD_CPU_OPERATIONS"] = "MPI"
    (output, errors), _ = job.run(MEET)
    assert output == "0 2 2.0\n", errors
    assert errors.startswith("HOROVOD_CPU_OPERATIONS=MPI: MPI has not started these processes")


@pytest.mark.parametrize("first", [1, 1000])
def test_names_for_the_secret_that_somebody_else_has(
    first: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another port is taken while there are any; else who has the secret can still meet."""
    tried: list[int] = []

    def serve(port: int, secret: bytes) -> SecretSocket:
        tried.append(port)
        if len(tried) <= first:
            raise OSError("in use")
        return SecretSocket(port, secret)

    monkeypatch.setattr(rendezvous_server, "SecretSocket", serve)
    store = KVStoreServer()
    port = store.start_server()
    try:
        assert (port == tried[-1]) == (first == 1)
        assert (SECRET in capsys.readouterr().err) == (first != 1)
        put_data_into_kvstore("127.0.0.1", port, "scope", "key", 1)
    finally:
        store.shutdown_server()


def test_two_jobs_at_once_and_one_after_the_other(server: RendezvousServer) -> None:
    other = RendezvousServer()
    try:
        jobs = [Job(each, without_secret()) for each in (server, other)]
        running = [process for job in jobs for process in job.start(MEET)]
        outputs = [process.communicate(timeout=500)[0] for process in running]
        assert outputs == ["0 2 2.0\n", "1 2 2.0\n"] * 2
    finally:
        other.stop()
    server.init(get_host_assignments(parse_hosts("localhost:2"), 2))
    assert [output for output, _ in jobs[0].run(MEET)] == ["0 2 2.0\n", "1 2 2.0\n"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"HOROVOD_RANK": "0", "HOROVOD_LOCAL_RANK": "0"}, "two processes are rank 0"),
        ({"HOROVOD_SIZE": "3", "HOROVOD_LOCAL_SIZE": "3"}, "ranks do not fit together"),
        ({SECRET: "c3RyYW5nZXI="}, "_HOROVOD_SECRET_KEY is not this job's"),
    ],
)
def test_workers_that_do_not_fit(
    changes: dict[str, str], text: str, server: RendezvousServer
) -> None:
    job = Job(server, without_secret(), **changes)
    for environment in job.environments:  # one of them may wait in vain
        environment["HOROVOD_START_TIMEOUT"] = "5"
    errors = [errors for _, errors in job.run(MEET)]
    assert any(text in each for each in errors), errors
    assert all("InitError" in each for each in errors)


def test_without_a_server_the_secret_is_asked_for(server: RendezvousServer) -> None:
    job = Job(server, without_secret())
    server.stop()
    for _, errors in job.run(MEET):
        assert (
            errors.strip()
            .splitlines()[-1]
            .startswith(f"horovod.errors.InitError: init: {SECRET} is missing")
        )


def test_a_killed_worker_ends_the_others_wait(server: RendezvousServer) -> None:
    first, second = Job(server, without_secret()).start(WAIT)
    assert first.stdout is not None
    assert second.stdout is not None
    assert (first.stdout.readline(), second.stdout.readline()) == ("met\n", "met\n")
    second.send_signal(signal.SIGKILL)
    second.communicate(timeout=500)
    _, errors = first.communicate("", timeout=500)
    assert "PeerLostError" in errors
    assert "rank 1" in errors


def test_server_refuses_what_is_no_world(server: RendezvousServer) -> None:
    slots = get_host_assignments([HostInfo("localhost", 2)], 2)
    with pytest.raises(RuntimeError, match="call start first"):
        server.init(slots)
    with pytest.raises(ValueError, match="elastic driver"):
        server.start(handler_cls=object)
    server.start()
    with pytest.raises(RuntimeError, match="serves already"):
        server.start()
    with pytest.raises(ValueError, match=r"ranks \[1\] with sizes \[2\]"):
        server.init(slots[1:])


def test_values_in_a_store() -> None:
    store = KVStoreServer(verbose=0)
    port = store.start_server()
    try:
        put_data_into_kvstore("127.0.0.1", port, "scope", "key", {"value": bytes(100_000)})
        found = read_data_from_kvstore("127.0.0.1", port, "scope", "key")
        assert found == {"value": bytes(100_000)}
    finally:
        store.shutdown_server()


def test_hosts(tmp_path: Path) -> None:
    assert parse_hosts("a:2,b:1") == [HostInfo("a", 2), HostInfo("b", 1)]
    assert HostInfo.from_string("a:2") == HostInfo("a", 2)
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb slots=1\n")
    assert parse_host_files(str(file)) == "a:2,b:1"
    with pytest.raises(ValueError, match="invalid host input"):
        parse_hosts("a")
    with pytest.raises(ValueError, match="expected one host"):
        HostInfo.from_string("a:2,b:1")


def test_places() -> None:
    hosts = parse_hosts("a:2,b:1")
    slots = [
        SlotInfo("a", 0, 0, 0, 3, 2, 2),
        SlotInfo("a", 1, 1, 0, 3, 2, 1),
        SlotInfo("b", 2, 0, 1, 3, 1, 2),
    ]
    assert get_host_assignments(hosts, 1) == slots
    assert [slot.hostname for slot in get_host_assignments(hosts, 1, 2)] == ["a", "a"]
    assert slots[2].to_response_string() == "2,3,0,1,1,2"
    assert SlotInfo.from_response_string("2,3,0,1,1,2").cross_rank == 1
    with pytest.raises(ValueError, match=r"4 processes .* 3 slots"):
        get_host_assignments(hosts, 4)


def test_discovery(tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho a:2\necho b\n")
    script.chmod(0o755)
    assert HostDiscoveryScript(str(script), 4).find_available_hosts_and_slots() == {"a": 2, "b": 4}
    with pytest.raises(RuntimeError, match="exited with code 3"):
        HostDiscoveryScript("exit 3", 1).find_available_hosts_and_slots()
    hosts = FixedHosts({"a": 2})
    manager = HostManager(hosts)
    assert [manager.update_available_hosts() for _ in range(2)] == [2, 0]
    hosts.set({"b": 1, "a": 1})
    assert manager.update_available_hosts() == 3
    assert manager.current_hosts.host_assignment_order == ["a", "b"]
    assert manager.current_hosts.count_available_slots() == 2
    manager.blacklist("a")
    assert manager.is_blacklisted("a")
    assert manager.update_available_hosts() == 0
    assert manager.current_hosts.available_hosts == {"b"}
    hosts.set({"b": "two"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"FixedHosts.*'two'.*slots of each host"):
        manager.update_available_hosts()


def test_arguments_run_a_command(tmp_path: Path) -> None:
    args = _HorovodArgs()
    args.num_proc, args.hosts, args.nics = 2, "localhost:2", {"lo"}
    args.verbose, args.use_gloo, args.use_mpi = 0, True, False
    args.cycle_time_ms = 3
    script = MEET + "import os; print(os.environ['HOROVOD_CYCLE_TIME'])"
    args.command = [sys.executable, "-c", script]
    args.output_filename = str(tmp_path / "output")
    assert _run(args) is None
    for rank in (0, 1):
        output = (tmp_path / "output" / f"rank.{rank}" / "stdout").read_text()
        assert output == f"[{rank}]<stdout>:{rank} 2 2.0\n[{rank}]<stdout>:3\n"


def test_arguments_call_a_function() -> None:
    def numbers() -> tuple[str, str]:
        return os.environ["HOROVOD_RANK"], os.environ["HOROVOD_CACHE_CAPACITY"]

    args = _HorovodArgs()
    args.np, args.run_func, args.cache_capacity = 2, numbers, 7
    assert _run(args) == [("0", "7"), ("1", "7")]


def test_a_command_that_fails() -> None:
    args = _HorovodArgs()
    args.num_proc, args.command = 2, "exit 3"
    with pytest.raises(RuntimeError, match="one or more processes exited") as caught:
        _run(args)
    assert str(caught.value).endswith("Exit code: 3")


def test_arguments_that_cannot_be() -> None:
    args = _HorovodArgs()
    with pytest.raises(ValueError, match="neither command nor run_func"):
        _run(args)
    args.command, args.num_proc = "true", "many"
    with pytest.raises(ValueError, match="num_proc='many'"):
        _run(args)
    args.num_proc, args.hosst = 1, "localhost:1"
    with pytest.warns(UserWarning, match="did you mean hosts"):
        _run(args)


def test_command_line_as_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["-np", "2", "--min-np", "1", "--no-stall-check", "--tcp", "-H", "a:2", "train", "-x"]
    monkeypatch.setattr(sys, "argv", ["horovodrun", *words])
    args = parse_args()
    assert (args.num_proc, args.min_num_proc, args.hosts) == (2, 1, "a:2")
    assert (args.no_stall_check, args.stall_check, args.tcp_flag) == (True, None, True)
    assert args.command == ["train", "-x"]
    assert set_env_from_args({}, args) == {"HOROVOD_STALL_CHECK_DISABLE": "1"}


def test_settings_run_a_command(tmp_path: Path) -> None:
    settings = Settings(num_proc=2, hosts="localhost:2", verbose=0, start_timeout=300)
    folder = tmp_path / "made"
    gloo_run(settings, None, {"FOLDER": str(folder)}, "127.0.0.1", 'mkdir "$FOLDER.$HOROVOD_RANK"')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.0", "made.1"]


def test_settings_that_cannot_be() -> None:
    settings = Settings(num_proc=1, start_timeout=Timeout(0, "too late for {activity}"))
    with pytest.raises(TimeoutException, match="too late for processes to start"):
        gloo_run(settings, None, {}, "127.0.0.1", "true")
    with pytest.raises(TypeError, match="must be a dict") as caught:
        gloo_run(Settings(num_proc=1), None, [(SECRET, "shown")], "127.0.0.1", "true")  # type: ignore[arg-type]
    assert "shown" not in str(caught.value)


def test_controllers_and_timeouts() -> None:
    assert (
        run_controller(None, lambda: "gloo", None, lambda: "mpi", None, lambda: "js", 0) == "gloo"
    )
    timeout = Timeout(0, "Timed out waiting for {activity}.")
    with pytest.raises(TimeoutException, match="waiting for tests"):
        timeout.check_time_out_for("tests")
