"""The C++ engine; see bindings/. Numbers for kinds, ops, dtypes and intents are those of
``horovod.operations``."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

def space_bytes(size: int) -> int: ...
def kernel_isa() -> str: ...
def request_signal() -> int: ...
def watch_dump_signal(engine: Engine) -> bool: ...
def leave_dump_signal() -> None: ...

class LinkSeals:
    """What seals one link between hosts, on its way to the engine."""

class LinkCipher:
    """AES-256-GCM of the first libcrypto of ``candidates`` that this process has, or can load."""

    def __init__(self, candidates: list[str]) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def version(self) -> str: ...
    def seals(self, send_key: bytes, receive_key: bytes, is_encrypting: bool) -> LinkSeals: ...
    def time_record(self, size_bytes: int, is_encrypting: bool, count: int) -> float:
        """Seconds to seal and open a record, in memory; the mean of ``count``."""

class Carrier(Protocol):
    """What the engine calls where another one moves the data; addresses, counts and numbers."""

    name: str
    def reduces(self, dtype: int, op: int) -> bool: ...
    def allreduce(self, address: int, count: int, dtype: int, op: int) -> None: ...
    def broadcast(self, address: int, size_bytes: int, root: int) -> None: ...
    def allgather(self, given: int, taken: int, sizes: Sequence[int]) -> None: ...
    def alltoall(
        self, given: int, given_sizes: Sequence[int], taken: int, taken_sizes: Sequence[int]
    ) -> None: ...
    def barrier(self) -> None: ...
    def test(self) -> bool: ...

class TraceConfig:
    """What the flight recorder keeps and where its files go."""

    events: int
    folder: str
    is_chosen_folder: bool
    job: str
    world: str
    generation: int
    presence: str
    stack_signal: int
    stack_fd: int
    timeline_path: str
    timeline_mark_cycles: bool
    timeline_max_bytes: int
    data_plane: str
    def __init__(self) -> None: ...

class Tuning:
    """What ``Engine.tune`` changes; with a ``cycle_time_us`` of 0 the engine decides."""

    def __init__(
        self,
        fusion_threshold_bytes: int,
        cycle_time_us: int,
        block_kib: int,
        small_kib: int,
        small_between_hosts_kib: int,
    ) -> None: ...

class Config:
    rank: int
    size: int
    generation: int
    usable_cores: int
    tuning: Tuning
    fuse_groups: bool
    cache_capacity: int
    stall_check: bool
    stall_check_time_s: float
    stall_shutdown_time_s: float
    is_debug: bool
    debug_interval: int
    peer_names: list[str]
    trace: TraceConfig
    log_level: int
    log_hide_time: bool
    def __init__(self) -> None: ...

class Operation:
    def __init__(
        self,
        kind: int,
        op: int = ...,
        root: int = ...,
        prescale: float = ...,
        postscale: float = ...,
        process_set: int = ...,
    ) -> None: ...

class Streams:
    """Says on which stream of a GPU a framework's next work goes."""

class PythonStreams(Streams):
    def __init__(self, function: Callable[[int], int]) -> None: ...

class GpuAccess:
    """The way to CUDA's driver and NCCL, which are opened when they are first needed."""

    def __init__(self, cuda_path: str, nccl_path: str) -> None: ...
    def device_count(self) -> int: ...
    def nccl_version(self) -> int: ...

class DevicePlane:
    """What an engine is told about GPU memory; lists are by kind, see ``horovod.gpus``."""

    def __init__(
        self,
        gpus: GpuAccess,
        routes: list[int],
        is_hierarchical: list[bool],
        streams: int,
        default_device: int,
        timeout_s: float,
    ) -> None: ...

class TensorReader(Streams):
    def __init__(self, capsule: Any) -> None: ...

class Output:
    @property
    def shape(self) -> list[int]: ...
    @property
    def device(self) -> int:
        """-1 for host memory, else CUDA's number of the GPU."""

    def copy_to(self, address: int, size_bytes: int, stream: int) -> None:
        """Start copying a result on a GPU to memory of the same one, in a stream of it."""

    def as_numpy(self, dtype: int) -> Any: ...
    def as_dlpack(self, dtype: int) -> Any: ...

class Port:
    def __init__(self) -> None: ...
    def attach(self, engine: Engine, local_rank: int, local_size: int) -> None: ...
    def detach(self, engine: Engine) -> None: ...
    def rethrow(self) -> None: ...
    @property
    def address(self) -> int: ...

class Engine:
    def __init__(
        self,
        config: Config,
        space_fd: int = ...,
        pidfds: list[int] = ...,
        pids: list[int] = ...,
        carrier: Carrier | None = ...,
        hosts: list[list[int]] = ...,
        bells: list[int] = ...,
        control: list[tuple[int, int, LinkSeals]] = ...,
        data: list[tuple[int, int, int, LinkSeals | None]] = ...,
        news: list[tuple[int, int, LinkSeals]] = ...,
        devices: DevicePlane | None = ...,
    ) -> None: ...
    def submit(
        self,
        operation: Operation,
        name: str | None,
        input: int,
        output: int,
        shape: list[int],
        dtype: int,
        intent: int,
        splits: Sequence[int] = ...,
        device: int = ...,
        streams: Streams | None = ...,
    ) -> int: ...
    def submit_many(
        self,
        operation: Operation,
        names: list[str],
        tensors: list[tuple[int, int, list[int], int]],
        intent: int,
        devices: Sequence[int] = ...,
        streams: Streams | None = ...,
    ) -> int: ...
    def submit_group(
        self,
        operation: Operation,
        name: str | None,
        tensors: list[tuple[int, int, list[int], int]],
        intent: int,
        devices: Sequence[int] = ...,
        streams: Streams | None = ...,
    ) -> int: ...
    def submit_tensor(
        self,
        reader: TensorReader,
        operation: Operation,
        name: str | None,
        input: Any,
        output: Any,
        intent: int,
        splits: Sequence[int] = ...,
    ) -> int: ...
    def submit_tensors(
        self,
        reader: TensorReader,
        operation: Operation,
        names: list[str],
        tensors: list[Any],
        intent: int,
    ) -> int: ...
    def submit_tensor_group(
        self,
        reader: TensorReader,
        operation: Operation,
        name: str | None,
        inputs: list[Any],
        outputs: list[Any] | None,
        intent: int,
    ) -> int: ...
    def run_tensor(
        self,
        reader: TensorReader,
        operation: Operation,
        name: str | None,
        input: Any,
        output: Any,
        splits: Sequence[int] = ...,
    ) -> list[Output]: ...
    def gather(self, name: str, payload: bytes) -> bytes:
        """The payloads of all ranks, joined in rank order."""

    def add_process_set(
        self,
        process_set: int,
        ranks: list[int],
        carrier: Carrier | None = ...,
        control: list[tuple[int, int, LinkSeals]] = ...,
        data: list[tuple[int, int, int, LinkSeals | None]] = ...,
    ) -> None: ...
    def remove_process_set(self, process_set: int) -> None: ...
    def discard_process_set(self, process_set: int) -> None: ...
    @property
    def leads_host(self) -> bool: ...
    def flights(self, process_set: int) -> int: ...
    def poll(self, handle: int) -> bool: ...
    def contains(self, handle: int) -> bool: ...
    def wait(self, handle: int) -> list[Output]: ...
    def confirm(self, limit_s: float) -> bool:
        """Whether GPUs have finished, within the limit, what is done for the engine."""

    def shutdown(self) -> None: ...
    def end_world(self, reason: str) -> None:
        """Fail all operations of all ranks with this reason."""

    def abandon(self) -> None: ...
    @property
    def has_spare_cores(self) -> bool: ...
    def counts(self) -> dict[str, int]: ...
    def step_times(self, first: int) -> list[int]:
        """Nanoseconds of the steps from number ``first`` on, of the last 255."""

    def tune(self, tuning: Tuning) -> None:
        """On rank 0: holds for all ranks from the world's next collective on."""

    def events(self) -> bytes: ...
    def events_since(self, begin: int, most: int) -> tuple[int, bytes]: ...
    def label(self, id: int) -> bytes: ...
    def write_recording(self, reason: str, detail: str, path: str) -> str: ...
    def start_timeline(self, path: str, mark_cycles: bool) -> None: ...
    def stop_timeline(self) -> None: ...
