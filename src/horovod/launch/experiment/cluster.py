"""The experiments of a file as jobs of a cluster, with a pod for each worker. Pure.

``OUTPUT_DIR`` is /output there, as in RiseML's containers: a folder of the experiment, which its
pods share if a volume is mounted there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from horovod.launch.experiment.parameters import grid, replaced
from horovod.launch.experiment.schema import ExperimentFile
from horovod.launch.kubernetes.command import objects_of
from horovod.launch.kubernetes.manifest import OUTPUT, ClusterJob
from horovod.launch.kubernetes.options import PodForm

_GPU = "nvidia.com/gpu"


def object_name(project: str) -> str | None:
    """The project's name in the characters that Kubernetes allows; None if nothing is left."""
    name = re.sub(r"[^a-z0-9]+", "-", project.lower())
    return re.sub(r"^[^a-z]+|-+$", "", name)[:40].rstrip("-") or None


def cluster_objects(
    file: ExperimentFile,
    form: PodForm,
    kind: str,
    variables: Mapping[str, str],
    options: tuple[str, ...],
) -> list[dict[str, Any]]:
    """The objects of all experiments; every job has these ``variables`` and ``options``.

    Raises:
        ValueError: Kubernetes would refuse a name.
    """
    form = dataclasses.replace(
        form, slots=file.processes_per_worker, resources=_resources(file, form.resources)
    )
    objects: list[dict[str, Any]] = []
    for number, values in enumerate(grid(file.parameters), start=1):
        ending = f"/{number}" if file.parameters else ""
        name = form.name + ending.replace("/", "-")
        job = ClusterJob(
            form=dataclasses.replace(form, name=name, output_folder=form.name + ending),
            process_count=file.demand.size,
            lines=tuple(replaced(line, values) for line in file.run),
            variables={**variables, **_variables(file, name, values)},
            options=options,
        )
        objects += objects_of(job, kind)
    return objects


def cluster_notes(file: ExperimentFile, form: PodForm) -> list[str]:
    """Notes on fields without an effect, and on effects that may surprise."""
    notes = [str(unused) for unused in file.unused if not unused.is_for_clusters]
    count = sum(1 for _ in grid(file.parameters))
    if count > file.concurrency:
        notes.append(
            f"train.concurrency: {file.concurrency} at a time wanted; the cluster runs as many as "
            "it has room for"
        )
    if all(volume.path != OUTPUT for volume in form.volumes):
        notes.append(
            f"OUTPUT_DIR is a folder of each pod and is lost with it; "
            f"--kubernetes-volume CLAIM:{OUTPUT} keeps and shares it"
        )
    return notes


def _variables(file: ExperimentFile, name: str, values: Mapping[str, str]) -> dict[str, str]:
    # The cluster decides which GPUs a pod sees.
    no_gpus = {} if file.gpus else {"CUDA_VISIBLE_DEVICES": ""}
    parameters = {parameter.variable: values[parameter.name] for parameter in file.parameters}
    return {**parameters, "EXPERIMENT_ID": name, "OUTPUT_DIR": OUTPUT, **no_gpus}


def _resources(file: ExperimentFile, given: Mapping[str, str]) -> dict[str, str]:
    """``given`` and the file's other resources; given GPUs of any maker replace the file's."""
    resources = {}
    if file.cpus is not None:
        resources["cpu"] = file.cpus
    if file.megabytes is not None:
        resources["memory"] = f"{file.megabytes}M"
    if file.gpus and not any(name.endswith("/gpu") for name in given):
        resources[_GPU] = str(file.gpus)
    return {**resources, **given}
