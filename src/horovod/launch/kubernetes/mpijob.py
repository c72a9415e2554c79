"""An MPIJob (v2beta1) for Kubeflow's operator: a launcher pod with ssh to the worker pods.

``horovodrun`` in the launcher pod starts the processes on the hosts that the operator lists. The
image needs an ssh server and client besides horovod, and MPI only with ``--mpi``.
"""

from __future__ import annotations

import shlex
from typing import Any

from horovod.launch.kubernetes.manifest import (
    ClusterJob,
    container,
    labels,
    plain_variables,
    pod_spec,
    verbatim,
)
from horovod.launch.kubernetes.options import check_name

__all__ = ["mpi_job"]

_HOSTFILE = "/etc/mpi/hostfile"
_SSH_PORT = 22
# Host keys in an image would be known to everyone who has the image.
_SSH_SERVER = ("/bin/sh", "-c", "ssh-keygen -A && exec /usr/sbin/sshd -De")


def mpi_job(job: ClusterJob) -> list[dict[str, Any]]:
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
    words = ["horovodrun", "-np", str(job.process_count), "--hostfile", _HOSTFILE, *job.options]
    if job.command:
        return [*map(verbatim, (*words, "--", *job.command))]
    runs = [shlex.join([*words, "--", "/bin/sh", "-c", line]) for line in job.lines]
    return ["/bin/sh", "-c", verbatim(" && ".join(runs))]


def _replicas(job: ClusterJob, count: int, container: dict[str, Any]) -> dict[str, Any]:
    spec = pod_spec(job.form, [container])
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}
