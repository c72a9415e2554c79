"""``horovodrun --kubernetes``: the manifest of a command line, an Indexed Job or an MPIJob.

An MPIJob (v2beta1) is for Kubeflow's operator: ``horovodrun`` in its launcher pod starts the
processes by ssh in the worker pods that the operator lists. The image needs an ssh server and
client besides horovod, and MPI only with ``--mpi``.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from horovod.launch.kubernetes.manifest import (
    ClusterJob,
    container,
    indexed_job,
    labels,
    plain_variables,
    pod_spec,
    render,
    verbatim,
)
from horovod.launch.kubernetes.options import KINDS, PodForm, check_name

_HOSTFILE = "/etc/mpi/hostfile"
_SSH_PORT = 22
# Host keys in an image would be known to everyone who has the image.
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
    job = ClusterJob(
        form=form,
        process_count=given.num_proc,
        command=tuple(command),
        variables=variables,
        options=pod_options(given),
    )
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
    launcher = {
        "name": "horovod",
        "image": job.form.image,
        "command": _launcher_command(job),
        **({"env": plain_variables(job.variables)} if job.variables else {}),
    }
    worker = {
        **container(job, command=_SSH_SERVER),
        "readinessProbe": {"tcpSocket": {"port": _SSH_PORT}},
    }
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
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": job.form.name, "labels": labels(job.form.name)},
            "spec": spec,
        }
    ]


def _launcher_command(job: ClusterJob) -> list[str]:
    argv = ["horovodrun", "-np", str(job.process_count), "--hostfile", _HOSTFILE, *job.options]
    if job.command:
        return [*map(verbatim, (*argv, "--", *job.command))]
    runs = [shlex.join([*argv, "--", "/bin/sh", "-c", line]) for line in job.lines]
    return ["/bin/sh", "-c", verbatim(" && ".join(runs))]


def _replicas(job: ClusterJob, count: int, container: dict[str, Any]) -> dict[str, Any]:
    spec = pod_spec(job.form, [container])
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}
