"""Files as RiseML's documentation and others' projects have them: read and planned, or answered."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from horovod.launch.cli import main as cli
from horovod.launch.experiment.document import ExperimentError
from horovod.launch.experiment.schema import Workers, read_experiment

TRAIN = "project: demo\ntrain:\n  framework: tensorflow\n"
SMALLEST = """\
project: demo
train:
  framework: tensorflow
  tensorflow:
    version: 1.4.1
    horovod:
      workers: 8
  resources:
    cpus: 8
    mem: 8192
    gpus: 4
  run:
    - python prepare.py
    - python train.py
"""
LONG_FORM = SMALLEST.replace("workers: 8\n", "workers: {count: 8, processes: 1}\n")
SET = """\
project: demo
train:
  resources: {gpus: 0}
  parameters:
    lr: [0.0001, 0.001]
    epochs:
      range: {min: 2, max: 6, step: 1}
  concurrency: 2
  run: python train.py --lr {{lr}} --epochs {{ epochs }}
"""
SPELLINGS = """\
project: demo
train:
  image:
    name: tensorflow/tensorflow:1.4.0-gpu
    install:
      - pip install horovod
  framework: tensorflow
  tensorflow:
    version: 1.5.0-gpu
    tensorboard: 'true'
    distributed: false
    horovod: {workers: 2}
  resources: {cpus: 0.5, mem: 512, gpus: 1}
  run: >-
    python train.py
    --output $OUTPUT_DIR
deploy:
  resources: {cpus: 1}
  run: python serve.py
"""
PYTORCH = SMALLEST.replace("tensorflow", "pytorch")


@pytest.mark.parametrize(
    ("text", "experiments", "processes"),
    [(SMALLEST, 1, 32), (LONG_FORM, 1, 8), (SET, 10, 1), (SPELLINGS, 1, 2), (PYTORCH, 1, 32)],
    ids=["smallest", "long form", "set", "spellings", "pytorch"],
)
def test_a_file_is_planned(
    text: str,
    experiments: int,
    processes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("riseml.yml").write_text(text)
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(32)))}
    status = cli.main(["-f", "riseml.yml", "--dry-run"], gpus)
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    assert re.search(rf"experiments +{experiments},", out)
    assert f"= {processes} each" in out


def test_what_has_no_effect_is_named() -> None:
    file = read_experiment(SPELLINGS)
    assert file.image == "tensorflow/tensorflow:1.4.0-gpu"
    assert [note.path for note in file.unused] == [
        *("train.image", "train.image.install", "train.tensorflow.version"),
        *("train.tensorflow.tensorboard", "train.resources.cpus", "train.resources.mem", "deploy"),
    ]


def test_an_image_may_only_install() -> None:
    text = "project: a\ntrain: {resources: {}, run: x, image: {install: [pip install y]}}\n"
    file = read_experiment(text)
    assert file.image is None
    assert [note.path for note in file.unused] == ["train.image.install"]


@pytest.mark.parametrize("framework", ["tensorflow", "keras", "pytorch", "mxnet", "jax"])
def test_every_framework_has_a_place_for_workers(framework: str) -> None:
    file = read_experiment(SMALLEST.replace("tensorflow", framework))
    assert file.workers == Workers(8)


def _problems(text: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        read_experiment(textwrap.dedent(text))
    return str(caught.value)


def _tensorflow(section: str) -> str:
    inner = textwrap.indent(textwrap.dedent(section), "    ")
    return f"{TRAIN}  tensorflow:\n{inner}\n  resources: {{}}\n  run: x\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (_tensorflow("horovod\n  workers: 8"), "line 5 may lack a colon: write horovod:"),
        (_tensorflow("version: 1\nhorovod\n  workers: 8"), "line 6 may lack a colon: write hor"),
        (_tensorflow("version: 1\nhorovod"), "line 6 may lack a colon: write horovod:"),
        (_tensorflow("horovod"), "found the text 'horovod', expected a mapping"),
        (_tensorflow("horovod"), "; write horovod:"),
        (
            _tensorflow("distributed: {type: horovod, worker: 2}"),
            "no such field: the workers of a Horovod experiment are "
            "train.tensorflow.horovod.workers",
        ),
        (
            _tensorflow("distributed: {horovod: {workers: 2}}"),
            "found a mapping with horovod, expected no such field",
        ),
        (_tensorflow("distributed: {ps: 1, worker: 2}"), "no parameter-server training here"),
        (
            PYTORCH.replace("  pytorch:", "  tensorflow:"),
            "train.tensorflow (line 5): is read only with framework: tensorflow",
        ),
        (
            SMALLEST.replace("framework: tensorflow", "framework: torch"),
            "expected tensorflow, keras, pytorch, mxnet or jax",
        ),
        (SET.replace("[0.0001, 0.001]", "0.1"), "found 0.1, expected a list of values, or range"),
        (SET.replace("[0.0001, 0.001]", "0.1"), "a single one is [0.1]"),
        (SET.replace("gpus: 0", "gpu: 0"), "train.resources.gpu (line 3): unknown field; expected"),
        (SET.replace("gpus: 0", "gpu: 0"), "(did you mean gpus?)"),
        (SET.replace("resources: {gpus: 0}", "gpus: 0"), "it belongs into train.resources"),
        (f"{SET}  horovod: {{workers: 2}}\n", "are train.tensorflow.horovod.workers"),
        (f"{SET}concurrency: 2\n", "concurrency (line 10): unknown field; it belongs below train"),
        (
            "image: [a, b]\nservice:\n  commands: [python train.py $PARAMS]\n",
            "service (line 3): unknown field; files from before RiseML 0.8 have another format; "
            "write project, and train with resources and run, where {{name}}",
        ),
    ],
)
def test_a_file_is_answered_with_what_to_write(text: str, answer: str) -> None:
    assert answer in _problems(text)


def test_so_many_unknown_fields_are_not_all_told() -> None:
    text = SET + json.dumps({f"field{n}": n for n in range(2000)})[1:-1].join(("  x: {", "}\n"))
    assert "train.x (line 10): unknown field" in _problems(text)
    fields = "".join(f"  field{n}: 1\n" for n in range(2000))
    lines = _problems(SET + fields).splitlines()
    assert len(lines) == 21
    assert "train (line 3): has 1980 more unknown fields" in lines


def test_a_large_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "riseml.yml"
    file.write_text(SMALLEST + "".join(f"field{n}: 1\n" for n in range(90_000)))
    with pytest.raises(SystemExit):
        cli.main(["-f", str(file), "--dry-run"], {})
    assert "larger than 100000 bytes" in capsys.readouterr().err
