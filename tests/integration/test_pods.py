"""The pods of a job as processes of this machine, with the settings of a manifest."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from launching import TIMEOUT_S, assert_gone, pids_told, run

pytestmark = pytest.mark.usefixtures("no_child_is_left")

SECRET = base64.b64encode(bytes(range(32))).decode()
WAITER = 'echo "$HOROVOD_RANK pid $$"; exec sleep 1000'


class Pods:
    """Starts the pods of one job; pod 0 listens at ``address``."""

    def __init__(self) -> None:
        # There are many loopback addresses, so no other process takes this port.
        self.address = f"127.{os.getpid() % 250 + 1}.{time.monotonic_ns() % 250}.1"
        with socket.create_server((self.address, 0)) as free:
            self.port = free.getsockname()[1]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        index: int,
        *arguments: str,
        secret: str = SECRET,
        timeout_s: float = 60,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "JOB_COMPLETION_INDEX": str(index),
            "_HOROVOD_SECRET_KEY": secret,
            "HOROVOD_START_TIMEOUT": str(timeout_s),
            **(variables or {}),
        }
        store = f"{self.address}:{self.port}"
        process = subprocess.Popen(
            [sys.executable, "-m", "horovod.launch.kubernetes.pod", "--store", store, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End the processes that a failed test has left."""
        for process in self._processes:
            with process:
                process.kill()


@pytest.fixture
def pods() -> Iterator[Pods]:
    made = Pods()
    yield made
    made.close()


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out.decode(), err.decode()


def test_the_ranks_of_three_pods(pods: Pods) -> None:
    shown = " ".join(f"$HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    script = f"echo {shown} $HOROVOD_CROSS_RANK $HOROVOD_CROSS_SIZE ${{HOROVOD_GLOO_IFACE-any}}"
    arguments = ("-np", "5", "--slots-per-host", "2", "--", "sh", "-c", script)
    started = [pods.start(index, *arguments) for index in (2, 0, 1)]
    ended = [finish(process) for process in started]
    assert [status for status, _, _ in ended] == [0, 0, 0], ended
    lines = sorted(line for _, out, _ in ended for line in out.splitlines())
    assert lines == [
        "[0]<stdout>:0 5 0 2 0 3 any",
        "[1]<stdout>:1 5 1 2 0 2 any",
        "[2]<stdout>:2 5 0 2 1 3 any",
        "[3]<stdout>:3 5 1 2 1 2 any",
        "[4]<stdout>:4 5 0 1 2 3 any",
    ]


def test_the_ranks_of_all_pods_are_a_world(pods: Pods) -> None:
    script = (
        "import numpy as np, horovod.numpy as hvd; hvd.init(); "
        "print(hvd.allreduce(np.ones(1) * (hvd.rank() + 1), op=hvd.Sum)[0])"
    )
    arguments = ("-np", "3", "--slots-per-host", "2", "--", sys.executable, "-c", script)
    started = [pods.start(index, *arguments) for index in (0, 1)]
    ended = [finish(process) for process in started]
    assert [status for status, _, _ in ended] == [0, 0], ended
    lines = sorted(line for _, out, _ in ended for line in out.splitlines())
    assert lines == [f"[{rank}]<stdout>:6.0" for rank in range(3)]


def test_a_line_begins_when_all_pods_have_finished_the_one_before(
    pods: Pods, tmp_path: Path
) -> None:
    first = f'[ $HOROVOD_RANK = 0 ] || until [ -e {tmp_path}/go ]; do sleep 0.01; done; echo "1 0"'
    second = f"touch {tmp_path}/second.$HOROVOD_RANK"
    arguments = ("-np", "2", "--slots-per-host", "1", f"--line={first}", f"--line={second}")
    started = [
        pods.start(index, *arguments, "--output-filename", f"{tmp_path}/logs") for index in (0, 1)
    ]
    pids_told(started[0], 1)
    assert not list(tmp_path.glob("second.*"))
    (tmp_path / "go").touch()
    assert [finish(process)[0] for process in started] == [0, 0]
    assert sorted(path.name for path in tmp_path.glob("second.*")) == ["second.0", "second.1"]
    assert (tmp_path / "logs" / "line.1" / "rank.1" / "stdout").exists()


def test_a_manifest_runs_as_its_file_does(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "riseml.yml").write_text(
        "project: demo\ntrain:\n  framework: tensorflow\n  image: any\n  resources: {}\n"
        "  tensorflow: {horovod: {workers: 2}}\n  parameters: {lr: [1e-6]}\n"
        "  run: ['echo $HOROVOD_RANK/$HOROVOD_SIZE {{lr}} $LR $(echo \"a  b\") $$$$', 'exit 0']\n"
    )
    status, text, err = run("-f", f"{tmp_path}/riseml.yml", "--kubernetes")
    assert status == 0, err
    job = list(yaml.safe_load_all(text))[-1]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    # As the kubelet reads them; the name of pod 0 cannot be resolved here.
    arguments = [word.replace("$$", "$") for word in container["command"]]
    arguments = (
        arguments[arguments.index("-np") : arguments.index("--store")]
        + arguments[arguments.index("--store") + 2 :]
    )
    started = [pods.start(index, *arguments, variables=variables) for index in (0, 1)]
    ended = [finish(process) for process in started]
    for rank, (status, out, err) in enumerate(ended):
        assert status == 0, err
        assert re.fullmatch(rf"\[{rank}\]<stdout>:{rank}/2 1e-6 1e-6 a b \d+\n", out), out


@pytest.mark.parametrize("failing", [0, 1])
def test_the_first_failure_ends_all_pods(pods: Pods, failing: int) -> None:
    script = f"if [ $HOROVOD_RANK = {failing * 2} ]; then exit 3; fi; {WAITER}"
    arguments = ("-np", "4", "--slots-per-host", "2", "--", "sh", "-c", script)
    started = [pods.start(index, *arguments) for index in (0, 1)]
    ended = [finish(process) for process in started]
    assert ended[failing][0] == 1
    assert f"rank {failing * 2} on " in ended[failing][2]
    status, _, err = ended[1 - failing]
    assert status == 143
    assert f"ending this pod: pod {failing}: rank {failing * 2} exited with code 3" in err
    assert_gone([int(line.split()[-1]) for _, out, _ in ended for line in out.splitlines()])


# If a pod other than 0 is lost, the cluster notices it and ends the job.
@pytest.mark.parametrize(
    ("ended", "signum"), [(0, signal.SIGTERM), (1, signal.SIGTERM), (0, signal.SIGKILL)]
)
def test_a_pod_that_is_ended_ends_the_others(pods: Pods, ended: int, signum: int) -> None:
    arguments = ("-np", "2", "--slots-per-host", "1", "--", "sh", "-c", WAITER)
    started = [pods.start(index, *arguments) for index in (0, 1)]
    pids = [pid for process in started for pid in pids_told(process, 1)]
    started[ended].send_signal(signum)
    statuses = [finish(process)[0] for process in started]
    assert statuses[ended] == (143 if signum == signal.SIGTERM else -signal.SIGKILL)
    assert statuses[1 - ended] == 143
    assert_gone(pids)


def test_a_command_that_is_not_there(pods: Pods) -> None:
    arguments = ("-np", "1", "--slots-per-host", "1", "--", "no-such-command")
    status, _, err = finish(pods.start(0, *arguments))
    assert status == 127
    assert "command not found in PATH" in err


def test_a_pod_that_cannot_keep_output_ends_the_others(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ("-np", "2", "--slots-per-host", "1", "--", "sh", "-c", WAITER)
    waiting = pods.start(0, *arguments)
    status, _, err = finish(pods.start(1, "--output-filename", f"{tmp_path}/file", *arguments))
    assert status == 1
    assert "pod 1 of 2: " in err
    assert "Not a directory" in err or "File exists" in err
    status, _, err = finish(waiting)
    assert status == 143
    assert "ending this pod: pod 1: " in err


def test_pods_that_do_not_come_are_named(pods: Pods) -> None:
    arguments = ("-np", "3", "--slots-per-host", "1", "--", "true")
    started = [pods.start(index, *arguments, timeout_s=10) for index in (0, 2)]
    ended = [finish(process) for process in started]
    assert [status for status, _, _ in ended] == [1, 1]
    assert "pod 0 of 3: 1 of 3 pods did not come within 10 s: 1\n" in ended[0][2]


def test_without_pod_0(pods: Pods) -> None:
    arguments = ("-np", "2", "--slots-per-host", "1", "--", "true")
    status, _, err = finish(pods.start(1, *arguments, timeout_s=0.5))
    assert status == 1
    assert "pod 1 of 2: pod 0 did not come within 0.5 s" in err


def test_a_waiting_pod_can_be_ended(pods: Pods) -> None:
    """Also for the first process of a container, which signals do not end by default."""
    arguments = ("-np", "2", "--slots-per-host", "1", "--", "true")
    waiting = pods.start(0, *arguments)
    while True:
        try:
            socket.create_connection((pods.address, pods.port), timeout=TIMEOUT_S).close()
            break
        except ConnectionRefusedError:
            assert waiting.poll() is None
    waiting.send_signal(signal.SIGTERM)
    assert finish(waiting)[0] == 143


def test_a_pod_with_another_secret_is_refused(pods: Pods) -> None:
    arguments = ("-np", "2", "--slots-per-host", "1", "--", "true")
    first = pods.start(0, *arguments)
    stranger = pods.start(1, *arguments, secret=base64.b64encode(b"x" * 32).decode())
    status, _, err = finish(stranger)
    assert status == 1
    assert "_HOROVOD_SECRET_KEY is not this job's" in err
    assert finish(pods.start(1, *arguments))[0] == 0
    status, _, err = finish(first)
    assert status == 0
    assert "it does not know the job's secret" in err


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("JOB_COMPLETION_INDEX", "2", "expected a number from 0 to 1"),
        ("JOB_COMPLETION_INDEX", "", "expected a number from 0 to 1"),
        ("_HOROVOD_SECRET_KEY", "?", "is missing or not base64"),
        ("HOROVOD_START_TIMEOUT", "soon", "HOROVOD_START_TIMEOUT='soon'"),
    ],
)
def test_wrong_variables_are_refused(variable: str, value: str, text: str) -> None:
    given = {
        "JOB_COMPLETION_INDEX": "0",
        "_HOROVOD_SECRET_KEY": SECRET,
        "HOROVOD_START_TIMEOUT": "5",
        variable: value,
    }
    arguments = ("--store", "127.0.0.1:1", "-np", "2", "--slots-per-host", "1", "--", "true")
    refused = subprocess.run(
        [sys.executable, "-m", "horovod.launch.kubernetes.pod", *arguments],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert refused.returncode == 2
    assert text in refused.stderr
