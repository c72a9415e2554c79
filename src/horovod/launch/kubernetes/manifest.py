"""The objects of an Indexed Job: a Secret, a headless Service, the Job. Pure except for the secret.

Pod i of job NAME is reachable as NAME-i.NAME, so pods find pod 0, which runs the store, without the
cluster's API.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from horovod.launch.kubernetes.options import PodForm, check_name
from horovod.rendezvous.base.authentication import SECRET_BYTES

# OUTPUT_DIR of experiments.
OUTPUT = "/output"
_SECRET_KEY = "secret"
_STORE_PORT = 29371
_LIMITED = re.compile(r".*/|hugepages-")


@dataclass(frozen=True)
class ClusterJob:
    """What all processes run in pods: one command, or lines for a shell, one after the other.

    ``options`` of ``horovodrun`` are passed to the command in the pods.
    """

    form: PodForm
    process_count: int
    command: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def pod_count(self) -> int:
        """The number of pods; the last one may have free slots."""
        return -(-self.process_count // self.form.slots)


def indexed_job(job: ClusterJob) -> list[dict[str, Any]]:
    """The objects, in the order in which to make them.

    Raises:
        ValueError: Kubernetes would refuse the name.
    """
    name = job.form.name
    check_name(name, f"-{job.pod_count - 1}")
    service = {
        "clusterIP": "None",
        # Pods resolve each other's names before they are ready.
        "publishNotReadyAddresses": True,
        "selector": labels(name),
        "ports": [{"name": "store", "port": _STORE_PORT}],
    }
    reference = {"name": job.form.secret or name, "key": _SECRET_KEY}
    secret = {"name": "_HOROVOD_SECRET_KEY", "valueFrom": {"secretKeyRef": reference}}
    variables = [secret, *plain_variables(job.variables)]
    each = container(job, command=_pod_command(job), variables=variables)
    spec = pod_spec(job.form, [each])
    runs = {
        "completionMode": "Indexed",
        "completions": job.pod_count,
        "parallelism": job.pod_count,
        # A failed rank cannot rejoin alone, so the first failure ends the job.
        "backoffLimit": 0,
        "template": {
            "metadata": {"labels": labels(name)},
            "spec": {"subdomain": name, "restartPolicy": "Never", **spec},
        },
    }
    return [
        *([] if job.form.secret else [_secret(name)]),
        _object("v1", "Service", name, spec=service),
        _object("batch/v1", "Job", name, spec=runs),
    ]


def render(objects: Iterable[Mapping[str, Any]]) -> str:
    """The objects as YAML documents."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=100)


def labels(name: str) -> dict[str, str]:
    """The labels of all objects of a job."""
    return {
        "app.kubernetes.io/name": "horovod",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "horovodrun",
    }


def pod_spec(form: PodForm, containers: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod with these containers, each with all volumes mounted."""
    # Data loaders pass batches in shared memory, of which a container has 64 MB by default.
    volumes: dict[str, dict[str, Any]] = {"shared-memory": {"emptyDir": {"medium": "Memory"}}}
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    claims = list(dict.fromkeys(volume.claim for volume in form.volumes))
    for index, claim in enumerate(claims):
        volumes[f"volume-{index}"] = {"persistentVolumeClaim": {"claimName": claim}}
    for volume in form.volumes:
        mount = {"name": f"volume-{claims.index(volume.claim)}", "mountPath": volume.path}
        if form.output_folder is not None and volume.path == OUTPUT:
            mount["subPath"] = form.output_folder
        mounts.append(mount)
    if form.output_folder is not None and OUTPUT not in [mount["mountPath"] for mount in mounts]:
        volumes["output"] = {"emptyDir": {}}
        mounts.append({"name": "output", "mountPath": OUTPUT})
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [{**each, "volumeMounts": mounts} for each in containers],
        "volumes": [{"name": name, **source} for name, source in volumes.items()],
    }


def container(
    job: ClusterJob, *, command: Iterable[str] = (), variables: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The container of a pod, with the job's resources."""
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, amount in job.form.resources.items():
        # Kubernetes requires a limit for devices and huge pages.
        (limits if _LIMITED.match(name) else requests)[name] = amount
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    parts = {
        "command": [verbatim(word) for word in command],
        "env": variables,
        "resources": resources,
    }
    return {
        "name": "horovod",
        "image": job.form.image,
        **{key: value for key, value in parts.items() if value},
    }


def plain_variables(variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """Environment variables as a container lists them."""
    return [{"name": name, "value": verbatim(value)} for name, value in variables.items()]


def _pod_command(job: ClusterJob) -> list[str]:
    name = job.form.name
    argv = ["python3", "-m", "horovod.launch.kubernetes.pod"]
    argv += ["-np", str(job.process_count), "--slots-per-host", str(job.form.slots)]
    argv += ["--store", f"{name}-0.{name}:{_STORE_PORT}", *job.options]
    if job.command:
        return [*argv, "--", *job.command]
    return [*argv, *(f"--line={line}" for line in job.lines)]


def _secret(name: str) -> dict[str, Any]:
    value = base64.b64encode(os.urandom(SECRET_BYTES)).decode()
    return _object("v1", "Secret", name, immutable=True, stringData={_SECRET_KEY: value})


def _object(version: str, kind: str, name: str, **rest: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels(name)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def verbatim(text: str) -> str:
    """``text`` with ``$`` escaped, since Kubernetes replaces $(NAME), and $$ by $."""
    return re.sub(r"\$(?=[$(])", "$$", text)


class _Dumper(yaml.SafeDumper):
    """Writes YAML without aliases that all versions of YAML read alike."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Quote what does not begin with a letter: 1e-6 is a text in YAML 1.1 and a number in 1.2."""
    is_plain = text[:1].isalpha() and text.lower() not in ("y", "n")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else "'")


_Dumper.add_representer(str, _text)
