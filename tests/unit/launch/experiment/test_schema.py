"""Experiment files: what every field may be, and how each wrong one is refused by its path."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from horovod.launch.experiment import SCHEMA
from horovod.launch.experiment.document import ExperimentError, resolved_copy
from horovod.launch.experiment.parameters import grid, replaced
from horovod.launch.experiment.schema import ExperimentFile, Workers, read_experiment

ROOT = Path(__file__).resolve().parents[4]
SMALLEST = {"project": "demo", "train": {"resources": {}, "run": "true"}}
FULL = """\
project: demo
train:
  framework: tensorflow
  image: {name: tf}
  install: [pip install x, apt install y]
  tensorflow:
    version: 1.10
    tensorboard: 'true'
    distributed: false
    horovod:
      workers: {count: 8, processes: 2}
  resources:
    cpus: 0.5
    mem: 8192
    gpus: 4
  parameters:
    lr-decay: [1e-6, 0.10, "a b", true]
    epochs:
      range: {min: 2, max: 6, step: 2}
  concurrency: 3
  run:
    - python prepare.py
    - >-
      python train.py --decay {{lr-decay}}
      --epochs {{ epochs }}
"""


def problems(text: str) -> dict[str, str]:
    """What is wrong, by path; each path has one problem."""
    with pytest.raises(ExperimentError) as caught:
        read_experiment(text)
    found = caught.value.problems
    assert len({problem.path for problem in found}) == len(found)
    return {problem.path: problem.text for problem in found}


def file_with(**train: object) -> str:
    return yaml.safe_dump({**SMALLEST, "train": {**SMALLEST["train"], **train}})  # type: ignore[dict-item]


def horovod_file(workers: object, gpus: int = 0) -> str:
    return file_with(
        framework="tensorflow",
        tensorflow={"horovod": {"workers": workers}},
        resources={"gpus": gpus},
    )


def test_every_field_of_a_full_file() -> None:
    file = read_experiment(FULL)
    assert file.project == "demo"
    assert file.workers == Workers(8, 2)
    assert file.gpus == 4
    assert file.concurrency == 3
    assert file.run == (
        "python prepare.py",
        "python train.py --decay {{lr-decay}} --epochs {{ epochs }}",
    )
    decay, epochs = file.parameters
    assert (decay.name, decay.variable) == ("lr-decay", "LR_DECAY")
    assert decay.values == ("1e-6", "0.10", "a b", "true")
    assert epochs.values == ("2", "4", "6")


@pytest.mark.parametrize("source", ["docs/experiments.md", "examples/experiments/digits.yml"])
def test_what_the_documentation_shows_is_right(source: str) -> None:
    text = (ROOT / source).read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL) or [text]
    for block in blocks:
        file = read_experiment(block)
        assert file.project == "digits"
        assert file.unused == ()


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (FULL, True),
        (FULL.replace("gpus: 4", "gpu: 4"), False),
        (FULL.replace("workers: {count: 8, processes: 2}", "workers: 0"), False),
        (FULL.replace("  run:", "  commands:"), False),
    ],
)
def test_editors_can_check_a_file(text: str, is_right: bool) -> None:
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid(yaml.safe_load(text)) is is_right


def test_fields_without_effect_are_named_with_their_lines() -> None:
    notes = [str(unused) for unused in read_experiment(FULL).unused]
    assert [note.partition(" has")[0] for note in notes] == [
        "train.image (line 4)",
        "train.install (line 5)",
        "train.tensorflow.version (line 7)",
        "train.tensorflow.tensorboard (line 8)",
        "train.resources.cpus (line 13)",
        "train.resources.mem (line 14)",
    ]


def test_the_smallest_file_is_one_process_and_notes_nothing() -> None:
    file = read_experiment(yaml.safe_dump(SMALLEST))
    assert file == ExperimentFile("demo", ("true",))
    assert (file.worker_count, file.processes_per_worker) == (1, 1)


@pytest.mark.parametrize(
    ("workers", "gpus", "count", "processes"),
    [
        (32, 4, 32, 4),
        (32, 0, 32, 1),
        ({"count": 32, "processes": 1}, 4, 32, 1),
        ({"count": 2, "processes": 8}, 0, 2, 8),
        ({"count": 3}, 2, 3, 2),
    ],
)
def test_the_number_of_processes(workers: object, gpus: int, count: int, processes: int) -> None:
    file = read_experiment(horovod_file(workers, gpus))
    assert (file.worker_count, file.processes_per_worker) == (count, processes)


@pytest.mark.parametrize("image", ["tf:1.4", {"name": "tf"}])
def test_an_image_is_a_name_in_two_spellings(image: object) -> None:
    assert [note.path for note in read_experiment(file_with(image=image)).unused] == ["train.image"]


def test_a_literal_block_is_one_command_with_its_line_breaks() -> None:
    text = "project: a\ntrain:\n  resources: {}\n  run: |\n    one\n    two\n"
    assert read_experiment(text).run == ("one\ntwo\n",)


def test_braces_that_are_no_parameter_stay_as_they_are() -> None:
    assert read_experiment(file_with(run="docker -f '{{.Names}}'")).run == (
        "docker -f '{{.Names}}'",
    )


@pytest.mark.parametrize(
    ("train", "path", "text"),
    [
        ({"framework": "torch"}, "train.framework", "found the text 'torch', expected tensorflow"),
        ({"framework": 3}, "train.framework", "found 3, expected tensorflow"),
        ({"framework": "tensorflow"}, "train", "expected a section tensorflow"),
        ({"tensorflow": {}}, "train.tensorflow", "expected that in train, too"),
        ({"image": 4}, "train.image", "found 4, expected the name of an image"),
        ({"image": {"name": [1]}}, "train.image.name", "found a list of 1, expected the name"),
        ({"image": {}}, "train.image.name", "found nothing, expected the name"),
        ({"install": "pip"}, "train.install", "found the text 'pip', expected a list"),
        ({"install": ["a", {"b": 1}]}, "train.install[1]", "found a mapping with b"),
        ({"resources": None}, "train.resources", "found nothing, expected a mapping with cpus"),
        ({"resources": {"gpus": -1}}, "train.resources.gpus", "found -1, expected a whole number"),
        ({"resources": {"gpus": 1.5}}, "train.resources.gpus", "found 1.5, expected a whole"),
        ({"resources": {"gpus": "2"}}, "train.resources.gpus", "found the text '2', expected"),
        ({"resources": {"cpus": 0}}, "train.resources.cpus", "found 0, expected a number of CPUs"),
        ({"resources": {"cpus": float("inf")}}, "train.resources.cpus", "found .inf, expected"),
        ({"resources": {"mem": "8G"}}, "train.resources.mem", "expected a number of megabytes"),
        ({"resources": {"gpu": 1}}, "train.resources.gpu", "(did you mean gpus?)"),
        ({"run": []}, "train.run", "found an empty list, expected a command"),
        ({"run": None}, "train.run", "found nothing, expected a command"),
        ({"run": ["a", ""]}, "train.run[1]", "found the text '', expected a command"),
        ({"run": ["a", True]}, "train.run[1]", "a boolean to YAML, expected a command; put it"),
        ({"run": [{"echo a": "b"}]}, "train.run[0]", "put one that holds ': ' or begins with {"),
        ({"run": "a\0b"}, "train.run", "without NUL characters"),
        ({"run": "a {{b}}"}, "train.run", "found {{b}}, expected it in train.parameters"),
        ({"concurrency": 0}, "train.concurrency", "found 0, expected a whole number, 1 or more"),
        ({"concurrency": None}, "train.concurrency", "found nothing, expected a whole number"),
        ({"hyperparameters": {}}, "train.hyperparameters", "unknown field"),
        ({"gpu": 1}, "train.gpu", "unknown field; expected framework, tensorflow, image"),
        ({"framework": "tensorflow", "tensorflow": []}, "train.tensorflow", "found an empty list"),
    ],
)
def test_a_wrong_field_of_train(train: dict[str, object], path: str, text: str) -> None:
    ((where, what),) = problems(file_with(**train)).items()
    assert where == path
    assert text in what


@pytest.mark.parametrize(
    ("tensorflow", "path", "text"),
    [
        ({"version": [1]}, "version", "found a list of 1, expected a version"),
        ({"tensorboard": "maybe"}, "tensorboard", "expected true or false"),
        ({"distributed": {"ps": 1, "worker": 2}}, "distributed", "expected false"),
        ({"distributed": True}, "distributed", "are train.tensorflow.horovod.workers"),
        ({"workers": 2}, "workers", "are train.tensorflow.horovod.workers"),
        ({"horovod": None}, "horovod", "found nothing, expected a mapping with workers"),
        ({"horovod": {}}, "horovod.workers", "found nothing, expected a number of workers, or"),
        ({"horovod": {"workers": 0}}, "horovod.workers", "found 0, expected a number of workers"),
        ({"horovod": {"workers": "2"}}, "horovod.workers", "found the text '2', expected"),
        ({"horovod": {"workers": 99999999}}, "horovod.workers", "expected at most 99999"),
        ({"horovod": {"workers": {}}}, "horovod.workers.count", "expected the number of workers"),
        (
            {"horovod": {"workers": {"count": 1, "processes": 0}}},
            "horovod.workers.processes",
            "found 0, expected a whole number, 1 or more",
        ),
        (
            {"horovod": {"workers": {"count": 1, "resources": {"gpus": 1}}}},
            "horovod.workers.resources",
            "resources are train.resources, for all",
        ),
        ({"horovod": {"workers": 2, "processes": 2}}, "horovod.processes", "expected workers"),
    ],
)
def test_a_wrong_field_of_tensorflow(tensorflow: dict[str, object], path: str, text: str) -> None:
    file = file_with(framework="tensorflow", tensorflow=tensorflow)
    ((where, what),) = problems(file).items()
    assert where == f"train.tensorflow.{path}"
    assert text in what


def test_more_processes_than_gpus_are_refused() -> None:
    found = problems(horovod_file({"count": 1, "processes": 3}, gpus=2))
    assert found == {
        "train.tensorflow.horovod.workers.processes": (
            "found 3, expected at most 2, one for each of train.resources.gpus, or gpus: 0"
        )
    }


@pytest.mark.parametrize("name", ["a/b", "..", "", " a", "a\nb", "x" * 201])
def test_a_project_is_the_name_of_a_folder(name: str) -> None:
    assert (
        "a name for a folder" in problems(yaml.safe_dump({**SMALLEST, "project": name}))["project"]
    )


def test_a_project_in_digits_needs_quotes() -> None:
    found = problems(yaml.safe_dump({**SMALLEST, "project": 2018}))
    assert found == {"project": "found 2018, expected a name; put it into quotes"}


def test_all_problems_are_told_at_once_with_their_lines() -> None:
    text = """\
trane: 1
service: {commands: [x]}
train:
  concurrency: no
  resources: {gpus: many}
"""
    with pytest.raises(ExperimentError) as caught:
        read_experiment(text)
    assert str(caught.value).splitlines() == [
        "trane (line 1): unknown field; expected project, train, deploy (did you mean train?)",
        "project (line 1): found nothing, expected a name",
        "service (line 2): unknown field; files from before RiseML 0.8 have another format; "
        "write project, and train with resources and run, where {{name}} is a parameter's value",
        "train.run (line 4): found nothing, expected a command, or a list of commands",
        "train.concurrency (line 4): found no, a boolean to YAML, "
        "expected a whole number, 1 or more",
        "train.resources.gpus (line 5): found the text 'many', expected a whole number, 0 or more",
    ]


def test_a_field_that_comes_twice_is_refused() -> None:
    text = "project: a\nproject: b\ntrain: {resources: {}, run: x}\n"
    assert problems(text) == {"project": "given twice (first in line 1); expected once"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("a: [1", "no YAML: "),
        ("a: b: c", r"no YAML: .* \(line 1\)"),
        ("a: 1\n---\nb: 2\n", "no YAML: .*another document"),
        ("a: [1\nb: 2\n", r"flow sequence of line 1 .*':' \(line 2\)"),
        ("a: *b", "no YAML: .*undefined alias"),
        ("a: \x07", "no YAML: "),
        ("[" * 100_000, "nested too deeply"),
        ("5", "found 5, expected a mapping with project, train"),
    ],
)
def test_what_is_no_experiment_file(text: str, what: str) -> None:
    with pytest.raises(ExperimentError, match=what):
        read_experiment(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ExperimentError, match="no YAML"):
        read_experiment(b"project: \xff\xfe\xfa")


@pytest.mark.parametrize(
    "value", ["!!python/object/apply:os.abort []", "!!python/name:os.abort ''", "!x 1", "!!int x"]
)
def test_tags_do_nothing(value: str) -> None:
    text = f"project: a\ntrain: {{resources: {{gpus: {value}}}, run: x}}\n"
    assert list(problems(text)) == ["train.resources.gpus"]


def test_a_file_that_contains_itself_is_refused() -> None:
    text = "project: a\ntrain: &t {resources: *t, run: *t}\n"
    assert set(problems(text)) == {
        "train.resources.resources",
        "train.resources.run",
        "train.run",
    }


def test_the_resolved_copy_runs_the_same() -> None:
    file = read_experiment(FULL)
    for values in grid(file.parameters):
        lines = [replaced(line, values) for line in file.run]
        again = read_experiment(resolved_copy(FULL, lines, values))
        assert again.run == tuple(lines)
        assert {p.name: p.values for p in again.parameters} == {n: (v,) for n, v in values.items()}
        assert again.concurrency == 1
        assert (again.workers, again.gpus) == (file.workers, file.gpus)


_FIELDS = (
    *("run", "resources", "gpus", "parameters", "range", "min", "tensorflow", "framework"),
    *("horovod", "workers", "count", "image", "name"),
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
_NAMES = st.sampled_from(_FIELDS) | st.text(max_size=3)
_TREES = st.recursive(
    _SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_NAMES, below, max_size=6),
    max_leaves=20,
)


@settings(deadline=None)
@given(tree=_TREES)
def test_any_yaml_is_an_experiment_or_refused_with_paths(tree: object) -> None:
    text = yaml.safe_dump({"project": "a", "train": tree})
    try:
        run, problems = read_experiment(text).run, ()
    except ExperimentError as error:
        run, problems = (), error.problems
    assert run or problems
    assert all(problem.path.startswith("train") for problem in problems)
