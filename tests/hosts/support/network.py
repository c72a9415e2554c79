"""Hosts on this machine: namespaces, joined by virtual cables and switches.

A host has its own network, hostname, processes, /dev/shm, /run and name resolution. Files and cores
are shared. Each host's init process owns all of it and reads a pipe from the process that made the
host. At the end of that pipe, for any reason, the kernel ends every process of the host and removes
its namespaces and cables. So nothing has a name on this machine and nothing must be cleaned up.
Needs root; ``missing`` returns what else is missing.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

__all__ = [
    "BURST_BYTES",
    "Host",
    "Interface",
    "Network",
    "Traffic",
    "missing",
    "plain_cabling",
]

BURST_BYTES = 256 << 10  # that pass at once on a link with a limit, after a pause

_TOOLS = ("ip", "tc", "nft", "mount", "nsenter", "unshare")
_PACKAGES = "iproute2 mount nftables util-linux"
_START_TIMEOUT_S = 120.0
_COMMAND_TIMEOUT_S = 120.0
_LISTENING = "0A"  # a TCP state in /proc
_OWN_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")

# bbr, which some machines have as default, paces a virtual link to a third of its rate.
_HOST_SCRIPT = """
set -e
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
mount --bind "$1/hosts" /etc/hosts
echo "$2" > /proc/sys/kernel/hostname
echo reno > /proc/sys/net/ipv4/tcp_congestion_control
ip link set lo up
trap '' CHLD
echo ready
exec cat
"""
_SWITCH_SCRIPT = "echo ready; exec cat"


@dataclass(frozen=True)
class Interface:
    """A host's end of a cable, with ``addresses`` like 10.0.0.1/24 or fd00::1/64.

    Interfaces of one ``segment`` are plugged into one switch; without a segment the cable is
    plugged into nothing but has a carrier.
    """

    name: str
    addresses: tuple[str, ...]
    segment: str = "lan"


@dataclass(frozen=True)
class Traffic:
    """Bytes through an interface, with all headers."""

    sent_bytes: int
    received_bytes: int


def plain_cabling(
    host_count: int, *, ipv4: bool = True, ipv6: bool = False
) -> list[list[Interface]]:
    """One interface per host, eth0, all on one switch."""
    cabling = []
    for number in range(1, host_count + 1):
        addresses = [f"10.91.0.{number}/24"] if ipv4 else []
        addresses += [f"fd91::{number:x}/64"] if ipv6 else []
        cabling.append([Interface("eth0", tuple(addresses))])
    return cabling


@cache
def missing() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "hosts of namespaces need root"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install {_PACKAGES}"
    trial = (
        "ip link add trial0 type veth peer name trial1 && ip link add trial2 type bridge &&"
        " nft add table inet trial && mount -t tmpfs tmpfs /dev/shm"
    )
    try:
        _run(["unshare", *_OWN_NAMESPACES, "--fork", "--mount-proc", "sh", "-c", trial])
    except RuntimeError as error:
        return f"no namespaces here: {error}"
    return ""


class Host:
    """One host of a ``Network``, which makes and ends it."""

    def __init__(
        self, name: str, index: int, interfaces: Sequence[Interface], init_pid: int
    ) -> None:
        self.name = name
        self.index = index
        self.interfaces = tuple(interfaces)
        self._init_pid = init_pid

    @property
    def address(self) -> str:
        """The first address."""
        return self.addresses[0]

    @property
    def addresses(self) -> list[str]:
        return _addresses(self.interfaces)

    @property
    def network_namespace(self) -> Path:
        """The file that stands for the host's network."""
        return Path(f"/proc/{self._init_pid}/ns/net")

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs ``words`` on this host in the caller's working directory."""
        enter = ["nsenter", "--target", str(self._init_pid), *_OWN_NAMESPACES]
        # A test runner started in the background may have left these signals ignored.
        return [*enter, "env", "--default-signal=HUP,INT", "-C", os.getcwd(), *words]

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start ``words`` here. The result has their exit status; signals do not reach them."""
        return subprocess.Popen(
            self.command(words), **{"stdin": subprocess.DEVNULL, "text": True, **options}
        )

    def run(self, words: Sequence[str], **options: Any) -> str:
        """The output of ``words``; ``RuntimeError`` if they fail."""
        return _run(self.command(words), **options)

    def processes(self) -> list[psutil.Process]:
        """All processes of the host but its init process."""
        own = os.stat(f"/proc/{self._init_pid}/ns/pid").st_ino
        found = []
        for process in psutil.process_iter():
            try:
                is_here = os.stat(f"/proc/{process.pid}/ns/pid").st_ino == own
            except OSError:  # it has ended
                continue
            if is_here and process.pid != self._init_pid:
                found.append(process)
        return found

    def traffic(self, interface: str = "eth0") -> Traffic:
        """Bytes through ``interface`` so far."""
        for line in Path(f"/proc/{self._init_pid}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == interface:
                numbers = [int(text) for text in counters.split()]
                return Traffic(sent_bytes=numbers[8], received_bytes=numbers[0])
        raise KeyError(f"{self.name} has no interface {interface}")

    def listeners(self) -> list[tuple[str, int]]:
        """Addresses and ports where processes of the host listen."""
        found = []
        for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
            for line in Path(f"/proc/{self._init_pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == _LISTENING:
                    address, _, port = local.partition(":")
                    # The address has 32-bit words in the machine's byte order.
                    words = [
                        bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)
                    ]
                    found.append((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
        return found

    def limit_rate(self, mbit_per_s: float | None, interface: str = "eth0") -> None:
        """Let ``interface`` send no faster than this; None: as fast as it can."""
        if mbit_per_s is None:
            self.in_network(["tc", "qdisc", "del", "dev", interface, "root"])
            return
        shape = ["tbf", "rate", f"{mbit_per_s}mbit", "burst", str(BURST_BYTES), "latency", "50ms"]
        self.in_network(["tc", "qdisc", "replace", "dev", interface, "root", *shape])

    def lose_packets(self, percent: int) -> None:
        """Drop this percentage of arriving packets at random, 99 at most, until ``hear_all``."""
        self._filter(f'iifname != "lo" numgen random mod 100 < {percent} drop')

    def refuse_connections_from(self, other: Host) -> None:
        """Drop the first packet of TCP connections that ``other`` opens, until ``hear_all``."""
        # By MAC address, since an interface also has link-local IP addresses.
        count = len(other.interfaces)
        sources = ", ".join(_hardware_address(other.index, index) for index in range(count))
        self._filter(f"ether saddr {{ {sources} }} tcp flags & (syn | ack) == syn drop")

    def hear_all(self) -> None:
        """End ``lose_packets`` and ``refuse_connections_from``."""
        self.in_network(["nft", "flush", "ruleset"])

    def in_network(self, words: Sequence[str], **options: Any) -> str:
        """Run ``words`` of this machine in the host's network only."""
        return _run(self.network_command(words), **options)

    def network_command(self, words: Sequence[str]) -> list[str]:
        """The command that does."""
        return ["nsenter", "--target", str(self._init_pid), "--net", *words]

    def _filter(self, rules: str) -> None:
        chain = f"chain input {{\ntype filter hook input priority 0;\n{rules}\n}}"
        text = f"flush ruleset\ntable inet kit {{\n{chain}\n}}\n"
        self.in_network(["nft", "-f", "-"], input=text)


class Network:
    """Hosts ``host0``, ``host1``, ... with these interfaces each, until ``close``.

    ``switch``, which is not among ``hosts``, has nothing of its own but a network.

    Every host knows the others by name, as the first address of each. ``own_name_address`` is what
    a host takes its own name for, as some distributions do with 127.0.1.1.
    """

    def __init__(
        self, cabling: Sequence[Sequence[Interface]], *, own_name_address: str | None = None
    ) -> None:
        self.hosts: list[Host] = []
        self._stack = ExitStack()
        try:
            self._open(cabling, own_name_address)
        except BaseException:
            self.close()
            raise

    def connect(self, host: Host, interface: str = "eth0") -> None:
        """Plug the cable in again."""
        self._set_port(host, interface, "up")

    def disconnect(self, host: Host, interface: str = "eth0") -> None:
        """Pull the cable out of the switch: packets vanish, in both directions."""
        self._set_port(host, interface, "down")

    def close(self) -> None:
        """End every process of every host, and the hosts."""
        self._stack.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, cabling: Sequence[Sequence[Interface]], own_name_address: str | None) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        names = [f"host{index}" for index in range(len(cabling))]
        inits = [self._start_init(["--net"], _SWITCH_SCRIPT)]
        for name in names:
            own = folder / name
            own.mkdir()
            (own / "hosts").write_text(_hosts_file(name, names, cabling, own_name_address))
            inits.append(self._start_init(_OWN_NAMESPACES, _HOST_SCRIPT, str(own), name))
        switch, *pids = [_when_ready(init) for init in inits]
        for index, (name, interfaces) in enumerate(zip(names, cabling, strict=True)):
            self.hosts.append(Host(name, index, interfaces, pids[index]))
        self.switch = Host("switch", -1, (), switch)
        self.switch.in_network(["ip", "-batch", "-"], input=_cables(cabling, pids))
        for host in self.hosts:
            host.in_network(["ip", "-batch", "-"], input=_addresses_and_links(host))

    def _start_init(
        self, namespaces: Sequence[str], script: str, *arguments: str
    ) -> subprocess.Popen[str]:
        """A process that lives in new namespaces until the end of its standard input."""
        is_host = "--pid" in namespaces
        forks = ["--fork", "--kill-child", "--mount-proc"] if is_host else []
        words = ["unshare", *namespaces, *forks, "sh", "-c", script, "init", *arguments]
        init = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._stack.callback(_end, init)
        return init

    def _set_port(self, host: Host, interface: str, state: str) -> None:
        names = [each.name for each in host.interfaces]
        port = _port(host.index, names.index(interface))
        self.switch.in_network(["ip", "link", "set", port, state])


def _hosts_file(
    own: str,
    names: Sequence[str],
    cabling: Sequence[Sequence[Interface]],
    own_name_address: str | None,
) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    for name, interfaces in zip(names, cabling, strict=True):
        address = _addresses(interfaces)[0]
        if name == own and own_name_address:
            address = own_name_address
        lines.append(f"{address} {name}")
    return "\n".join(lines) + "\n"


def _addresses(interfaces: Sequence[Interface]) -> list[str]:
    texts = [text for interface in interfaces for text in interface.addresses]
    return [str(ipaddress.ip_interface(text).ip) for text in texts]


def _port(host_index: int, interface_index: int) -> str:
    """The switch's end of a cable."""
    return f"port{host_index}.{interface_index}"


def _hardware_address(host_index: int, interface_index: int) -> str:
    return f"02:00:00:00:{host_index:02x}:{interface_index:02x}"


def _cables(cabling: Sequence[Sequence[Interface]], pids: Sequence[int]) -> str:
    """Commands of ``ip`` for the switch."""
    segments = {interface.segment for interfaces in cabling for interface in interfaces}
    lines = []
    for segment in sorted(segments - {""}):
        lines += [f"link add {segment} type bridge", f"link set {segment} up"]
    for host_index, interfaces in enumerate(cabling):
        for index, interface in enumerate(interfaces):
            port = _port(host_index, index)
            hardware = _hardware_address(host_index, index)
            end = f"peer name {interface.name} address {hardware} netns {pids[host_index]}"
            lines.append(f"link add {port} type veth {end}")
            if interface.segment:
                lines.append(f"link set {port} master {interface.segment}")
            lines.append(f"link set {port} up")
    return "\n".join(lines) + "\n"


def _addresses_and_links(host: Host) -> str:
    """Commands of ``ip`` for a host."""
    lines = []
    for interface in host.interfaces:
        for address in interface.addresses:
            at_once = " nodad" if ":" in address else ""  # no duplicate address detection
            lines.append(f"addr add {address} dev {interface.name}{at_once}")
        lines.append(f"link set {interface.name} up")
    return "\n".join(lines) + "\n"


def _when_ready(init: subprocess.Popen[str]) -> int:
    """The pid of the process inside, once it has set everything up."""
    assert init.stdout is not None
    if init.stdout.readline() != "ready\n":
        raise RuntimeError("a host could not be made; its message is above")
    children = psutil.Process(init.pid).children()
    return children[0].pid if children else init.pid


def _end(init: subprocess.Popen[str]) -> None:
    assert init.stdin is not None
    assert init.stdout is not None
    init.stdin.close()
    init.stdout.close()
    try:
        init.wait(timeout=_START_TIMEOUT_S)
    finally:
        init.kill()


def _run(words: Sequence[str], **options: Any) -> str:
    limits = {"timeout": _COMMAND_TIMEOUT_S, "stdin": subprocess.DEVNULL, **options}
    if "input" in options:
        del limits["stdin"]
    done = subprocess.run(words, capture_output=True, text=True, **limits)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return str(done.stdout)
