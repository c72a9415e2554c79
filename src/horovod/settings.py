"""Every setting of the engine and the tools, each defined once; read once, at ``init``.

The definition of a setting carries its environment variable, meaning, unit, limits and how
``horovodrun`` takes it. The environment reader and README's table (``python -m horovod.settings``
prints it) derive from it here; the launcher's options, its help and the keys of its configuration
file in ``launch``. Nothing else reads ``HOROVOD_*`` tunables from the environment, and the C++
engine reads none at all.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from horovod.core.base.setting import Flag, Setting
from horovod.errors import SettingError

__all__ = [
    "GPU_OPERATIONS",
    "LINK_PROTECTIONS",
    "LOG_LEVELS",
    "SETTINGS",
    "Settings",
    "environment_of",
    "file_sections",
    "markdown_table",
    "names_given",
    "notices",
]

GPU_OPERATIONS = ("auto", "nccl", "host")
LINK_PROTECTIONS = ("control", "integrity", "encrypted")
_ORIGINAL_GPU_OPERATIONS = ("mpi", "ddl")
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


def _setting(env: str, default: Any, meaning: str, **details: Any) -> Any:
    return field(default=default, metadata={"env": env, "meaning": meaning, **details})


def _gpu_setting(env: str, collective: str) -> Any:
    return _setting(
        env,
        "auto",
        f"the same for {collective} alone; auto: as HOROVOD_GPU_OPERATIONS says",
        choices=GPU_OPERATIONS,
        left_over=_ORIGINAL_GPU_OPERATIONS,
    )


def _hierarchical_setting(collective: str, meaning: str) -> Any:
    return _setting(
        f"HOROVOD_HIERARCHICAL_{collective.upper()}",
        False,
        meaning,
        flag=Flag(
            f"--hierarchical-{collective}",
            "tuning",
            key=f"params.hierarchical_{collective}",
            opposite=f"--no-hierarchical-{collective}",
        ),
    )


@dataclass(frozen=True)
class Settings:
    """What a user can set. Construct it directly in tests; ``from_env`` reads the environment."""

    fusion_threshold_bytes: int = _setting(
        "HOROVOD_FUSION_THRESHOLD",
        128 * 1024 * 1024,
        "most that runs as one collective; 0 runs every tensor alone",
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
    disable_group_fusion: bool = _setting(
        "HOROVOD_DISABLE_GROUP_FUSION",
        False,
        "keep grouped operations apart from all others when they run",
    )
    # A thread that waits for a result never waits for company.
    cycle_time_ms: float = _setting(
        "HOROVOD_CYCLE_TIME",
        0.0,
        "longest wait of the background thread for more tensors before it starts what is ready; "
        "0 leaves it to the engine",
        unit="ms",
        flag=Flag("--cycle-time-ms", "tuning", key="params.cycle_time_ms"),
    )
    # These three say how an allreduce is cut, which changes no result.
    allreduce_block_kb: int = _setting(
        "HOROVOD_ALLREDUCE_BLOCK_KB",
        512,
        "most of an allreduce that each rank copies and adds up at a time",
        unit="KB",
        minimum=64,
        maximum=1024,
        flag=Flag("--allreduce-block-kb", "tuning", key="params.allreduce_block_kb"),
    )
    small_allreduce_kb: int = _setting(
        "HOROVOD_SMALL_ALLREDUCE_KB",
        64,
        "on one machine: an allreduce is small, and every rank adds up all of it, where its size "
        "times the ranks is at most this",
        unit="KB",
        maximum=32768,
        flag=Flag("--small-allreduce-kb", "tuning", key="params.small_allreduce_kb"),
    )
    small_allreduce_between_hosts_kb: int = _setting(
        "HOROVOD_SMALL_ALLREDUCE_BETWEEN_HOSTS_KB",
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
    cache_capacity: int = _setting(
        "HOROVOD_CACHE_CAPACITY",
        1024,
        "tensor names whose negotiated request is remembered; 0 forgets each one at once",
        unit="names",
        flag=Flag("--cache-capacity", "tuning", key="params.cache_capacity"),
    )
    thread_affinity: tuple[int, ...] = _setting(
        "HOROVOD_THREAD_AFFINITY",
        (),
        "core that the engine's own threads stay on: one number for every rank, or one for each "
        "local rank, separated by commas",
        maximum=65535,
        flag=Flag("--thread-affinity", "tuning", key="library_options.thread_affinity"),
    )
    dynamic_process_sets: bool = _setting(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        False,
        "let add_process_set and remove_process_set change the process sets",
    )
    stall_check_disable: bool = _setting(
        "HOROVOD_STALL_CHECK_DISABLE",
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
    stall_check_time_s: float = _setting(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        60.0,
        "how long some ranks may leave a tensor to the others before a warning names it",
        unit="s",
        flag=Flag(
            "--stall-check-warning-time-seconds",
            "stall check",
            key="stall_check.warning_time_seconds",
        ),
    )
    stall_shutdown_time_s: float = _setting(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        0.0,
        "how long before all pending operations fail, warned of or not; 0: never",
        unit="s",
        flag=Flag(
            "--stall-check-shutdown-time-seconds",
            "stall check",
            key="stall_check.shutdown_time_seconds",
        ),
    )
    cpu_operations: str = _setting(
        "HOROVOD_CPU_OPERATIONS",
        "",
        "what moves the data between processes: native, mpi, gloo, or a data plane that another "
        "package brings; none: MPI under mpirun, else native",
        left_over=("ccl",),
    )
    gpu_operations: str = _setting(
        "HOROVOD_GPU_OPERATIONS",
        "auto",
        "how tensors on GPUs travel: nccl, or not at all; host, through host memory; auto, over "
        "NCCL where all ranks can, else over CUDA IPC inside a machine, else through host memory",
        choices=GPU_OPERATIONS,
        left_over=_ORIGINAL_GPU_OPERATIONS,
    )
    gpu_allreduce: str = _gpu_setting("HOROVOD_GPU_ALLREDUCE", "allreduce")
    gpu_allgather: str = _gpu_setting("HOROVOD_GPU_ALLGATHER", "allgather")
    gpu_broadcast: str = _gpu_setting("HOROVOD_GPU_BROADCAST", "broadcast")
    gpu_alltoall: str = _gpu_setting("HOROVOD_GPU_ALLTOALL", "alltoall")
    gpu_reducescatter: str = _gpu_setting("HOROVOD_GPU_REDUCESCATTER", "reducescatter")
    num_nccl_streams: int = _setting(
        "HOROVOD_NUM_NCCL_STREAMS",
        1,
        "streams, each with an NCCL communicator of its own, that collectives on GPUs take in "
        "turn; where ranks differ, the fewest",
        unit="streams",
        minimum=1,
        maximum=16,
        flag=Flag("--num-nccl-streams", "tuning", key="library_options.num_nccl_streams"),
    )
    hierarchical_allreduce: bool = _hierarchical_setting(
        "allreduce", "reduce GPU tensors on each host, then between hosts, over NCCL"
    )
    hierarchical_allgather: bool = _hierarchical_setting(
        "allgather", "gather GPU tensors between hosts, then on each host, over NCCL"
    )
    torus_allreduce: bool = _setting(
        "HOROVOD_TORUS_ALLREDUCE",
        False,
        "the same as HOROVOD_HIERARCHICAL_ALLREDUCE",
        flag=Flag(
            "--torus-allreduce",
            "tuning",
            key="params.torus_allreduce",
            opposite="--no-torus-allreduce",
        ),
    )
    mpi_threads_disable: bool = _setting(
        "HOROVOD_MPI_THREADS_DISABLE",
        False,
        "ask MPI for one thread at a time only; the program then calls MPI itself while Horovod "
        "has nothing under way, or not at all",
        flag=Flag(
            "--mpi-threads-disable",
            "tuning",
            key="library_options.mpi_threads_disable",
            opposite="--no-mpi-threads-disable",
        ),
    )
    rendezvous_dir: str = _setting(
        "HOROVOD_RENDEZVOUS_DIR",
        "",
        "folder that all nodes share, where the ranks that srun started find each other; none: "
        "~/.horovod",
    )
    gloo_timeout_s: float = _setting(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        30.0,
        "how long a connection to another host may go without an answer before that host counts "
        "as lost, and processes may take to connect another data plane",
        unit="s",
        minimum=1,
        flag=Flag("--gloo-timeout-seconds", "start", key="library_options.gloo_timeout_seconds"),
    )
    link_protection: str = _setting(
        "HOROVOD_LINK_PROTECTION",
        "control",
        "what tensors get on the engine's connections between machines, where control messages are "
        "always encrypted: control, nothing; integrity, a code that shows changes; encrypted, "
        "AES-256-GCM; the same on all ranks",
        choices=LINK_PROTECTIONS,
        flag=Flag("--link-protection", "start", key="library_options.link_protection"),
    )
    start_timeout_s: float = _setting(
        "HOROVOD_START_TIMEOUT",
        30.0,
        "longest time for all ranks to meet in init, and before it for horovodrun to start them on "
        "other machines",
        unit="s",
        minimum=0.001,
        flag=Flag("--start-timeout", "start"),
    )
    elastic_timeout_s: float = _setting(
        "HOROVOD_ELASTIC_TIMEOUT",
        600.0,
        "longest time that an elastic job waits for as many workers as it needs",
        unit="s",
        minimum=0.001,
        flag=Flag("--elastic-timeout", "elastic"),
    )
    tensorflow_native_ops: bool = _setting(
        "HOROVOD_TENSORFLOW_NATIVE_OPS",
        True,
        "run TensorFlow's collectives as Python operations instead of the native plugin's",
    )
    enable_xla_ops: bool = _setting(
        "HOROVOD_ENABLE_XLA_OPS",
        False,
        "let XLA compile TensorFlow functions and Keras models with collectives in them",
    )
    jax_native_ops: bool = _setting(
        "HOROVOD_JAX_NATIVE_OPS",
        True,
        "run collectives in JAX's compiled programs as host callbacks instead of native calls",
    )
    autotune: bool = _setting(
        "HOROVOD_AUTOTUNE",
        False,
        "look for the fastest settings while the program trains",
        flag=Flag("--autotune", "autotune", key="autotune.enabled", opposite="--no-autotune"),
    )
    autotune_log: str = _setting(
        "HOROVOD_AUTOTUNE_LOG",
        "",
        "file in which rank 0 writes what it tries, as CSV; what it has found goes into another "
        "one with .yaml behind that name, which --config-file takes",
        flag=Flag("--autotune-log-file", "autotune", key="autotune.log_file"),
    )
    autotune_warmup_samples: int = _setting(
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        3,
        "samples at the beginning that count for nothing",
        unit="samples",
        flag=Flag("--autotune-warmup-samples", "autotune", key="autotune.warmup_samples"),
    )
    autotune_steps_per_sample: int = _setting(
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        10,
        "steps of training in a sample, whose median counts",
        unit="steps",
        minimum=1,
        flag=Flag("--autotune-steps-per-sample", "autotune", key="autotune.steps_per_sample"),
    )
    autotune_bayes_opt_max_samples: int = _setting(
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        20,
        "samples of the search, before the best is compared with the defaults",
        unit="samples",
        minimum=1,
        flag=Flag(
            "--autotune-bayes-opt-max-samples", "autotune", key="autotune.bayes_opt_max_samples"
        ),
    )
    autotune_gaussian_process_noise: float = _setting(
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        0.8,
        "variance that the search takes for chance, as a part of that of all samples",
        maximum=1,
        flag=Flag(
            "--autotune-gaussian-process-noise", "autotune", key="autotune.gaussian_process_noise"
        ),
    )
    recorder_events: int = _setting(
        "HOROVOD_RECORDER_EVENTS",
        65536,
        "events that each process keeps in memory, about 32 bytes each, for the files that say "
        "what happened before an error; 0 records nothing",
        unit="events",
        maximum=262144,
    )
    recorder_dir: str = _setting(
        "HOROVOD_RECORDER_DIR",
        "",
        "folder for those files, in which the last 16 jobs keep a folder each; none: "
        "horovod-USERID in the folder for temporary files; off: such files are not written",
    )
    timeline: str = _setting(
        "HOROVOD_TIMELINE",
        "",
        "file in which rank 0 shows what all ranks do, for Perfetto or chrome://tracing; DYNAMIC: "
        "none until the program calls start_timeline",
        flag=Flag("--timeline-filename", "timeline", key="timeline.filename"),
    )
    timeline_mark_cycles: bool = _setting(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        False,
        "mark in the timeline where the engine begins with what is ready",
        flag=Flag(
            "--timeline-mark-cycles",
            "timeline",
            key="timeline.mark_cycles",
            opposite="--no-timeline-mark-cycles",
        ),
    )
    timeline_max_mb: int = _setting(
        "HOROVOD_TIMELINE_MAX_MB",
        1024,
        "largest size of the timeline; it ends there",
        unit="MB",
        minimum=1,
        maximum=1024 * 1024,
    )
    metrics_port: int = _setting(
        "HOROVOD_METRICS_PORT",
        0,
        "port of rank 0's machine at which Prometheus finds the metrics of the job; 0: none",
        maximum=65535,
        flag=Flag("--metrics-port", "metrics", key="metrics.port"),
    )
    metrics_address: str = _setting(
        "HOROVOD_METRICS_ADDRESS",
        "127.0.0.1",
        "address of that port; one that others reach needs a token",
        flag=Flag("--metrics-address", "metrics", key="metrics.address"),
    )
    metrics_token_file: str = _setting(
        "HOROVOD_METRICS_TOKEN_FILE",
        "",
        "file of rank 0's machine that only you can read, with the token that questions have to "
        "bring; none: the environment variable HOROVOD_METRICS_TOKEN, if it is set",
        flag=Flag("--metrics-token-file", "metrics", key="metrics.token_file"),
    )
    debug: bool = _setting(
        "HOROVOD_DEBUG_COLLECTIVES",
        False,
        "look for NaN and infinity before and after each reduction, compare results between ranks, "
        "and say in mismatch errors where an operation was submitted; slow",
    )
    debug_interval: int = _setting(
        "HOROVOD_DEBUG_INTERVAL",
        100,
        "compare every so many results, with HOROVOD_DEBUG_COLLECTIVES=1",
        unit="results",
        minimum=1,
    )
    log_level: str = _setting(
        "HOROVOD_LOG_LEVEL",
        "warning",
        f"least that is logged: {', '.join(LOG_LEVELS[:-1])} or {LOG_LEVELS[-1]}",
        choices=LOG_LEVELS,
        flag=Flag("--log-level", "output", key="logging.level"),
    )
    quiet: bool = _setting(
        "HOROVOD_QUIET",
        False,
        "show no status line and no last line of a job that ends well",
        flag=Flag("--quiet", "output", opposite="--no-quiet"),
    )
    log_hide_time: bool = _setting(
        "HOROVOD_LOG_HIDE_TIME",
        False,
        "leave the time out of log lines",
        flag=Flag(
            "--log-without-timestamp",
            "output",
            key="logging.with_timestamp",
            opposite="--log-with-timestamp",
            deprecated=("--log-hide-timestamp", "--no-log-hide-timestamp"),
            is_key_opposite=True,
        ),
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings from ``environ`` (default: the process environment); refuses bad values."""
        environ = os.environ if environ is None else environ
        given = {}
        for setting, text in _given(environ):
            try:
                given[setting.name] = setting.parse(text)
            except SettingError as error:
                raise SettingError(f"{setting.env}={text!r}: {error}") from None
        return cls(**given)


SETTINGS = tuple(Setting(f.name, f.default, **f.metadata) for f in dataclasses.fields(Settings))


def names_given(environ: Mapping[str, str]) -> frozenset[str]:
    """The names of the settings that the environment, and so the user, gives a value."""
    return frozenset(setting.name for setting, _ in _given(environ))


def notices(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable whose value is ignored, being left over from the original."""
    return [
        f"{setting.env}={environ[setting.env]}: this version has nothing of that name, the value "
        "is ignored (docs/migrating.md)"
        for setting in SETTINGS
        if setting.is_left_over(environ.get(setting.env, ""))
    ]


def _given(environ: Mapping[str, str]) -> Iterator[tuple[Setting, str]]:
    """The settings that the environment gives a value, and its text."""
    for setting in SETTINGS:
        text = environ.get(setting.env)
        if text is not None and not setting.is_left_over(text):
            yield setting, text


def environment_of(chosen: Mapping[str, Any]) -> dict[str, str]:
    """The variables that give ``chosen``, values by the settings' names, to another process."""
    return {s.env: s.text(chosen[s.name]) for s in SETTINGS if s.name in chosen}


def file_sections() -> dict[str, dict[str, Setting]]:
    """The settings of the launcher's configuration file, by section and name."""
    sections: dict[str, dict[str, Setting]] = {}
    for setting in SETTINGS:
        if setting.flag and setting.flag.key:
            section, _, name = setting.flag.key.partition(".")
            sections.setdefault(section, {})[name] = setting
    return sections


def markdown_table() -> str:
    """All settings, as README shows them."""
    lines = ["| variable | default | meaning | `horovodrun` |", "|---|---|---|---|"]
    for setting in SETTINGS:
        meaning, default = setting.meaning, setting.text(setting.default) or "none"
        if isinstance(setting.default, bool):
            meaning = f"{int(not setting.default)}: {meaning}"
        elif setting.unit:
            default = f"{default} {setting.unit}"
        flag = f"`{setting.flag.name}`" if setting.flag else ""
        lines.append(f"| `{setting.env}` | {default} | {meaning} | {flag} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown_table(), end="")
