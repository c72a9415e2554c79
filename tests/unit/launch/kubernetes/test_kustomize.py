"""The kustomize base makes the objects that the launcher prints, and an overlay its own job."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from horovod.launch.kubernetes.manifest import ClusterJob, indexed_job
from horovod.launch.kubernetes.options import PodForm

FOLDER = Path(__file__).parents[4] / "packaging" / "kubernetes"
VERSIONS = ("1.27", "1.37")
OWN_VARIABLES = {"JOB_NAME", "PROCESSES", "SLOTS_PER_POD"}


def base() -> list[dict[str, Any]]:
    """The objects of the base: plain files, which kustomize would only put together."""
    folder = FOLDER / "base"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(listed) == {"apiVersion", "kind", "resources"}
    return [yaml.safe_load((folder / name).read_text()) for name in listed["resources"]]


def built(folder: Path) -> list[dict[str, Any]]:
    """What kustomize makes of a folder."""
    for build, version in (
        (["kubectl", "kustomize"], ["kubectl", "version", "--client"]),
        (["kustomize", "build"], ["kustomize", "version"]),
    ):
        # kubectl prints its own version before that of the kustomize in it.
        if shutil.which(build[0]) and int(re.findall(r"v(\d+)\.", output_of(version))[-1]) >= 5:
            return list(yaml.safe_load_all(output_of([*build, str(folder)])))
    pytest.skip("neither kubectl with Kustomize 5 nor Kustomize 5 is installed")


def output_of(command: list[str]) -> str:
    job = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert job.returncode == 0, job.stderr
    return job.stdout


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def as_kubernetes_starts(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects with their own variables put into the command, and the launcher's label."""
    service, job = objects
    container, name = container_of(job), job["metadata"]["name"]
    own = {each["name"]: each for each in container["env"] if each["name"] in OWN_VARIABLES}
    assert set(own) == OWN_VARIABLES
    label = own["JOB_NAME"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert label == "metadata.labels['batch.kubernetes.io/job-name']"
    values = {key: each.get("value", name) for key, each in own.items()}
    command = [
        re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word)
        for word in container["command"]
    ]
    container["command"] = [*command, *container.pop("args")]
    container["env"] = [each for each in container["env"] if each["name"] not in OWN_VARIABLES]
    for labels in (
        *(each["metadata"]["labels"] for each in objects),
        *(service["spec"]["selector"], job["spec"]["template"]["metadata"]["labels"]),
    ):
        labels["app.kubernetes.io/managed-by"] = "horovodrun"
    return objects


def printed(form: PodForm, process_count: int, *command: str) -> list[dict[str, Any]]:
    """What ``horovodrun --kubernetes`` prints for these pods."""
    return indexed_job(ClusterJob(form=form, process_count=process_count, command=command))


def test_the_base_is_what_the_launcher_prints() -> None:
    form = PodForm(image="train", name="horovod", slots=1, secret="horovod-secret")
    assert as_kubernetes_starts(base()) == printed(form, 2, "python", "train.py")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_accept_the_base(version: str) -> None:
    for each in base():
        kubernetes_validate.validate(each, version, strict=True)


def test_an_overlay_is_a_job_with_a_name_of_its_own() -> None:
    objects = built(FOLDER / "overlays" / "digits")
    for each in objects:
        kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
    form = PodForm(
        image="registry.example.com/team/train:1",
        name="horovod-digits",
        slots=4,
        secret="horovod-secret",
        resources={"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"},
    )
    program = ("python", "examples/pytorch/digits.py", "--epochs", "3")
    assert as_kubernetes_starts(objects) == printed(form, 8, *program)


def test_kustomize_reads_the_base() -> None:
    assert built(FOLDER / "base") == base()
