"""The batch script that ``horovodrun --slurm-script`` prints."""

from __future__ import annotations

import pytest

from horovod.launch.cli.main import main

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --partition gpu
#SBATCH --gpus-per-task=1
#SBATCH --comment 'a b'

export HOROVOD_FUSION_THRESHOLD=1048576
srun python train.py --name 'x y'
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["--slurm-script", *words], {}) == 0
    return capsys.readouterr().out


def test_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    more = "--partition gpu --gpus-per-task=1 --comment 'a b'"
    options = ("--slots-per-host", "4", "--slurm-args", more, "--fusion-threshold-mb", "1")
    words = ("-np", "8", *options, "python", "train.py", "--name", "x y")
    assert printed(capsys, *words) == SCRIPT


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("--gpus-per-task=1", "#SBATCH --gpus-per-task=1\n"),  # no blank: no option of ours
        ("--exclusive", "#SBATCH --exclusive\n"),
        ("--comment='a b'", "#SBATCH --comment='a b'\n"),
        ("--comment='$(id) # x'", "#SBATCH --comment='$(id) # x'\n"),
    ],
)
def test_words_for_sbatch_stay_what_they_are(
    given: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in printed(capsys, "-np", "2", "--slurm-args", given, "python", "x.py")


def test_words_for_sbatch_add_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-np", "2", "--slurm-args", "--comment='x\ntouch y'", "python", "x.py")
    with pytest.raises(SystemExit):
        main(["--slurm-script", *words], {})
    assert "has more than one line" in capsys.readouterr().err


def test_slurm_chooses_the_nodes_without_slots_per_host(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "-np", "3", "cd job && python train.py")
    assert "#SBATCH --ntasks=3\n" in text
    assert text.endswith("srun /bin/sh -c 'cd job && python train.py'\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-np 5 --slots-per-host 2 x", "-np 5 and --slots-per-host 2: expected a multiple"),
        ("-np 2 --slurm-args gpu x", "--slurm-args: 'gpu' belongs to no option"),
        ("-np 2 -H a:1,b:1 x", "--slurm-script and -H: Slurm chooses the nodes"),
        ("-np 2 --min-np 1 x", "--slurm-script and an elastic job"),
        ("-np 2 --report r.html x", "--report and --slurm-script"),
    ],
)
def test_what_a_script_cannot_have(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--slurm-script", *words.split()], {})
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_words_for_sbatch_alone_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["-np", "2", "--slurm-args", "--partition gpu", "x"], {})
    assert "--slurm-args goes with --slurm-script" in capsys.readouterr().err
