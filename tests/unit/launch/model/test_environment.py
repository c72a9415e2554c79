"""What a worker finds in its environment."""

from __future__ import annotations

import base64

from horovod.launch.model.host_plan import Rendezvous, worker_environment
from horovod.launch.model.hosts import HostSlots, assign_ranks

RENDEZVOUS = Rendezvous("127.0.0.1", 1234, b"\0secret\xff")
SLOT = assign_ranks([HostSlots("alpha", 2)], 2)[1]


def test_everything_the_interface_documents() -> None:
    environment = worker_environment({}, SLOT, RENDEZVOUS)
    secret = environment.pop("_HOROVOD_SECRET_KEY")
    assert base64.b64decode(secret) == RENDEZVOUS.secret
    assert environment == {
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "alpha",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "1234",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
        "_HOROVOD_LAUNCHER": "horovodrun",
    }


def test_the_launchers_own_environment_is_passed_on_but_for_what_belongs_to_its_shell() -> None:
    base = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HOROVOD_CPU_OPERATIONS": "mpi",
        "OLDPWD": "/",
        "BASH_FUNC_module%%": "() { :; }",
        "HOROVOD_RANK": "7",
        "_HOROVOD_SECRET_KEY": "of another job",
        "_HOROVOD_WORKER": "3",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    environment = worker_environment(base, SLOT, RENDEZVOUS, {"HOROVOD_START_TIMEOUT": "5"})
    assert not {"OLDPWD", "_HOROVOD_WORKER"} & set(environment)
    assert not any(name.startswith("BASH_FUNC_") for name in environment)
    for name in ("PATH", "CUDA_VISIBLE_DEVICES", "HOROVOD_CPU_OPERATIONS", "NCCL_SOCKET_IFNAME"):
        assert environment[name] == base[name]
    assert environment["HOROVOD_RANK"] == "1"
    assert environment["_HOROVOD_SECRET_KEY"] != "of another job"
    assert environment["HOROVOD_START_TIMEOUT"] == "5"
    assert base["HOROVOD_RANK"] == "7"


def test_interfaces_between_hosts() -> None:
    base = {"NCCL_SOCKET_IFNAME": "ib0", "HOROVOD_GLOO_IFACE": "ib1"}
    named = worker_environment(base, SLOT, RENDEZVOUS, interfaces=("eth0", "eth1"))
    assert named["HOROVOD_GLOO_IFACE"] == named["NCCL_SOCKET_IFNAME"] == "eth0,eth1"
    any_will_do = worker_environment(base, SLOT, RENDEZVOUS, interfaces=())
    assert {name: any_will_do[name] for name in base} == base
    assert "HOROVOD_GLOO_IFACE" not in worker_environment({}, SLOT, RENDEZVOUS, interfaces=())


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(RENDEZVOUS)
