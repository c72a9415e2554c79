"""The files of ``--output-filename``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from horovod.launch.workers.logs import LogFile, Logs


@pytest.mark.parametrize(("count", "name"), [(1, "rank.0"), (10, "rank.0"), (11, "rank.00")])
def test_numbers_are_as_wide_as_the_largest(count: int, name: str, tmp_path: Path) -> None:
    with closing(Logs(tmp_path / "a" / "b", range(count))) as logs:
        assert len(list((tmp_path / "a" / "b").iterdir())) == count
        out, err = logs.of(0)
        assert out
        assert err
        out.write(b"out")
        err.write(b"err")
    assert (tmp_path / "a" / "b" / name / "stdout").read_bytes() == b"out"
    assert (tmp_path / "a" / "b" / name / "stderr").read_bytes() == b"err"


def test_files_of_an_earlier_job_are_emptied(tmp_path: Path) -> None:
    Logs(tmp_path, [0]).close()
    (tmp_path / "rank.0" / "stdout").write_bytes(b"old")
    Logs(tmp_path, [0]).close()
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == b""


def test_a_job_that_is_continued_adds_to_its_files(tmp_path: Path) -> None:
    for text in (b"a", b"b"):
        with closing(Logs(tmp_path, [0], is_continued=text == b"b")) as logs:
            out, _ = logs.of(0)
            assert out
            out.write(text)
            out.close()
            again, _ = logs.of(0)
            assert again is out
            out.write(text)
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == b"aabb"


def test_without_a_folder_nothing_is_kept() -> None:
    logs = Logs(None, [0, 1])
    assert logs.of(1) == (None, None)
    assert (logs.news(), logs.summary()) == ("", "")


def test_what_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "rank.1").touch()
    with pytest.raises(OSError, match="exists"):
        Logs(tmp_path, [0, 1])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_once_and_all_that_is_incomplete_in_the_end(tmp_path: Path) -> None:
    logs = Logs(tmp_path, [0, 1])
    for rank in (0, 1):
        out, _ = logs.of(rank)
        assert out
        out._file.close()
        out._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    files: list[LogFile] = [log for rank in (0, 1) for log in logs.of(rank) if log]
    assert logs.news() == ""
    for log in reversed(files):
        log.write(b"x")
        log.write(b"y")
        log.close()
    problem = "is incomplete from here on: No space left on device; the job goes on"
    assert logs.news() == f"{tmp_path}/rank.0/stdout {problem}"
    assert logs.news() == ""
    assert logs.summary() == f"incomplete, too: {tmp_path}/rank.1/stdout"
    assert (tmp_path / "rank.1" / "stderr").read_bytes() == b"xy"
