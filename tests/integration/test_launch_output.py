"""Workers' lines on their way through the real launcher: whole, told apart, kept."""

from __future__ import annotations

import array
import fcntl
import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from launching import LAUNCHER, TIMEOUT_S, run, start

pytestmark = pytest.mark.usefixtures("no_child_is_left")


def test_both_streams_are_told_apart() -> None:
    status, out, err = run("-np", "1", "echo out; echo err >&2; printf tail")
    assert (status, out, err) == (
        0,
        "[0]<stdout>:out\n[0]<stdout>:tail\n",
        "[0]<stderr>:err\n",
    )


@pytest.mark.timeout(240)
def test_a_hundred_thousand_lines_arrive_whole() -> None:
    count = 100_000
    script = f"import sys; sys.stdout.write(''.join(f'{{i}} line\\n' for i in range({count})))"
    with start("-np", "3", sys.executable, "-c", script, stderr=subprocess.STDOUT) as process:
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    lines = out.decode().splitlines()
    for rank in range(3):
        prefix = f"[{rank}]<stdout>:"
        mine = [line for line in lines if line.startswith(prefix)]
        assert mine == [f"{prefix}{i} line" for i in range(count)]
    assert len(lines) == 3 * count


def test_output_into_a_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        status, _, _ = run("-np", "1", "printf", "\\377\\0\\n10%%\\r20%%\\r", stdout=file)
    assert status == 0
    expected = b"[0]<stdout>:\xff\0\n[0]<stdout>:10%\r[0]<stdout>:20%\r"
    assert (tmp_path / "out").read_bytes() == expected


def test_output_before_a_failure_is_not_lost() -> None:
    script = "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done; printf last; exit 1"
    status, out, _ = run("-np", "1", "sh", "-c", script)
    assert status == 1
    assert out.splitlines() == [f"[0]<stdout>:{i}" for i in range(2000)] + ["[0]<stdout>:last"]


def test_a_console_that_closes_ends_the_job() -> None:
    script = "while :; do echo line; done"
    with start("-np", "2", "sh", "-c", script) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 141


def test_a_console_that_nobody_reads_does_not_hide_a_failure(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    script = f"if [ $HOROVOD_RANK = 1 ]; then read line < {tmp_path}/go; exit 5; fi; yes"
    with start("-np", "2", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pending = array.array("i", [0])
        while pending[0] < 15 * 4096:  # the pipe takes 64 KiB: it is full now, or almost
            fcntl.ioctl(process.stdout, termios.FIONREAD, pending)
            os.sched_yield()
        (tmp_path / "go").write_text("\n")
        # Standard output is left unread until the failure has been reported.
        assert b"rank 1" in process.stderr.readline()
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert err.endswith(b"Process name: 1\nExit code: 5\n")


def test_the_lines_of_each_rank_are_kept(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; printf tail"
    status, out, _ = run("-np", "11", "--output-filename", f"{tmp_path}/a/b", "sh", "-c", script)
    assert status == 0
    assert len(out.splitlines()) == 22
    folders = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert folders == [f"rank.{rank:02}" for rank in range(11)]
    kept = tmp_path / "a" / "b" / "rank.07"
    assert (kept / "stdout").read_text() == "[7]<stdout>:out\n[7]<stdout>:tail\n"
    assert (kept / "stderr").read_text() == "[7]<stderr>:err\n"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, out, err = run("-np", "1", "--output-filename", f"{tmp_path}/file/x", "echo", "never")
    assert (status, out) == (2, "")
    assert "--output-filename" in err
    assert "Traceback" not in err


def test_standard_files_may_be_closed() -> None:
    words = " ".join([*LAUNCHER, "-np", "2", "true"])
    with subprocess.Popen(["/bin/sh", "-c", f"exec {words} <&- >&- 2>&-"]) as process:
        assert process.wait(TIMEOUT_S) == 0
