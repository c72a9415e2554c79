"""The command of a rank under a debugger."""

from __future__ import annotations

import pytest

from horovod.launch.cli import main as cli
from horovod.launch.workers.debugger import debugged

PDB = "-m pdb -c continue"
DEBUGPY = "-m debugpy --listen 127.0.0.1:5678 --wait-for-client"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", "python {} train.py --lr 1"),
        ("/usr/bin/python3.11 -u -W error train.py", "/usr/bin/python3.11 -u -W error {} train.py"),
        ("python -m package.train -v", "python {} -m package.train -v"),
    ],
)
def test_python_gets_the_debugger_first(command: str, expected: str) -> None:
    assert debugged(command.split(), None) == tuple(expected.format(PDB).split())
    assert debugged(command.split(), 5678) == tuple(expected.format(DEBUGPY).split())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-np 2 --debug-rank 0 ./run", "./run: expected a command python SCRIPT"),
        ("-np 2 --debug-rank 0 python -c pass", "python -c: expected a script or a module"),
        ("-np 2 --debug-rank 0 python -u", "python without a script or a module"),
        ("-np 2 --debug-rank 2 python x.py", "--debug-rank 2: expected a rank from 0 to 1"),
        ("-np 2 --debug-rank x python x.py", "'x': expected a rank"),
        ("-np 2 --debug-port 5 python x.py", "--debug-port goes with --debug-rank"),
        ("-np 2 --min-np 1 --debug-rank 0 python x.py", "and an elastic job"),
        (
            "-np 2 -H 127.0.0.1:1,192.0.2.7:1 --debug-rank 1 python x.py",
            "it is on 192.0.2.7; expect",
        ),
    ],
)
def test_what_cannot_be_debugged(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
