"""The pods that the options of ``horovodrun --kubernetes`` describe. Pure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

KINDS = ("job", "mpijob")
DEFAULT_NAME = "horovod"

_PREFIX = "kubernetes_"
_OF_HOSTS = ("ssh_port", "ssh_identity_file", "network_interfaces", "network_interface")
# The name of a Service must be a label of RFC 1035.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 63
_RESOURCE = re.compile(
    r"([a-z0-9A-Z][-a-z0-9A-Z_./]*)=([0-9]+(?:\.[0-9]+)?(?:[numkMGTPE]|[KMGTPE]i)?)"
)
_STANDARD_RESOURCE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.+|[^/]+/.+")
_VOLUME = re.compile(r"([a-z0-9][-a-z0-9.]*):(/[^:]*)")


class Volume(NamedTuple):
    """A PersistentVolumeClaim and the folder where it is mounted in every pod."""

    claim: str
    path: str


@dataclass(frozen=True)
class PodForm:
    """The pods of a job, which are all alike.

    ``resources`` are amounts by Kubernetes' names. ``secret`` names an existing Secret; without it
    the manifest has a new one. ``output_folder`` is the folder of a volume that is mounted at
    /output; without a volume /output is an empty folder.
    """

    image: str
    name: str = DEFAULT_NAME
    slots: int = 1
    resources: dict[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    secret: str | None = None
    output_folder: str | None = None


def pod_form(
    given: argparse.Namespace, *, image: str | None = None, name: str | None = None
) -> PodForm | None:
    """The pods that the command line describes; None without ``--kubernetes``.

    ``image`` and ``name`` are the defaults of their options.

    Raises:
        ValueError: a value is wrong or missing, or options contradict each other.
    """
    if given.kubernetes is None:
        _refuse_lonely(given)
        return None
    if given.hosts is not None or given.hostfile is not None:
        raise ValueError(
            "-H and --hostfile: with --kubernetes there are pods instead of hosts; "
            "say with --slots-per-host how many processes each runs"
        )
    for of_hosts in _OF_HOSTS:
        if getattr(given, of_hosts):
            option = f"--{of_hosts.replace('_', '-')}"
            raise ValueError(f"{option} and --kubernetes: pods are reached as the cluster does it")
    image = given.kubernetes_image or image
    if image is None:
        raise ValueError("--kubernetes needs --kubernetes-image IMAGE")
    if not image or any(character.isspace() for character in image):
        raise ValueError(f"--kubernetes-image={image}: expected the name of an image")
    if given.kubernetes_secret is not None and given.kubernetes == "mpijob":
        raise ValueError("--kubernetes-secret: an MPIJob has none; its launcher makes one")
    return PodForm(
        image=image,
        name=given.kubernetes_name or name or DEFAULT_NAME,
        slots=given.slots_per_host or 1,
        resources=_resources(given.kubernetes_resources),
        volumes=_volumes(given.kubernetes_volume or ()),
        secret=given.kubernetes_secret,
    )


def check_name(name: str, longest_ending: str) -> None:
    """Raise ValueError if Kubernetes would refuse ``name`` with ``longest_ending`` appended."""
    longest = _LONGEST_NAME - len(longest_ending)
    if not _NAME.fullmatch(name) or len(name) > longest:
        raise ValueError(
            f"--kubernetes-name={name}: expected a-z, 0-9 and -, a letter first, no - last, "
            f"at most {longest} characters"
        )


def _refuse_lonely(given: argparse.Namespace) -> None:
    for name in (name for name in vars(given) if name.startswith(_PREFIX)):
        if getattr(given, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} goes with --kubernetes")


def _resources(text: str | None) -> dict[str, str]:
    resources: dict[str, str] = {}
    for part in text.split(",") if text else ():
        match = _RESOURCE.fullmatch(part.strip())
        if match is None or match[1] in resources:
            raise ValueError(
                f"--kubernetes-resources={text}: expected name=amount[,name=amount...], "
                "for example cpu=4,memory=16Gi,nvidia.com/gpu=1"
            )
        if not _STANDARD_RESOURCE.fullmatch(match[1]):
            raise ValueError(
                f"--kubernetes-resources={text}: {match[1]} is no resource; expected cpu, memory, "
                "ephemeral-storage, hugepages-SIZE, or a name with a domain such as nvidia.com/gpu"
            )
        resources[match[1]] = match[2]
    return resources


def _volumes(texts: Sequence[str]) -> tuple[Volume, ...]:
    volumes: list[Volume] = []
    for text in texts:
        match = _VOLUME.fullmatch(text)
        if match is None or match[2] in [volume.path for volume in volumes]:
            raise ValueError(
                f"--kubernetes-volume={text}: expected CLAIM:PATH with another absolute path each"
            )
        volumes.append(Volume(match[1], match[2]))
    return tuple(volumes)
