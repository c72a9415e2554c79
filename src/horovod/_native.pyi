"""
The C++ engine; see bindings/. Its numbers are those of ``horovod.core.operations``.
"""

from collections.abc import Callable, Sequence
from typing import Any

class Collective:
    """A row of the table of collectives."""

    @property
    def kind(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def is_reduction(self) -> bool: ...
    @property
    def has_root(self) -> bool: ...
    @property
    def has_splits(self) -> bool: ...
    @property
    def has_tensors(self) -> bool: ...
    @property
    def keeps_shape(self) -> bool: ...
    @property
    def rows_may_differ(self) -> bool: ...
    @property
    def may_be_grouped(self) -> bool: ...
    @property
    def is_differentiable(self) -> bool: ...

COLLECTIVES: tuple = ...

class Streams:
    """Says on which stream of a GPU a framework's next work goes."""

class PythonStreams(Streams):
    def __init__(self, function: Callable[[int], int]) -> None: ...

class GpuAccess:
    """
    The way to CUDA's driver and NCCL, which are opened when they are first needed.
    """

    def __init__(self, cuda_path: str, nccl_paths: Sequence[str]) -> None: ...
    def device_count(self) -> int: ...
    def nccl_version(self) -> int: ...

class DevicePlane:
    """
    What an engine is told about GPU memory; lists are by kind, see ``horovod.core.gpus``.
    """

    def __init__(
        self,
        gpus: GpuAccess,
        routes: Sequence[int],
        is_hierarchical: Sequence[bool],
        streams: int,
        default_device: int,
        timeout_s: float,
        nccl_host: int,
        may_share_gpu: bool,
    ) -> None: ...

class LinkSeals:
    """What seals one link between hosts, on its way to the engine."""

class LinkCipher:
    """
    AES-256-GCM of the first libcrypto of ``candidates`` that this process has, or can load.
    """

    def __init__(self, candidates: Sequence[str]) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def version(self) -> str: ...
    def seals(self, send_key: bytes, receive_key: bytes, is_encrypting: bool) -> LinkSeals: ...
    def time_record(self, size_bytes: int, is_encrypting: bool, count: int) -> float:
        """Seconds to seal and open a record, in memory; the mean of ``count``."""

def request_signal() -> int: ...
def watch_dump_signal(engine: Engine) -> bool: ...
def leave_dump_signal() -> None: ...

class TraceConfig:
    """What the flight recorder keeps and where its files go."""

    def __init__(self) -> None: ...
    @property
    def events(self) -> int: ...
    @events.setter
    def events(self, arg: int, /) -> None: ...
    @property
    def folder(self) -> str: ...
    @folder.setter
    def folder(self, arg: str, /) -> None: ...
    @property
    def is_chosen_folder(self) -> bool: ...
    @is_chosen_folder.setter
    def is_chosen_folder(self, arg: bool, /) -> None: ...
    @property
    def job(self) -> str: ...
    @job.setter
    def job(self, arg: str, /) -> None: ...
    @property
    def world(self) -> str: ...
    @world.setter
    def world(self, arg: str, /) -> None: ...
    @property
    def generation(self) -> int: ...
    @generation.setter
    def generation(self, arg: int, /) -> None: ...
    @property
    def presence(self) -> str: ...
    @presence.setter
    def presence(self, arg: str, /) -> None: ...
    @property
    def stack_signal(self) -> int: ...
    @stack_signal.setter
    def stack_signal(self, arg: int, /) -> None: ...
    @property
    def stack_fd(self) -> int: ...
    @stack_fd.setter
    def stack_fd(self, arg: int, /) -> None: ...
    @property
    def timeline_path(self) -> str: ...
    @timeline_path.setter
    def timeline_path(self, arg: str, /) -> None: ...
    @property
    def timeline_mark_cycles(self) -> bool: ...
    @timeline_mark_cycles.setter
    def timeline_mark_cycles(self, arg: bool, /) -> None: ...
    @property
    def timeline_max_bytes(self) -> int: ...
    @timeline_max_bytes.setter
    def timeline_max_bytes(self, arg: int, /) -> None: ...
    @property
    def data_plane(self) -> str: ...
    @data_plane.setter
    def data_plane(self, arg: str, /) -> None: ...

class Tuning:
    """
    What ``Engine.tune`` changes; with a ``cycle_time_us`` of 0 the engine decides.
    """

    def __init__(
        self,
        fusion_threshold_bytes: int,
        cycle_time_us: int,
        block_kib: int,
        small_kib: int,
        small_between_hosts_kib: int,
        link_format: int,
    ) -> None: ...

class Config:
    def __init__(self) -> None: ...
    @property
    def rank(self) -> int: ...
    @rank.setter
    def rank(self, arg: int, /) -> None: ...
    @property
    def size(self) -> int: ...
    @size.setter
    def size(self, arg: int, /) -> None: ...
    @property
    def generation(self) -> int: ...
    @generation.setter
    def generation(self, arg: int, /) -> None: ...
    @property
    def usable_cores(self) -> int: ...
    @usable_cores.setter
    def usable_cores(self, arg: int, /) -> None: ...
    @property
    def tuning(self) -> Tuning: ...
    @tuning.setter
    def tuning(self, arg: Tuning, /) -> None: ...
    @property
    def link_format(self) -> int: ...
    @link_format.setter
    def link_format(self, arg: int, /) -> None: ...
    @property
    def link_format_least_elements(self) -> int: ...
    @link_format_least_elements.setter
    def link_format_least_elements(self, arg: int, /) -> None: ...
    @property
    def link_connections(self) -> int: ...
    @link_connections.setter
    def link_connections(self, arg: int, /) -> None: ...
    @property
    def link_format_exact_parts(self) -> list[str]: ...
    @link_format_exact_parts.setter
    def link_format_exact_parts(self, arg: Sequence[str], /) -> None: ...
    @property
    def is_rounding_stochastic(self) -> bool: ...
    @is_rounding_stochastic.setter
    def is_rounding_stochastic(self, arg: bool, /) -> None: ...
    @property
    def rounding_seed(self) -> int: ...
    @rounding_seed.setter
    def rounding_seed(self, arg: int, /) -> None: ...
    @property
    def is_feeding_back(self) -> bool: ...
    @is_feeding_back.setter
    def is_feeding_back(self, arg: bool, /) -> None: ...
    @property
    def fuse_groups(self) -> bool: ...
    @fuse_groups.setter
    def fuse_groups(self, arg: bool, /) -> None: ...
    @property
    def cache_capacity(self) -> int: ...
    @cache_capacity.setter
    def cache_capacity(self, arg: int, /) -> None: ...
    @property
    def stall_check(self) -> bool: ...
    @stall_check.setter
    def stall_check(self, arg: bool, /) -> None: ...
    @property
    def stall_check_time_s(self) -> float: ...
    @stall_check_time_s.setter
    def stall_check_time_s(self, arg: float, /) -> None: ...
    @property
    def stall_shutdown_time_s(self) -> float: ...
    @stall_shutdown_time_s.setter
    def stall_shutdown_time_s(self, arg: float, /) -> None: ...
    @property
    def is_debug(self) -> bool: ...
    @is_debug.setter
    def is_debug(self, arg: bool, /) -> None: ...
    @property
    def debug_interval(self) -> int: ...
    @debug_interval.setter
    def debug_interval(self, arg: int, /) -> None: ...
    @property
    def peer_names(self) -> list[str]: ...
    @peer_names.setter
    def peer_names(self, arg: Sequence[str], /) -> None: ...
    @property
    def peer_hosts(self) -> list[str]: ...
    @peer_hosts.setter
    def peer_hosts(self, arg: Sequence[str], /) -> None: ...
    @property
    def trace(self) -> TraceConfig: ...
    @trace.setter
    def trace(self, arg: TraceConfig, /) -> None: ...
    @property
    def log_level(self) -> int: ...
    @log_level.setter
    def log_level(self, arg: int, /) -> None: ...
    @property
    def log_hide_time(self) -> bool: ...
    @log_hide_time.setter
    def log_hide_time(self, arg: bool, /) -> None: ...

class Output:
    @property
    def shape(self) -> list[int]: ...
    @property
    def device(self) -> int:
        """-1 for host memory, else CUDA's number of the GPU."""

    def copy_to(self, address: int, size_bytes: int, stream: int) -> None:
        """
        Start copying a result on a GPU to memory of the same one, in a stream of it.
        """

    def as_numpy(self, dtype: int) -> Any: ...
    def as_dlpack(self, dtype: int) -> Any: ...

class ClusterCut:
    """How an allreduce between hosts is cut."""

    @property
    def one_step(self) -> bool: ...
    @property
    def chunk_bytes(self) -> int: ...
    @property
    def chunks(self) -> int: ...

def cluster_cut(size_bytes: int, channels: int, hosts: int) -> ClusterCut: ...
def bucket_length(sizes_bytes: Sequence[int], threshold: int) -> int: ...

class Operation:
    def __init__(
        self,
        kind: int,
        op: int = ...,
        root: int = ...,
        prescale: float = ...,
        postscale: float = ...,
        process_set: int = ...,
        is_flat: bool = ...,
        title: str = ...,
        group: str = ...,
        link_format: int = ...,
    ) -> None: ...
    def title_of(self, name: object | None, index: int = ..., count: int = ...) -> str: ...

class TensorReader(Streams):
    def __init__(self, capsule: object, explain: Callable[[object], str | None]) -> None: ...

def space_bytes(size: int) -> int: ...
def report_failed_start(config: Config, space_fd: int, reason: str) -> None: ...
def kernel_isa() -> str: ...

class Engine:
    def __init__(
        self,
        config: Config,
        space_fd: int = ...,
        pidfds: Sequence[int] = ...,
        pids: Sequence[int] = ...,
        data_plane: object | None = ...,
        hosts: Sequence[Sequence[int]] = ...,
        doorbells: Sequence[int] = ...,
        control: Sequence[tuple[int, int, LinkSeals]] = ...,
        data: Sequence[tuple[int, int, int, LinkSeals | None]] = ...,
        news: Sequence[tuple[int, int, LinkSeals]] = ...,
        devices: DevicePlane | None = ...,
    ) -> None: ...
    def submit(
        self,
        operation: Operation,
        name: str | None,
        input: int,
        output: int,
        shape: Sequence[int],
        dtype: int,
        intent: int,
        splits: Sequence[int] = ...,
        device: int = ...,
        streams: Streams | None = ...,
        output_bytes: int = ...,
    ) -> int: ...
    def submit_many(
        self,
        operation: Operation,
        names: list[str],
        tensors: list[tuple[int, int, list[int], int]],
        intent: int,
        devices: Sequence[int] = ...,
        streams: Streams | None = ...,
        errors: Sequence[int] = ...,
    ) -> int: ...
    def submit_group(
        self,
        operation: Operation,
        name: str | None,
        tensors: list[tuple[int, int, list[int], int]],
        intent: int,
        devices: Sequence[int] = ...,
        streams: Streams | None = ...,
        output_bytes: Sequence[int] = ...,
        errors: Sequence[int] = ...,
        members: list[str] = ...,
    ) -> int: ...
    def submit_tensor(
        self,
        reader: TensorReader,
        operation: Operation,
        name: str | None,
        input: object | None,
        output: object | None,
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
        errors: Sequence[int] = ...,
    ) -> int: ...
    def submit_tensor_group(
        self,
        reader: TensorReader,
        operation: Operation,
        name: str | None,
        inputs: list[Any],
        outputs: object | None,
        intent: int,
        errors: Sequence[int] = ...,
        members: list[str] = ...,
    ) -> int: ...
    def run_tensor(
        self,
        reader: TensorReader,
        operation: Operation,
        name: str | None,
        input: object | None,
        output: object | None,
        splits: Sequence[int] = ...,
    ) -> list[Output]: ...
    def gather(self, name: str, payload: bytes) -> bytes:
        """The payloads of all ranks, joined in rank order."""

    def add_process_set(
        self,
        process_set: int,
        ranks: Sequence[int],
        data_plane: object | None = ...,
        control: Sequence[tuple[int, int, LinkSeals]] = ...,
        data: Sequence[tuple[int, int, int, LinkSeals | None]] = ...,
    ) -> None: ...
    def add_pair(
        self,
        peer: int,
        control: Sequence[tuple[int, int, LinkSeals]] = ...,
        data: Sequence[tuple[int, int, int, LinkSeals | None]] = ...,
    ) -> int:
        """The process set of this rank and ``peer``, which needs no agreement."""

    def is_awaited(self, process_set: int, name: str) -> bool:
        """
        Whether another rank has submitted ``name``, as far as is known, and this one has not.
        """

    def raise_if_over(self) -> None:
        """Raises the error with which the world has ended here, if it has."""

    def remove_process_set(self, process_set: int) -> None: ...
    def discard_process_set(self, process_set: int) -> None: ...
    @property
    def leads_host(self) -> bool: ...
    def pending_on(self, process_set: int) -> int: ...
    def poll(self, handle: int) -> bool: ...
    def contains(self, handle: int) -> bool: ...
    def wait(self, handle: int) -> list[Output]: ...
    def wait_for(self, handle: int, limit_s: float) -> list[Output] | None:
        """Like ``wait``; None if the operation is not done within the limit."""

    def missing_ranks(self, handle: int) -> list[int]:
        """
        Ranks that have not submitted the handle's operations, as far as is known here.
        """

    def title_of(self, handle: int) -> str:
        """What an operation of the handle is, for messages; empty if it is done."""

    def confirm(self, limit_s: float) -> bool:
        """
        Whether GPUs have finished, within the limit, what is done for the engine.
        """

    def shutdown(self) -> None: ...
    def end_world(self, reason: str) -> None:
        """Fail all operations of all ranks with this reason."""

    def abandon(self) -> None: ...
    def is_exact(self, name: str, elements: int) -> bool:
        """Whether such a tensor is sent exactly in every format."""

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

class Completions:
    """The results of operations that no thread waits for, in their order."""

    def __init__(self) -> None: ...
    def add(self, engine: Engine, handle: int) -> None:
        """
        From now on the handle is not to be waited for: ``take`` gives its result.
        """

    def take(self) -> tuple[int, list[Output], object] | None:
        """
        Waits for the next result: its handle, outputs, and error or None. None when closed.
        """

    def close(self) -> None: ...

class Port:
    def __init__(self) -> None: ...
    def attach(self, engine: object, local_rank: int, local_size: int) -> None: ...
    def rethrow(self) -> None: ...
    def take_failure(self) -> Exception | None: ...
    def detach(self, engine: Engine) -> None: ...
    @property
    def address(self) -> int: ...
