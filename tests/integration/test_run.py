"""``horovod.run`` with real processes: arguments and results; nothing is left behind."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import horovod
import horovod.runner

pytestmark = pytest.mark.usefixtures("nothing_is_left")

DOCS = Path(__file__).parents[2] / "docs"


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def moved(point: Point, by: int = 0) -> Point:
    return Point(point.x + by + rank())


@pytest.mark.parametrize("count", [1, 2, 8])
def test_results_come_by_rank(count: int) -> None:
    def body(base: int, *, factor: int) -> tuple[int, int]:
        return base + factor * rank(), int(os.environ["HOROVOD_SIZE"])

    results = horovod.run(body, args=(100,), kwargs={"factor": 3}, num_proc=count)
    assert results == [(100 + 3 * r, count) for r in range(count)]


def test_the_processes_are_a_world() -> None:
    torch = pytest.importorskip("torch")
    scale = torch.arange(4.0)

    def body() -> Any:
        import horovod.torch as hvd

        hvd.init()
        return hvd.allreduce(scale * (hvd.rank() + 1), op=hvd.Sum)

    for result in horovod.run(body, num_proc=2, use_gloo=True):
        assert torch.equal(result, scale * 3)


def test_functions_and_classes_of_a_module_that_workers_cannot_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "loaded_from_a_file.py"
    path.write_text(
        "import os\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "def moved(point, by): return Point(point.x + by + int(os.environ['HOROVOD_RANK']))\n"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, loaded)
    spec.loader.exec_module(loaded)
    results = horovod.run(loaded.moved, (loaded.Point(5),), {"by": 2}, num_proc=2)
    assert all(type(result) is loaded.Point for result in results)
    assert [result.x for result in results] == [7, 8]


def test_lambdas_partials_and_methods() -> None:
    assert horovod.run(lambda: 7) == [7]
    assert horovod.run(functools.partial(moved, Point(1), by=1))[0].x == 2
    assert horovod.run("a-b".split, ("-",)) == [["a", "b"]]


def test_hundreds_of_megabytes_come_back() -> None:
    count = 300 * 1024 * 1024 // 8
    big, small = horovod.run(lambda: np.arange(count if rank() == 0 else 3), num_proc=2)
    assert big.shape == (count,)
    assert big[-1] == count - 1
    assert small.tolist() == [0, 1, 2]


def test_modules_are_found_where_the_caller_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    assert horovod.run(only_here.answer, num_proc=2) == [42, 42]


def test_the_command_line_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    assert horovod.run(lambda: sys.argv) == [["train.py", "--epochs", "3"]]


def test_a_file_in_the_working_directory_replaces_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pickle", "selectors", "horovod"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    assert horovod.run(os.getcwd) == [str(tmp_path)]


def test_output_has_the_rank_in_front_and_is_kept_by_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        print("out", rank())
        print("err", rank(), file=sys.stderr)

    folder = tmp_path / "logs"
    assert horovod.run(body, num_proc=2, output_filename=folder) == [None, None]
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0]<stdout>:out 0", "[1]<stdout>:out 1"]
    assert sorted(err.splitlines()) == ["[0]<stderr>:err 0", "[1]<stderr>:err 1"]
    kept = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("std*")}
    assert kept == {
        f"rank.{r}/std{name}": f"[{r}]<std{name}>:{name} {r}\n"
        for r in (0, 1)
        for name in ("out", "err")
    }


def test_folders_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        horovod.run(rank, output_filename=tmp_path / "file" / "x")
    (tmp_path / "rank.0").touch()
    with pytest.raises(RuntimeError, match=r"the launcher cannot start them: .*rank\.0"):
        horovod.run(rank, output_filename=tmp_path)


def test_verbose_names_the_processes(capfd: pytest.CaptureFixture[str]) -> None:
    horovod.run(rank, num_proc=2, verbose=2)
    assert "started rank 1 on localhost (pid " in capfd.readouterr().err


def test_workers_read_nothing_and_are_told_the_start_timeout() -> None:
    def body() -> tuple[str, str]:
        return sys.stdin.read(), os.environ["HOROVOD_START_TIMEOUT"]

    assert horovod.run(body, num_proc=2, start_timeout=312) == [("", "312")] * 2


def test_no_secret_and_no_data_on_a_command_line_and_no_file_for_children() -> None:
    word = "xyzzy-" + os.urandom(8).hex()

    def body(word: str) -> tuple[bool, list[str]]:
        lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
        secret = os.environ["_HOROVOD_SECRET_KEY"]
        child = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, check=True)
        return any(word in line or secret in line for line in lines), child.stdout.split()

    ((is_shown, descriptors),) = horovod.run(body, (word,))
    assert not is_shown
    assert descriptors == ["0", "1", "2", "3"]  # ls itself has opened the last one


def test_a_program_that_is_no_python(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="exited with code 0 and left no result"):
        horovod.run(rank, executable=str(program), num_proc=2)
    program.write_text(f'#!/bin/sh\nMARK=here exec {sys.executable} "$@"\n')
    assert horovod.run(lambda: os.environ["MARK"], executable=str(program)) == ["here"]


def test_from_a_thread_several_at_a_time() -> None:
    found: dict[int, list[int]] = {}

    def one(number: int) -> None:
        found[number] = horovod.run(lambda: number * 10 + rank(), num_proc=2)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert found == {number: [number * 10, number * 10 + 1] for number in range(3)}


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import horovod; print(horovod.run(lambda: 6 * 7, np=2))"],
        ["-c", "exec('import horovod\\ndef f():\\n  return 42\\nprint(horovod.run(f, np=2))')"],
        ["-c", "exec('import horovod\\ndef f():\\n  return 42\\nprint(horovod.run(f, np=2))', {})"],
    ],
)
def test_from_a_command_line_and_like_a_notebook(words: list[str]) -> None:
    out = subprocess.run(
        [sys.executable, "-W", "ignore", *words], capture_output=True, text=True, timeout=500
    )
    assert (out.returncode, out.stdout) == (0, "[42, 42]\n"), out.stderr


def test_standard_files_may_be_closed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, horovod\n"
        "def f():\n  return 42\n"
        "pathlib.Path(sys.argv[1]).write_text(str(horovod.run(f, np=2)))"
    )
    closed = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    result = tmp_path / "result"
    words = [*closed, sys.executable, "-W", "ignore", "-c", program, str(result)]
    assert subprocess.run(words, timeout=500).returncode == 0
    assert result.read_text() == "[42, 42]"


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    section = (DOCS / "running.md").read_text().partition("## From Python")[2]
    (tmp_path / "example.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "example.py")], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0]<stdout>:rank 0 is there",
        "[1]<stdout>:rank 1 is there",
        "[tensor([10., 10., 10.]), tensor([10., 10., 10.])]",
    ]


def test_the_search_of_the_guide(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    text = (DOCS / "hyperparameter_search.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0].replace("n_trials=8", "n_trials=3")
    (tmp_path / "search.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "search.py")], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert 0.01 <= float(done.stdout.partition("best rate: ")[2]) <= 1


def test_fifty_times_leaves_nothing() -> None:
    assert [horovod.run(rank) for _ in range(50)] == [[0]] * 50


def test_it_is_one_function() -> None:
    assert horovod.run is horovod.runner.run
