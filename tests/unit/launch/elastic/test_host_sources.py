"""A discovery script as a child process: started, read, ended; its exits are reaped here."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horovod.launch.elastic.host_sources import DiscoveryScript, Finding


class Runner:
    """A launcher's loop around one script, with a clock that is set by hand."""

    def __init__(self, command: str, slots_per_host: int | None = None) -> None:
        self.selector = selectors.DefaultSelector()
        self.findings: list[Finding] = []
        self.script = DiscoveryScript(
            command,
            slots_per_host,
            self.selector,
            self.findings.append,
            dict(os.environ),
            self._adopt,
        )

    def _adopt(self, pid: int, on_exit: Callable[[int], None]) -> None:
        self.adopted, self.note_exit = pid, on_exit

    @property
    def is_running(self) -> bool:
        return self.script.pid is not None

    def reap(self) -> Finding:
        """Wait for the script's end, reading meanwhile; what came of it."""
        while self.selector.get_map():
            for key, _ in self.selector.select():
                key.data()
        pid, status = os.waitpid(self.script.pid or 0, 0)
        assert pid == self.adopted
        self.note_exit(os.waitstatus_to_exitcode(status))
        return self.findings[-1]

    def run(self, now: float) -> Finding:
        self.script.tick(now)
        return self.reap() if self.is_running else self.findings[-1]

    def close(self) -> None:
        pid = self.script.pid
        self.script.close()
        if pid is not None:
            os.waitpid(pid, 0)
        assert not self.selector.get_map()
        self.selector.close()


@pytest.fixture
def runners() -> Iterator[list[Runner]]:
    made: list[Runner] = []
    yield made
    for runner in made:
        runner.close()


def test_its_output_is_the_answer(runners: list[Runner], tmp_path: Path) -> None:
    path = tmp_path / "find.sh"
    path.write_text("#!/bin/sh\ncat\necho a:2\necho b\n")
    path.chmod(0o755)
    runners.append(runner := Runner(str(path), 4))
    assert runner.run(5.0) == Finding({"a": 2, "b": 4})
    assert runner.script.deadline == 6.0


def test_it_runs_every_second_and_never_twice_at_a_time(runners: list[Runner]) -> None:
    runners.append(runner := Runner("echo a:1; read x < /dev/null; :"))
    for now in (0.0, 1.0, 3.5):
        assert runner.run(now) == Finding({"a": 1})
    assert runner.script.deadline == 4.5
    runner.script.tick(4.4)
    assert not runner.is_running
    runner.script.tick(4.5)
    pid = runner.script.pid
    runner.script.tick(6.0)
    assert runner.script.pid == pid
    runner.reap()


def test_an_exit_status_is_a_failure(runners: list[Runner]) -> None:
    runners.append(runner := Runner("echo a:1; exit 3"))
    assert runner.run(0.0).error.endswith("exit 3 fails: it exited with code 3")


def test_a_command_that_is_not_there(runners: list[Runner]) -> None:
    runners.append(runner := Runner("/nowhere/find.sh"))
    text = "/nowhere/find.sh cannot be run: No such file or directory"
    assert runner.run(0.0).error.endswith(text)
    assert runner.script.deadline == 1.0


@pytest.mark.parametrize(
    ("content", "mode", "command", "text"),
    [
        ("#!/bin/sh\n", 0o755, "hosts.sh", "No such file or directory; did you mean ./hosts.sh?"),
        ("#!/bin/sh\n", 0o644, "./hosts.sh", "Permission denied; try chmod +x ./hosts.sh"),
        ("echo a:1\n", 0o755, "./hosts.sh", "a script begins with a line such as #!/bin/sh"),
    ],
)
def test_a_script_that_cannot_be_run(
    runners: list[Runner],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    mode: int,
    command: str,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "hosts.sh"
    script.write_text(content)
    script.chmod(mode)
    runners.append(runner := Runner(command))
    assert runner.run(0.0).error.endswith(text)


def test_garbage(runners: list[Runner]) -> None:
    runners.append(runner := Runner(r"printf '\377\n'"))
    assert r"line 1, '\\xff': expected host" in runner.run(0.0).error


def test_endless_output_is_not_kept(runners: list[Runner]) -> None:
    runners.append(runner := Runner("head -c 3000000 /dev/zero"))
    assert "more than 1048576 bytes" in runner.run(0.0).error


def test_one_that_takes_too_long_is_killed_with_its_children(runners: list[Runner]) -> None:
    runners.append(runner := Runner("sleep 1000; true"))
    runner.script.tick(0.0)
    assert runner.script.deadline == 10.0
    runner.script.tick(10.0)
    assert runner.findings[-1].error.endswith("is too slow: it took longer than 10 s")
    assert runner.script.deadline is None
    runner.reap()  # at the end of the pipe, which its child holds, too
    assert len(runner.findings) == 1
    assert runner.script.deadline == 1.0


def test_a_child_that_outlives_it_does_not_hold_up_the_answer(runners: list[Runner]) -> None:
    runners.append(runner := Runner("echo a:1; sleep 1000 & echo $! > /dev/stderr; kill -9 $!"))
    assert runner.run(0.0) == Finding({"a": 1})
    runners.append(runner := Runner("echo b:1; sleep 1000 & exit 0"))
    runner.script.tick(0.0)
    group = runner.script.pid or 0
    _, status = os.waitpid(group, 0)
    runner.note_exit(status)
    os.killpg(group, signal.SIGKILL)
    assert runner.findings == [Finding({"b": 1})]


def test_errors_go_where_those_of_the_launcher_go(
    runners: list[Runner], capfd: pytest.CaptureFixture[str]
) -> None:
    runners.append(runner := Runner("echo a:1; echo oh dear >&2"))
    runner.run(0.0)
    assert capfd.readouterr() == ("", "oh dear\n")
