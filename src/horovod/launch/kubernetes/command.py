"""``horovodrun --kubernetes``: the manifest of a command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from horovod.launch.kubernetes.manifest import ClusterJob, indexed_job, render
from horovod.launch.kubernetes.mpijob import mpi_job
from horovod.launch.kubernetes.options import KINDS, PodForm

__all__ = ["manifest", "objects_of", "pod_options"]


def manifest(
    given: argparse.Namespace,
    form: PodForm,
    command: Sequence[str],
    variables: Mapping[str, str],
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
    return mpi_job(job) if kind == "mpijob" else indexed_job(job)


def pod_options(given: argparse.Namespace) -> tuple[str, ...]:
    """The options about output, which the command in a pod takes, too."""
    options = ["--verbose"] if given.verbose else []
    if given.prefix_output_with_timestamp:
        options.append("--prefix-output-with-timestamp")
    if given.output_filename is not None:
        options += ["--output-filename", given.output_filename]
    return tuple(options)
