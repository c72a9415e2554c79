"""Helpers about this machine, its LSF job and its environment."""

from __future__ import annotations

import os
from collections.abc import Sequence

from horovod.launch.model.host_plan import is_passed_on
from horovod.launch.model.ssh import SshOptions
from horovod.launch.schedulers.lsf import (
    HostParts,
    ask_host,
    is_lsf_job,
    job_hosts,
    with_a_process_per_gpu,
)
from horovod.launch.workers.addresses import interface_addresses
from horovod.launch.workers.machine import is_this_machine


def is_exportable(v: str) -> bool:
    """Whether workers get the launcher's variable ``v``."""
    return is_passed_on(v)


def get_local_host_addresses() -> list[str]:
    """The addresses of this machine's interfaces that are up."""
    return list(interface_addresses())


def filter_local_addresses(all_host_names: Sequence[str]) -> list[str]:
    """The names of other machines; may ask DNS."""
    return [name for name in all_host_names if not is_this_machine(name)]


class LSFUtils:
    """The LSF job of this process. Its first host is asked by ssh for CPUs and GPUs.

    Raises:
        ValueError: there is no such job.
        RuntimeError: the host does not answer.
    """

    @staticmethod
    def using_lsf() -> bool:
        """Whether this process is part of an LSF job."""
        return is_lsf_job(os.environ)

    @staticmethod
    def get_compute_hosts() -> list[str]:
        """The names of its hosts."""
        return [host.hostname for host in job_hosts(os.environ)]

    @staticmethod
    def get_num_cores() -> int:
        """The logical CPUs of a host."""
        return _parts().cpus

    @staticmethod
    def get_num_gpus() -> int:
        """The GPUs of a host."""
        return _parts().gpus

    @staticmethod
    def get_num_processes() -> int:
        """The number of GPUs of all hosts, or of slots if the hosts have no GPUs."""
        return sum(host.slots for host in with_a_process_per_gpu(job_hosts(os.environ), _parts()))


def _parts() -> HostParts:
    return ask_host(job_hosts(os.environ)[0].hostname, SshOptions(), os.environ)
