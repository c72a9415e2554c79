"""Where ranks run: hosts, the network between them, and what the engine costs on them."""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from horovod.core.base.checked import is_number
from horovod.core.base.own_files import open_regular

Made = TypeVar("Made", "Network", "Costs")
_NETWORKS = Path(__file__).with_name("networks.yaml")
COSTS_VERSION = 2
_MOST_BYTES = 1 << 20  # of a file
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 1  # aliases may stand for far more than the file has
_OTHERS = {"str": (str, "a text"), "bool": (bool, "true or false")}


@dataclass(frozen=True)
class Network:
    """The links between hosts.

    Attributes:
        name: for people.
        bandwidth: bytes per second that a host sends, and receives at the same time.
        latency_s: from a rank that sends some bytes to one of another host that has them.
        message_s: processor time of a rank for one message.
        source: where the numbers are from.
    """

    name: str
    bandwidth: float
    latency_s: float
    message_s: float = 5e-6
    source: str = ""

    def __post_init__(self) -> None:
        for key in ("bandwidth", "latency_s", "message_s"):
            value = getattr(self, key)
            if not is_number(value) or value <= 0:
                found = _SHORT.repr(value)
                raise ValueError(f"network {self.name}: {key} must be a number above 0: {found}")
        _check_others(self, f"network {self.name}")


@dataclass(frozen=True)
class Costs:
    """What reductions cost on a host.

    Attributes:
        tensor_s: for each tensor of a bucket, on each rank.
        bucket_s: for each bucket, besides its bytes.
        byte_s: for each byte of an allreduce among the ranks of one host, of private memory, in
            buckets of 64 MiB or more.
        cached_byte_s: the same in buckets of at most 1 MiB, which stay in the cache; not more than
            ``byte_s``.
        link_byte_s: processor time for each byte that a rank sends to other hosts.
        link_tensor_s: for each tensor of a bucket that travels between hosts, besides ``tensor_s``.
        wake_s: to wake a rank that sleeps. One with a core of its own spins until a message comes.
        overlap: whether buckets are reduced during the backward pass.
        slowdown: by which part the backward pass is slower while a bucket is reduced.
        source: where the numbers are from.
    """

    tensor_s: float = 2e-6
    bucket_s: float = 20e-6
    byte_s: float = 0.16e-9
    cached_byte_s: float = 0.11e-9
    link_byte_s: float = 0.25e-9
    link_tensor_s: float = 0.0
    wake_s: float = 45e-6
    overlap: bool = True
    slowdown: float = 0.0
    source: str = "the figures of docs/benchmarks.md"

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.type == "float" and not (is_number(value) and value >= 0):
                found = _SHORT.repr(value)
                raise ValueError(f"costs: {each.name} must be a number, 0 or more: {found}")
        _check_others(self, "costs")


@dataclass(frozen=True)
class Cluster:
    """``hosts`` hosts with ``ranks_per_host`` ranks each."""

    hosts: int
    ranks_per_host: int
    network: Network
    costs: Costs = field(default_factory=Costs)

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.hosts * self.ranks_per_host


def on_cores(cluster: Cluster, cores: int) -> Cluster:
    """The same hosts on one machine, whose ``cores`` all ranks share.

    All that a processor does takes as many times as long as there are ranks for each core: work in
    memory, messages, and the way of a message, at whose end a rank has to get its turn, and has to
    be woken, since ranks without a core of their own sleep. A link with a limit is as fast as
    before.
    """
    factor = max(1.0, cluster.ranks / cores)
    costs, network = cluster.costs, cluster.network
    times = {
        each.name: getattr(costs, each.name) * factor
        for each in dataclasses.fields(costs)
        if each.name.endswith("_s")
    }
    slower = dataclasses.replace(
        network,
        latency_s=(network.latency_s + (costs.wake_s if factor > 1 else 0.0)) * factor,
        message_s=network.message_s * factor,
    )
    return dataclasses.replace(cluster, network=slower, costs=dataclasses.replace(costs, **times))


def _check_others(found: Network | Costs, place: str) -> None:
    """``ValueError`` if a field that is no number has a value of another type."""
    for each in dataclasses.fields(found):
        kind, expected = _OTHERS.get(str(each.type), (object, ""))
        value = getattr(found, each.name)
        if not isinstance(value, kind):
            raise ValueError(f"{place}: {each.name} must be {expected}: {_SHORT.repr(value)}")


def network_names() -> list[str]:
    """The networks that ``network_named`` knows."""
    return sorted(_networks())


def network_named(name: str) -> Network:
    """One of the networks that come with Horovod, or of a YAML or JSON file with one.

    Raises:
        ValueError: there is no such network or file, or a number is missing or wrong.
    """
    known = _networks()
    if name in known:
        return _network(name, known[name])
    path = Path(name)
    if not path.is_file():
        raise ValueError(
            f"no network {name!r} and no file of that name; there are {', '.join(sorted(known))}"
        )
    try:
        content = yaml.safe_load(_text_in(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"network {path}: {error}") from None
    return _network(path.stem, content)


def costs_in(path: str) -> tuple[Costs, Network | None]:
    """The costs, and the network if hosts were measured, of a file of ``--calibrate``.

    Raises:
        ValueError: it is no such file, of another version, or a number is wrong.
    """
    try:
        content = json.loads(_text_in(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(content, dict) or content.get("horovod_costs") != COSTS_VERSION:
        raise ValueError(
            f"{path}: expected a file of version {COSTS_VERSION} of horovodrun --calibrate -o FILE"
        )
    costs = _made(Costs, content.get("costs"), f"{path}: costs")
    network = content.get("network")
    name = network.get("name", path) if isinstance(network, Mapping) else path
    return costs, None if network is None else _network(str(name), network)


def _text_in(path: str | os.PathLike[str]) -> str:
    """All of a file that a user has named. ``OSError`` or ``ValueError`` if it cannot be one."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"expected at most {_MOST_BYTES} bytes")
    return data.decode()


def _networks() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_NETWORKS.read_text())
    return found


def _network(name: str, content: Any) -> Network:
    if not isinstance(content, Mapping):
        raise ValueError(f"network {name}: expected a mapping, found {type(content).__name__}")
    return _made(Network, {**content, "name": name}, f"network {name}")


def _made(kind: type[Made], content: Any, place: str) -> Made:
    if not isinstance(content, Mapping):
        raise ValueError(f"{place}: expected a mapping, found {type(content).__name__}")
    fields = {each.name: each for each in dataclasses.fields(kind)}
    for key in content:
        if key not in fields:
            found = _SHORT.repr(key)
            raise ValueError(f"{place}: unknown {found}; there are {', '.join(fields)}")
    for key, each in fields.items():
        has_default = each.default is not dataclasses.MISSING
        if not has_default and key not in content:
            raise ValueError(f"{place}: {key} is missing; horovodrun --check-network measures it")
    return kind(**content)
