"""What a rank prints that ends with an error."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from horovod.trace.failures import described, failure_of

# A framework makes an error of its own of one that an operation had.
PROGRAM = """
from horovod.core.uncaught import install_hook
from horovod.core.port import keep_failure
from horovod.errors import PeerLostError

install_hook(lambda text: open("recorded", "w").write(text))


class FrameworkError(Exception):
    pass


FrameworkError.__module__ = "tensorflow.errors"


def train():
    raise {error}


def lose():
    keep_failure(PeerLostError("allreduce 'x': rank 1 died"))
    return FrameworkError("it failed")


train()
"""


def printed(folder: Path, error: str, level: str = "warning", program: str = PROGRAM) -> str:
    (folder / "train.py").write_text(program.format(error=error))
    found = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={"HOROVOD_LOG_LEVEL": level},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    return found.stderr


@pytest.mark.parametrize("error", ["PeerLostError(\"allreduce 'x': rank 1 died\")", "lose()"])
def test_a_rank_that_lost_its_peer_prints_one_line(tmp_path: Path, error: str) -> None:
    text = printed(tmp_path, error)
    assert text == "horovod.errors.PeerLostError: allreduce 'x': rank 1 died (train.py:17)\n"
    assert failure_of(0, 1, text.encode()).lost_its_peer
    assert not (tmp_path / "recorded").exists()


@pytest.mark.parametrize(
    ("error", "level"),
    [
        ("ValueError(1)", "warning"),
        ("PeerLostError('x')", "debug"),
        ("FrameworkError('x')", "warning"),
    ],
)
def test_other_errors_have_their_tracebacks(tmp_path: Path, error: str, level: str) -> None:
    text = printed(tmp_path, error, level)
    assert text.startswith("Traceback")
    assert f'File "{tmp_path}/train.py", line 17, in train' in text
    recorded = tmp_path / "recorded"
    assert recorded.exists() == (level != "debug")
    if recorded.exists():
        failure = described(1, recorded.read_text())
        assert failure == replace(failure_of(1, 1, text.encode()), lines=())


# Its calls belong to the package, as the program of an editable install sees them.
INSIDE = """
import horovod
from horovod.core.uncaught import install_hook
from horovod.errors import InitError, MismatchError, SettingError

install_hook(lambda text: None)
code = compile("def call(error): raise error", horovod.__path__[0] + "/core/inside.py", "exec")
exec(code)
call({error})
"""


@pytest.mark.parametrize("level", ["warning", "debug"])
@pytest.mark.parametrize(
    ("error", "is_short"),
    [
        ("InitError('x')", True),
        ("MismatchError('x')", True),
        ("SettingError('x')", True),
        ("KeyError('x')", False),
    ],
)
def test_an_error_of_horovod_is_shown_without_its_own_calls(
    tmp_path: Path, error: str, is_short: bool, level: str
) -> None:
    text = printed(tmp_path, error, level, INSIDE)
    assert f'File "{tmp_path}/train.py", line 9, in <module>' in text
    assert ("inside.py" not in text) == (is_short and level == "warning")


def test_a_wrong_setting_does_not_hide_the_error(tmp_path: Path) -> None:
    text = printed(tmp_path, "SettingError('x')", "many", INSIDE)
    assert text.endswith("horovod.errors.SettingError: x\n")
    assert "excepthook" not in text


def test_a_debugger_without_a_terminal_is_told_how_to_get_one(tmp_path: Path) -> None:
    assert printed(tmp_path, "__import__('bdb').BdbQuit()").endswith("bdb.BdbQuit\n")
    assert "horovodrun --debug-rank" in (tmp_path / "recorded").read_text()
