"""The settings of the engine: what runs together, how data travels, and how long ranks wait.

``horovod.settings`` adds the others to these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from horovod.core.base.setting import Flag

GPU_OPERATIONS = ("auto", "nccl", "host")
LINK_PROTECTIONS = ("control", "integrity", "encrypted")
# What travels between hosts, as a part of float32's bytes: codes, and four bytes for 128 of them.
LINK_SHARES = {
    "none": 1.0,
    "int8": 33 / 128,
    "fp8": 33 / 128,
    "mxfp8": 33 / 128,
    "int4": 17 / 128,
}
LINK_COMPRESSIONS = tuple(LINK_SHARES)
ROUNDINGS = ("nearest", "stochastic")
# Values that images have left over from builds of the original. There NCCL was a wish of the build,
# not a condition of every run.
_ORIGINAL_GPU_OPERATIONS = (("NCCL", "auto"), ("mpi", "host"), ("ddl", "host"), ("gloo", "host"))


def define(default: Any, meaning: str, **details: Any) -> Any:
    """A setting; its variable is ``HOROVOD_`` and its name in capitals if ``env`` is not given."""
    return field(default=default, metadata={"meaning": meaning, **details})


def _gpu_setting(collective: str) -> Any:
    return define(
        "auto",
        f"the same for {collective} alone; auto: as HOROVOD_GPU_OPERATIONS says",
        choices=GPU_OPERATIONS,
        replaced=_ORIGINAL_GPU_OPERATIONS,
    )


def switch(name: str, topic: str, key: str, meaning: str) -> Any:
    """A setting that is off by default, with the flags ``--<name>`` and ``--no-<name>``."""
    opposite = f"--no-{name.removeprefix('--')}"
    return define(False, meaning, flag=Flag(name, topic, key=key, opposite=opposite))


@dataclass(frozen=True)
class EngineSettings:
    """The settings of the engine; see ``horovod.settings.Settings``."""

    fusion_threshold_bytes: int = define(
        128 * 1024 * 1024,
        "most that runs as one collective; 0 runs every tensor alone",
        env="HOROVOD_FUSION_THRESHOLD",
        unit="bytes",
        maximum=2**62,
        flag=Flag(
            "--fusion-threshold-mb",
            "tuning",
            key="params.fusion_threshold_mb",
            unit="MB",
            factor=1024 * 1024,
        ),
    )
    disable_group_fusion: bool = define(
        False, "keep grouped operations apart from all others when they run"
    )
    # A thread that waits for a result does not wait for more tensors.
    cycle_time_ms: float = define(
        0.0,
        "longest wait of the background thread for more tensors before it starts what is ready; "
        "0 leaves it to the engine",
        env="HOROVOD_CYCLE_TIME",
        unit="ms",
        flag=Flag("--cycle-time-ms", "tuning", key="params.cycle_time_ms"),
    )
    # These three say how an allreduce is cut, which changes no result.
    allreduce_block_kb: int = define(
        512,
        "most of an allreduce that each rank copies and adds up at a time; up to four times as "
        "much is on its way between machines",
        unit="KB",
        minimum=64,
        maximum=8192,
        flag=Flag("--allreduce-block-kb", "tuning", key="params.allreduce_block_kb"),
    )
    small_allreduce_kb: int = define(
        64,
        "on one machine: an allreduce is small, and every rank adds up all of it, where its size "
        "times the ranks is at most this",
        unit="KB",
        maximum=32768,
        flag=Flag("--small-allreduce-kb", "tuning", key="params.small_allreduce_kb"),
    )
    small_allreduce_between_hosts_kb: int = define(
        64,
        "between machines: an allreduce is small, and goes from each to all others at once, where "
        "its size times the machines, over the ranks of the largest one, is at most this",
        unit="KB",
        maximum=32768,
        flag=Flag(
            "--small-allreduce-between-hosts-kb",
            "tuning",
            key="params.small_allreduce_between_hosts_kb",
        ),
    )
    cache_capacity: int = define(
        1024,
        "tensor names whose negotiated request is remembered; 0 forgets each one at once",
        unit="names",
        flag=Flag("--cache-capacity", "tuning", key="params.cache_capacity"),
    )
    thread_affinity: tuple[int, ...] = define(
        (),
        "core that the engine's own threads stay on: one number for every rank, or one for each "
        "local rank, separated by commas",
        maximum=65535,
        flag=Flag("--thread-affinity", "tuning", key="library_options.thread_affinity"),
    )
    dynamic_process_sets: bool = define(
        False, "let add_process_set and remove_process_set change the process sets"
    )
    stall_check_disable: bool = define(
        False,
        "turn the stall check off",
        flag=Flag(
            "--no-stall-check",
            "stall check",
            key="stall_check.enabled",
            opposite="--stall-check",
            is_key_opposite=True,
        ),
    )
    stall_check_time_s: float = define(
        60.0,
        "how long some ranks may leave a tensor to the others before a warning names it",
        env="HOROVOD_STALL_CHECK_TIME_SECONDS",
        unit="s",
        flag=Flag(
            "--stall-check-warning-time-seconds",
            "stall check",
            key="stall_check.warning_time_seconds",
        ),
    )
    stall_shutdown_time_s: float = define(
        0.0,
        "how long before all pending operations fail, warned of or not; 0: never",
        env="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        unit="s",
        flag=Flag(
            "--stall-check-shutdown-time-seconds",
            "stall check",
            key="stall_check.shutdown_time_seconds",
        ),
    )
    cpu_operations: str = define(
        "",
        "what moves the data between processes: native, mpi, gloo, or a data plane that another "
        "package brings; none: MPI under mpirun, else native",
        left_over=("ccl",),
    )
    gpu_operations: str = define(
        "auto",
        "how tensors on GPUs travel: nccl, or not at all; host, through host memory; auto, over "
        "NCCL where all ranks can, else over CUDA IPC inside a machine, else through host memory",
        choices=GPU_OPERATIONS,
        replaced=_ORIGINAL_GPU_OPERATIONS,
    )
    gpu_allreduce: str = _gpu_setting("allreduce")
    gpu_allgather: str = _gpu_setting("allgather")
    gpu_broadcast: str = _gpu_setting("broadcast")
    gpu_alltoall: str = _gpu_setting("alltoall")
    gpu_reducescatter: str = _gpu_setting("reducescatter")
    nccl_connect_timeout_s: float = define(
        120.0,
        "longest time for NCCL to connect the GPUs of a process set, at the first operation on "
        "tensors there",
        env="HOROVOD_NCCL_CONNECT_TIMEOUT",
        unit="s",
        minimum=0.001,
    )
    num_nccl_streams: int = define(
        1,
        "streams, each with an NCCL communicator of its own, that collectives on GPUs take in "
        "turn; where ranks differ, the fewest",
        unit="streams",
        minimum=1,
        maximum=16,
        flag=Flag("--num-nccl-streams", "tuning", key="library_options.num_nccl_streams"),
    )
    hierarchical_allreduce: bool = switch(
        "--hierarchical-allreduce",
        "tuning",
        "params.hierarchical_allreduce",
        "reduce GPU tensors on each host, then between hosts, over NCCL",
    )
    hierarchical_allgather: bool = switch(
        "--hierarchical-allgather",
        "tuning",
        "params.hierarchical_allgather",
        "gather GPU tensors between hosts, then on each host, over NCCL",
    )
    torus_allreduce: bool = switch(
        "--torus-allreduce",
        "tuning",
        "params.torus_allreduce",
        "the same as HOROVOD_HIERARCHICAL_ALLREDUCE",
    )
    mpi_threads_disable: bool = switch(
        "--mpi-threads-disable",
        "tuning",
        "library_options.mpi_threads_disable",
        "ask MPI for one thread at a time only; the program then calls MPI itself while Horovod "
        "has nothing under way, or not at all",
    )
    rendezvous_dir: str = define(
        "",
        "folder that all nodes share, where the ranks that srun started find each other; none: "
        "~/.horovod",
    )
    gloo_timeout_s: float = define(
        30.0,
        "how long a connection to another host may go without an answer before that host counts "
        "as lost, and processes may take to connect another data plane",
        env="HOROVOD_GLOO_TIMEOUT_SECONDS",
        unit="s",
        minimum=1,
        flag=Flag("--gloo-timeout-seconds", "start", key="library_options.gloo_timeout_seconds"),
    )
    link_protection: str = define(
        "control",
        "what tensors get on the engine's connections between machines, where control messages are "
        "always encrypted: control, nothing; integrity, a code that shows changes; encrypted, "
        "AES-256-GCM; the same on all ranks",
        choices=LINK_PROTECTIONS,
        flag=Flag("--link-protection", "start", key="library_options.link_protection"),
    )
    link_connections: int = define(
        1,
        "least connections for tensors between two machines; there is one for each rank of the one "
        "with more ranks; the same on all ranks",
        unit="connections",
        minimum=1,
        maximum=64,
        flag=Flag("--link-connections", "start", key="library_options.link_connections"),
    )
    link_compression: str = define(
        "none",
        "how an allreduce travels between machines, where the program does not say it: none, "
        "exactly; int8, fp8 or mxfp8, a quarter of float32's bytes, or int4, an eighth, for "
        "averages and sums of float32, float16 and bfloat16 in host memory; the same on all ranks",
        choices=LINK_COMPRESSIONS,
        flag=Flag("--link-compression", "tuning", key="params.link_compression"),
    )
    link_compression_min_elements: int = define(
        1024,
        "tensors with fewer elements travel exactly, also where the program asks for compression; "
        "the same on all ranks",
        unit="elements",
        maximum=2**62,
    )
    link_compression_exact: str = define(
        "bias,norm,embed,gamma,beta,.bn,.ln,wte,wpe",
        "tensors whose names have one of these parts travel exactly, also where the program asks "
        "for compression; case does not matter; the same on all ranks",
        flag=Flag("--link-compression-exact", "tuning", key="params.link_compression_exact"),
    )
    link_compression_rounding: str = define(
        "nearest",
        "how int8, fp8, mxfp8 and int4 round: nearest, to the nearest code; stochastic, up or "
        "down by chance, so that the mean is exact; the same on all ranks",
        choices=ROUNDINGS,
        flag=Flag("--link-compression-rounding", "tuning", key="params.link_compression_rounding"),
    )
    link_compression_seed: int = define(
        0,
        "of stochastic rounding: with the same seed the same program gets the same bits; the same "
        "on all ranks",
        maximum=2**62,
    )
    link_compression_feedback: bool = switch(
        "--link-compression-feedback",
        "tuning",
        "params.link_compression_feedback",
        "add what low-bit formats leave out of a tensor to the next tensor of its name, which is "
        "right for gradients; optimizers of PyTorch and JAX with compression=... do it by "
        "themselves",
    )
    start_timeout_s: float = define(
        30.0,
        "longest time for all ranks to meet in init, and before it for horovodrun to start them on "
        "other machines",
        env="HOROVOD_START_TIMEOUT",
        unit="s",
        minimum=0.001,
        flag=Flag("--start-timeout", "start"),
    )
    elastic_timeout_s: float = define(
        600.0,
        "longest time that an elastic job waits for as many workers as it needs",
        env="HOROVOD_ELASTIC_TIMEOUT",
        unit="s",
        minimum=0.001,
        flag=Flag("--elastic-timeout", "elastic"),
    )
