"""``horovodrun --kubernetes``: the manifest of a command line. Pure except for a new secret.

An Indexed Job is a Secret, a headless Service and the Job. Pod i of job NAME is reachable as
NAME-i.NAME, so pods find pod 0, which runs the store, without the cluster's API.

An MPIJob (v2beta1) is for Kubeflow's operator: ``horovodrun`` in its launcher pod starts the
processes by ssh in the worker pods that the operator lists. The image needs an ssh server and
client besides horovod, and MPI only with ``--mpi``.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from horovod.launch.kubernetes.options import KINDS, PodForm, check_name
from horovod.rendezvous.base.authentication import SECRET_BYTES

# OUTPUT_DIR of experiments.
OUTPUT = "/output"
_SECRET_KEY = "secret"
_STORE_PORT = 29371
_LIMITED = re.compile(r".*/|hugepages-")


@dataclass(frozen=True)
class ClusterJob:
    """A job in pods: one command, or lines for a shell that run one after the other.

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
    pod = {"subdomain": name, "restartPolicy": "Never", **pod_spec(job.form, [each])}
    runs = {
        "completionMode": "Indexed",
        "completions": job.pod_count,
        "parallelism": job.pod_count,
        # A failed rank cannot rejoin alone, so the first failure ends the job.
        "backoffLimit": 0,
        "template": {"metadata": {"labels": labels(name)}, "spec": pod},
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
    words = [verbatim(word) for word in command]
    parts = {"command": words, "env": variables, "resources": resources}
    given = {key: value for key, value in parts.items() if value}
    return {"name": "horovod", "image": job.form.image, **given}


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


# An MPIJob.

_HOSTFILE = "/etc/mpi/hostfile"
_SSH_PORT = 22
# Host keys in an image would be known to all owners of the image.
_SSH_SERVER = ("/bin/sh", "-c", "ssh-keygen -A && exec /usr/sbin/sshd -De")


def manifest(
    given: argparse.Namespace, form: PodForm, command: Sequence[str], variables: Mapping[str, str]
) -> str:
    """The YAML documents for ``command`` with ``variables`` in the workers' environment.

    Raises:
        ValueError: Kubernetes would refuse the name, or the command is a kind of manifest.
    """
    if command[0] in KINDS:
        raise ValueError(f"{command[0]} would be the command; write --kubernetes={command[0]}")
    options = pod_options(given)
    job = ClusterJob(form, given.num_proc, tuple(command), variables=variables, options=options)
    return render(objects_of(job, given.kubernetes))


def objects_of(job: ClusterJob, kind: str) -> list[dict[str, Any]]:
    """The objects of a job of this kind. Raises ValueError for a name."""
    return _mpi_job(job) if kind == "mpijob" else indexed_job(job)


def pod_options(given: argparse.Namespace) -> tuple[str, ...]:
    """The options about output, which the command in a pod takes, too."""
    options = ["--verbose"] if given.verbose else []
    if given.prefix_output_with_timestamp:
        options.append("--prefix-output-with-timestamp")
    if given.output_filename is not None:
        options += ["--output-filename", given.output_filename]
    return tuple(options)


def _mpi_job(job: ClusterJob) -> list[dict[str, Any]]:
    """The MPIJob, as a list of one object.

    Raises:
        ValueError: Kubernetes would refuse the name.
    """
    check_name(job.form.name, f"-worker-{job.pod_count - 1}")
    command = _launcher_command(job)
    variables = {"env": plain_variables(job.variables)} if job.variables else {}
    launcher = {"name": "horovod", "image": job.form.image, "command": command, **variables}
    probe = {"tcpSocket": {"port": _SSH_PORT}}
    worker = {**container(job, command=_SSH_SERVER), "readinessProbe": probe}
    spec = {
        "slotsPerWorker": job.form.slots,
        "mpiImplementation": "OpenMPI",  # decides the format of the list of hosts
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
        "mpiReplicaSpecs": {
            "Launcher": _replicas(job, 1, launcher),
            "Worker": _replicas(job, job.pod_count, worker),
        },
    }
    return [_object("kubeflow.org/v2beta1", "MPIJob", job.form.name, spec=spec)]


def _launcher_command(job: ClusterJob) -> list[str]:
    argv = ["horovodrun", "-np", str(job.process_count), "--hostfile", _HOSTFILE, *job.options]
    if job.command:
        return [*map(verbatim, (*argv, "--", *job.command))]
    runs = [shlex.join([*argv, "--", "/bin/sh", "-c", line]) for line in job.lines]
    return ["/bin/sh", "-c", verbatim(" && ".join(runs))]


def _replicas(job: ClusterJob, count: int, container: dict[str, Any]) -> dict[str, Any]:
    spec = pod_spec(job.form, [container])
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}
