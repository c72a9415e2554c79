"""Forks that pass for new processes. Tests are scripts: this process here has loaded too much."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from horovod.launch.forks import starts_alike

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux"),
]

SEE = """
def see():
    import faulthandler, json, locale, os, signal, sys
    fds = {int(n): os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")}
    status = open("/proc/self/status").readlines()
    kinds = "name", "mode", "encoding", "errors", "line_buffering", "write_through"
    json.dump({
        "environment": dict(os.environ),
        "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
        "ignored": [line for line in status if line.startswith(("SigIgn", "SigBlk"))],
        "wakeup": signal.set_wakeup_fd(-1),
        "faulthandler": faulthandler.is_enabled(),
        "leads": (os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()),
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_CTYPE),
        "input": sys.stdin.read(),
        "output": [[getattr(f, kind) for kind in kinds] for f in (sys.stdout, sys.stderr)],
        "buffers": [type(f.buffer).__name__ for f in (sys.stdout, sys.stderr)],
        "own": (sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__),
        "open": [n for n, to in fds.items() if n > 2 and to != os.devnull and "/fd" not in to],
        "given": os.read(5, 100).decode(),
        "main": list(vars(sys.modules["__main__"])),
        "argv": sys.argv,
        "path": sys.path,
    }, sys.stdout)
"""
PARENT = """
import faulthandler, os, signal, socket, sys, tempfile
from horovod.launch.forks import fork, fork_with_pipes, may_fork
def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def outcome(main, environment=os.environ, descriptors={}):
    pipes = fork_with_pipes(main, environment, descriptors)
    out, err = (open(fd).read() for fd in (pipes.stdout_fd, pipes.stderr_fd))
    return ended(pipes.pid), out, err
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs a script in a Python started anew; returns what it printed."""

    def run(*parts: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(map(dedent, parts))],
            env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **environment},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return run


def test_a_fork_sees_what_a_new_process_sees(run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "see").write_text(SEE)
    seen = run(
        SEE,
        PARENT,
        """
        import json, subprocess
        ours, _theirs = socket.socketpair()
        ours.setblocking(False)
        signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        faulthandler.enable()
        sys.argv = ["of the parent"]
        environment = {**os.environ, "OF_THE_CHILD": "1", "PYTHONPATH": "ahead"}
        del environment["OF_THE_PARENT"]
        reads, writes = os.pipe()
        os.dup2(reads, 5)

        os.write(writes, b"text")
        forked = outcome(see, environment, {5: reads})
        assert forked[0] == 0 and forked[2] == "", forked
        os.write(writes, b"text")
        # How a launcher starts one that is no fork.
        script = "import sys; sys.path[:] = filter(None, sys.path); exec(open('see').read()); see()"
        started = subprocess.run(
            [sys.executable, "-c", script], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, pass_fds=(5,), start_new_session=True, check=True)
        print(json.dumps([json.loads(forked[1]), json.loads(started.stdout)]))
        """,
        OF_THE_PARENT="1",
    )
    forked, started = json.loads(seen)
    of_the_script = {"see", "sys", "__annotations__", "__warningregistry__"}
    assert set(forked.pop("main")) == set(started.pop("main")) - of_the_script
    assert forked["path"][0] == str(tmp_path / "ahead")
    assert forked == started


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("pass", (0, "", "")),
        ("print('a line'); sys.exit()", (0, "a line\n", "")),
        ("sys.exit(3)", (3, "", "")),
        ("sys.exit('why')", (1, "", "why\n")),
        ("os.kill(os.getpid(), signal.SIGKILL)", (-9, "", "")),
        ("import atexit; atexit.register(print, 'at the end')", (0, "at the end\n", "")),
        (
            "import threading, time; threading.Timer(0.1, print, ('a thread',)).start()",
            (0, "a thread\n", ""),
        ),
    ],
)
def test_how_a_fork_ends(run: Callable[..., str], main: str, expected: tuple[Any, ...]) -> None:
    found = run(PARENT, f"def main():\n    {main}\nprint(outcome(main))")
    assert found == f"{expected}\n"


def test_an_error_is_printed_and_no_frame_of_the_parent_goes_on(run: Callable[..., str]) -> None:
    found = run(
        PARENT,
        """
        def main():
            raise ValueError("of the child")
        try:
            code, out, err = outcome(main)
        finally:
            print("one process", flush=True)
        print(code, out == "", err.splitlines()[-1])
        """,
    )
    assert found == "one process\n1 True ValueError: of the child\n"


def test_what_the_parent_has_not_yet_written_is_written_once(run: Callable[..., str]) -> None:
    found = run(PARENT, "print('a line'); print(outcome(lambda: None))", PYTHONUNBUFFERED="")
    assert found == "a line\n(0, '', '')\n"


def test_random_numbers_are_its_own(run: Callable[..., str]) -> None:
    found = run(
        PARENT,
        """
        import random, numpy
        def numbers():
            print(random.random(), numpy.random.random())
        random.seed(0), numpy.random.seed(0)
        pairs = [outcome(numbers)[1].split() for _ in range(2)]
        numbers()
        for pair in pairs:
            print(*pair)
        """,
    )
    assert len(set(found.split())) == 6


def test_signals_reach_a_fork_from_the_first_moment_on(run: Callable[..., str]) -> None:
    """The parent, as agents do, has handlers of its own and a descriptor to wake it."""
    found = run(
        PARENT,
        """
        from horovod.launch.wakeups import Wakeups
        with Wakeups() as wakeups:
            for _ in range(20):
                pid = fork(signal.pause, os.environ, {})
                os.killpg(pid, signal.SIGTERM)
                assert ended(pid) == -signal.SIGTERM
            print(set(wakeups.take_signals()) - {signal.SIGCHLD})
        """,
    )
    assert found == "set()\n"


def test_connections_and_folders_stay_the_parents(run: Callable[..., str]) -> None:
    found = run(
        PARENT,
        """
        ours, theirs = socket.socketpair()
        folder = tempfile.TemporaryDirectory()
        def close_what_was_inherited():
            ours.close()
            theirs.close()
            folder.cleanup  # known to it
        assert outcome(close_what_was_inherited) == (0, "", "")
        print(os.path.isdir(folder.name))
        pid = fork(signal.pause, os.environ, {})
        theirs.close()
        print(ours.recv(1))
        os.kill(pid, signal.SIGKILL)
        print(ended(pid))
        """,
    )
    assert found == "True\nb''\n-9\n"


def test_the_end_of_a_fork_is_not_that_of_the_parent(run: Callable[..., str]) -> None:
    found = run(
        PARENT,
        """
        import atexit, logging, logging.handlers, multiprocessing.util, socket, weakref
        class Holder: pass
        holder = Holder()
        weakref.finalize(holder, print, "the parent's object")
        atexit.register(print, "the parent's end")
        helper = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
        helper.start()
        logging.basicConfig(level="DEBUG", stream=sys.stdout)
        socket.setdefaulttimeout(1)
        os.environ["TMPDIR"] = os.curdir
        tempfile.gettempdir()

        def main():
            logging.debug("of the fork")
            print(socket.getdefaulttimeout(), tempfile.gettempdir() == "/")
            weakref.finalize(main, print, "the fork's object")
            later = logging.handlers.MemoryHandler(9, target=logging.StreamHandler(sys.stdout))
            logging.getLogger("later").addHandler(later)
            logging.getLogger("later").warning("logged at the end")
        print(outcome(main, {**os.environ, "TMPDIR": "/"})[1].splitlines())
        print(helper.is_alive())
        helper.kill()
        """,
    )
    lines = ["None True", "the fork's object", "logged at the end"]
    last = "the parent's end\nthe parent's object\n"
    assert found == f"{lines}\nTrue\n{last}"


def test_files_that_nobody_has_closed_are_complete(run: Callable[..., str]) -> None:
    found = run(
        PARENT,
        """
        import gzip, lzma
        ours = open("ours", "w")
        ours.write("once")
        def main():
            import types
            module = sys.modules["of_a_user"] = types.ModuleType("of_a_user")
            module.text = open("text", "w")
            module.text.write("a line")
            module.bytes = open("bytes", "r+b" if os.path.exists("bytes") else "w+b")
            module.bytes.write(b"a line")
            module.packed = gzip.open("packed", "wt")
            module.packed.write("a line")
            module.xz = lzma.LZMAFile("xz", "w")
            module.xz.write(b"a line")
        assert outcome(main) == (0, "", "")
        print(open("text").read(), open("bytes").read(), open("ours").read() == "")
        print(gzip.open("packed").read(), lzma.open("xz").read())
        """,
    )
    assert found == "a line a line True\nb'a line' b'a line'\n"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", True),
        ("import numpy", True),
        ("import horovod.numpy, horovod.launch.guest_agent, horovod.launch.by_value", True),
        ("import threading; threading.Thread(target=signal.pause, daemon=True).start()", False),
        ("import threading; t = threading.Thread(target=int); t.start(); t.join()", True),
        ("sys.modules['of_a_user'] = sys", False),
        ("sys.setprofile(lambda *_: None)", False),
        ("sys.settrace(lambda *_: None)", False),
        ("sys.__stdin__ = None", False),
    ],
)
def test_who_may_fork(run: Callable[..., str], before: str, expected: bool) -> None:
    assert run(PARENT, before, "found = may_fork()", "print(found)") == f"{expected}\n"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"HOROVOD_RANK": "1", "PATH": "/elsewhere", "CUDA_VISIBLE_DEVICES": "3"}, True),
        ({"PYTHONPATH": "/elsewhere", "PYTHONUNBUFFERED": "1"}, True),
        ({"OMP_NUM_THREADS": "77"}, False),
        ({"LD_PRELOAD": "libother.so"}, False),
        ({"PYTHONUTF8": "0"}, False),
        ({"MALLOC_ARENA_MAX": "77"}, False),
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "tlh_KX.utf8@of_theirs"}, True),
        ({"LC_ALL": "tlh_KX.ISO8859-15"}, False),
        ({"LC_ALL": "tlh"}, False),
    ],
)
def test_what_is_read_at_the_start(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str], expected: bool
) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert starts_alike({**os.environ, **change}) is expected


@pytest.mark.parametrize("whose", ["own", "other"])
def test_what_users_have_installed_for_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whose: str
) -> None:
    homes = {name: str(tmp_path / name) for name in ("own", "other")}
    environment = {**os.environ, "HOME": homes["other"]}
    monkeypatch.setenv("HOME", homes["own"])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "USER_SITE", f"{homes['own']}/.local/packages")
    assert starts_alike(environment)
    Path(homes[whose], ".local", "packages").mkdir(parents=True)
    assert not starts_alike(environment)
    assert starts_alike(dict(os.environ))


def test_what_is_read_at_the_start_and_no_longer_there(monkeypatch: pytest.MonkeyPatch) -> None:
    without = dict(os.environ)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "77")
    assert not starts_alike(without)
