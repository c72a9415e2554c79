"""Experiment files as manifests: one job for each experiment, with the file's resources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from horovod.launch.cli import main as cli
from horovod.launch.experiment.command import object_name

FILE = """\
project: Digits (2nd)
train:
  framework: tensorflow
  image: {name: "registry.example.com/train:1"}
  install: [pip install x]
  tensorflow: {horovod: {workers: {count: 3, processes: 2}}}
  resources: {gpus: 2, cpus: 0.5, mem: 512}
  parameters: {lr: [1e-6, 0.02], lr-decay: ["on"]}
  run:
  - echo {{lr}} $LR $(pwd)
  - python train.py
"""


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Prints the manifest of a file; its objects and what is said beside it."""

    def printed(*words: str, text: str = FILE) -> tuple[list[dict[str, Any]], str, str]:
        (tmp_path / "riseml.yml").write_text(text)
        assert cli.main(["-f", f"{tmp_path}/riseml.yml", *words], {}) == 0
        output = capsys.readouterr()
        return list(yaml.safe_load_all(output.out)), output.err, output.out

    return printed


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def test_each_experiment_is_a_job_with_a_pod_for_each_worker(run: Any) -> None:
    objects, notes, _ = run("--kubernetes", "--kubernetes-volume", "out:/output")
    for each in objects:
        kubernetes_validate.validate(each, "1.37", strict=True)
    jobs = [each for each in objects if each["kind"] == "Job"]
    assert [job["metadata"]["name"] for job in jobs] == ["digits-2nd-1", "digits-2nd-2"]
    assert len({each["stringData"]["secret"] for each in objects if each["kind"] == "Secret"}) == 2
    container = container_of(jobs[1])
    assert jobs[1]["spec"]["completions"] == 3
    assert container["image"] == "registry.example.com/train:1"
    assert container["resources"] == {
        "requests": {"cpu": "0.5", "memory": "512M"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    command = container["command"]
    assert command[command.index("-np") :][:4] == ["-np", "6", "--slots-per-host", "2"]
    assert command[-2:] == ["--line=echo 0.02 $LR $$(pwd)", "--line=python train.py"]
    variables = {each["name"]: each.get("value") for each in container["env"][1:]}
    assert variables == {
        "LR": "0.02",
        "LR_DECAY": "on",
        "EXPERIMENT_ID": "digits-2nd-2",
        "OUTPUT_DIR": "/output",
    }
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/output"]["subPath"] == "digits-2nd/2"
    assert [note for note in notes.splitlines() if "train.image" in note or "cpus" in note] == []
    assert "train.install (line 5) has no effect" in notes
    assert "the cluster runs as many as it has room for" in notes
    assert "OUTPUT_DIR" not in notes


def test_no_reader_of_yaml_takes_a_text_for_a_number(run: Any) -> None:
    """YAML 1.2 has numbers that 1.1, and with it PyYAML, has not: 1e-6."""
    _, _, text = run("--kubernetes")
    plain = [line.split(": ", 1)[-1].removeprefix("- ").strip() for line in text.splitlines()]
    numbers = [value for value in plain if re.match(r"[-+.]?[0-9]", value)]
    assert sorted(set(numbers)) == ["0", "29371", "3"]


def test_without_a_volume_the_output_is_lost_and_that_is_said(run: Any) -> None:
    objects, notes, _ = run("--kubernetes")
    spec = objects[2]["spec"]["template"]["spec"]
    assert {"name": "output", "emptyDir": {}} in spec["volumes"]
    assert {"name": "output", "mountPath": "/output"} in spec["containers"][0]["volumeMounts"]
    assert "--kubernetes-volume CLAIM:/output keeps" in notes


def test_the_command_line_wins_over_the_file(run: Any) -> None:
    words = "--kubernetes --kubernetes-image i:2 --kubernetes-name other --cache-capacity 3"
    objects, _, _ = run(*words.split(), "--kubernetes-resources", "cpu=2,amd.com/gpu=1")
    container = container_of(objects[2])
    assert (objects[2]["metadata"]["name"], container["image"]) == ("other-1", "i:2")
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "512M"},
        "limits": {"amd.com/gpu": "1"},
    }
    assert {"name": "HOROVOD_CACHE_CAPACITY", "value": "3"} in container["env"]


def test_one_experiment_without_gpus(run: Any) -> None:
    text = "project: p\ntrain: {image: i, resources: {}, run: python x.py}\n"
    objects, _, _ = run("--kubernetes", text=text)
    container = container_of(objects[2])
    assert objects[2]["metadata"]["name"] == "p"
    assert "resources" not in container
    assert {"name": "CUDA_VISIBLE_DEVICES", "value": ""} in container["env"]


def test_an_mpijob_runs_line_after_line(run: Any) -> None:
    objects, _, _ = run("--kubernetes=mpijob")
    assert [each["kind"] for each in objects] == ["MPIJob", "MPIJob"]
    replicas = objects[0]["spec"]["mpiReplicaSpecs"]
    assert replicas["Worker"]["replicas"] == 3
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    start = "horovodrun -np 6 --hostfile /etc/mpi/hostfile -- /bin/sh -c"
    assert launcher["command"] == [
        *("/bin/sh", "-c"),
        f"{start} 'echo 1e-6 $LR $$(pwd)' && {start} 'python train.py'",
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--kubernetes", "--dry-run"], "--dry-run and --kubernetes"),
        (["--kubernetes", "--slots-per-host", "2"], "--slots-per-host and --experiment"),
        (["--kubernetes", "-H", "a:4"], "pods instead of hosts"),
        (["--kubernetes-image", "i"], "--kubernetes-image goes with --kubernetes"),
        (["--kubernetes", "--kubernetes-name", "a" * 60], "at most 61 characters"),
    ],
)
def test_what_is_refused(
    words: list[str], text: str, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*words)
    assert ended.value.code == 2
    assert text in " ".join(capsys.readouterr().err.split())


def test_a_wrong_file_is_refused_as_always(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yml").write_text("project: p\n")
    assert cli.main(["-f", f"{tmp_path}/x.yml", "--kubernetes"], {}) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "train (line 1): found nothing" in output.err


@pytest.mark.parametrize(
    ("project", "name"),
    [("digits", "digits"), ("My_Project.v2-", "my-project-v2"), ("2nd", "nd"), ("数字", None)],
)
def test_names_of_projects(project: str, name: str | None) -> None:
    assert object_name(project) == name
