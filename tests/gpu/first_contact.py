"""What CUDA's driver and NCCL on this machine do where their documents leave room; no framework.

Every question prints a line as soon as it is answered, so that a hang loses nothing. `plan.sh` runs
it before anything else on a machine with a new GPU or driver.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).parents[2] / "engine" / "gpu"
SYMBOLS = re.compile(r'from, *\s*"(cu[A-Z]\w+|nccl[A-Z]\w+)"')
# Spins for %0 nanoseconds, so that work behind it in a stream waits.
SPIN = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 length) {
  .reg .u64 %rd<4>;
  .reg .pred %p;
  ld.param.u64 %rd1, [length];
  mov.u64 %rd2, %globaltimer;
  add.u64 %rd1, %rd1, %rd2;
AGAIN:
  mov.u64 %rd3, %globaltimer;
  setp.lt.u64 %p, %rd3, %rd1;
  @%p bra AGAIN;
  ret;
}
"""
SPIN_NS = 400_000_000
MEGABYTE = 1 << 20


class Cuda:
    """The driver with the first GPU's primary context current in the thread that made it."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        self.context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self("cuCtxPushCurrent_v2", self.context)
        module, self.spin = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), SPIN)
        self("cuModuleGetFunction", ctypes.byref(self.spin), module, b"spin")

    def __call__(self, name: str, *arguments: Any) -> None:
        if result := self.result(name, *arguments):
            raise RuntimeError(f"{name}: {self.text_of(result)}")

    def result(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def text_of(self, result: int) -> str:
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(result, ctypes.byref(text))
        return text.value.decode() if text.value else str(result)

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 2)
        return event

    def memory(self, size_bytes: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return address

    def keep_busy(self, stream: ctypes.c_void_p) -> None:
        length = ctypes.c_uint64(SPIN_NS)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
        self("cuLaunchKernel", self.spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)


def say(topic: str, *facts: object) -> None:
    print(f"{topic}:", *facts, flush=True)


def milliseconds(action: Callable[[], object]) -> str:
    begin = time.perf_counter()
    action()
    return f"{(time.perf_counter() - begin) * 1e3:.3f} ms"


def find_symbols(cuda: Cuda, nccl: ctypes.CDLL | None) -> None:
    names = {name for file in ENGINE.glob("*.h") for name in SYMBOLS.findall(file.read_text())}
    libraries = {"cu": cuda.library, "nccl": nccl}
    for prefix, library in libraries.items():
        wanted = sorted(name for name in names if re.match(rf"{prefix}[A-Z]", name))
        missing = [name for name in wanted if not hasattr(library, name)]
        say(f"symbols {prefix}", len(wanted), "wanted, missing:", missing or "none")


def call_without_context(cuda: Cuda) -> None:
    """Which calls of the engine work on a thread that has no current context."""
    stream, event, memory = cuda.stream(), cuda.event(), cuda.memory(MEGABYTE)
    cuda("cuEventRecord", event, stream)
    cuda("cuCtxSynchronize")
    number = ctypes.c_int()
    calls: dict[str, tuple[Any, ...]] = {
        "cuEventQuery": (event,),
        "cuPointerGetAttribute": (ctypes.byref(number), 9, memory),
        "cuStreamIsCapturing": (stream, ctypes.byref(number)),
        "cuStreamWaitEvent": (stream, event, 0),
        "cuEventRecord": (event, stream),
        "cuThreadExchangeStreamCaptureMode": (ctypes.byref(ctypes.c_int(2)),),
        "cuMemcpyDtoDAsync_v2": (memory, memory, ctypes.c_size_t(16), stream),
        "cuMemFree_v2": (memory,),
    }

    def ask() -> None:
        for name, arguments in calls.items():
            say(f"without a context, {name}", cuda.text_of(cuda.result(name, *arguments)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()


def wait_behind_a_kernel(cuda: Cuda) -> None:
    """How long calls take while a kernel of another stream runs for 400 ms."""
    freed, pinned, module = cuda.memory(64 * MEGABYTE), ctypes.c_void_p(), ctypes.c_void_p()
    new, pooled, stream, other = ctypes.c_uint64(), ctypes.c_uint64(), cuda.stream(), cuda.stream()
    size = ctypes.c_size_t(64 * MEGABYTE)
    calls: dict[str, tuple[Any, ...]] = {
        "cuMemAlloc_v2": (ctypes.byref(new), size),
        "cuMemHostAlloc": (ctypes.byref(pinned), size, 1),
        "cuModuleLoadData": (ctypes.byref(module), SPIN),
        "cuMemAllocAsync": (ctypes.byref(pooled), size, other),
        "cuMemFree_v2": (freed,),
        "cuMemFreeHost": (pinned,),
    }
    for name, arguments in calls.items():
        cuda.keep_busy(stream)
        took = milliseconds(lambda name=name, arguments=arguments: cuda(name, *arguments))
        say(f"behind a kernel, {name}", took)
        cuda("cuCtxSynchronize")
    cuda.keep_busy(stream)
    took = milliseconds(lambda: cuda("cuMemFreeAsync", pooled, other))
    say("behind a kernel, cuMemFreeAsync", took)
    cuda("cuCtxSynchronize")
    cuda("cuMemFree_v2", new)


def time_calls(cuda: Cuda) -> None:
    """What a call costs when nothing is busy: the median of 200."""
    stream, event, memory = cuda.stream(), cuda.event(), cuda.memory(MEGABYTE)
    length = ctypes.c_uint64(0)
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
    launch = (cuda.spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)
    calls: dict[str, tuple[Any, ...]] = {
        "cuEventRecord": (event, stream),
        "cuEventQuery": (event,),
        "cuStreamWaitEvent": (stream, event, 0),
        "cuLaunchKernel": launch,
        "cuMemcpyDtoDAsync_v2": (memory, memory, ctypes.c_size_t(1024), stream),
        "cuMemAlloc_v2": (ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(65536)),
    }
    for name, given in calls.items():
        times = []
        for _ in range(200):
            begin = time.perf_counter_ns()
            cuda(name, *given)
            times.append(time.perf_counter_ns() - begin)
        cuda("cuCtxSynchronize")
        say(f"cost of {name}", f"{sorted(times)[100] / 1e3:.1f} us")


def share_memory(cuda: Cuda) -> None:
    """Whether another process can open this one's memory."""
    memory, handle = cuda.memory(MEGABYTE), ctypes.create_string_buffer(64)
    cuda("cuMemsetD8_v2", memory, 7, ctypes.c_size_t(MEGABYTE))
    cuda("cuCtxSynchronize")
    if result := cuda.result("cuIpcGetMemHandle", handle, memory):
        say("IPC", cuda.text_of(result))
        return
    command = [sys.executable, __file__, "open", handle.raw.hex()]
    try:
        other = subprocess.run(command, capture_output=True, text=True, timeout=200)
    except subprocess.TimeoutExpired:
        say("IPC", "the other process hangs")
        return
    say("IPC", (other.stdout + other.stderr).strip())


def open_memory(cuda: Cuda, handle: bytes) -> None:
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]

    given = Handle.from_buffer_copy(handle)
    address = ctypes.c_uint64()
    opened = cuda.result("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, 1)
    if opened:
        say("cuIpcOpenMemHandle", cuda.text_of(opened))
        return
    values = ctypes.create_string_buffer(4)
    cuda("cuMemcpyDtoH_v2", values, address, ctypes.c_size_t(4))
    say("opened", "reads", values.raw.hex(), "expected 07070707")


class Config(ctypes.Structure):
    """`ncclConfig_t` of NCCL 2.14, which newer ones take, too."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    ]


def time_launches(cuda: Cuda, nccl: ctypes.CDLL) -> None:
    """What a group of calls costs the CPU, on communicators of one rank that block and do not."""

    class Id(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]

    memory, stream = cuda.memory(MEGABYTE), cuda.stream()
    state = ctypes.c_int()
    for is_blocking in (0, 1):
        chosen, communicator = Id(), ctypes.c_void_p()
        nccl.ncclGetUniqueId(ctypes.byref(chosen))
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, is_blocking)
        nccl.ncclCommInitRankConfig(ctypes.byref(communicator), 1, chosen, 0, ctypes.byref(config))

        def wait(communicator: ctypes.c_void_p = communicator) -> None:
            nccl.ncclCommGetAsyncError(communicator, ctypes.byref(state))
            while state.value == 7:
                nccl.ncclCommGetAsyncError(communicator, ctypes.byref(state))

        wait()
        for count in (1, 40):
            times = []
            for _ in range(200):
                begin = time.perf_counter_ns()
                nccl.ncclGroupStart()
                for _ in range(count):
                    size = ctypes.c_size_t(1024)
                    nccl.ncclAllReduce(memory, memory, size, 7, 0, communicator, stream)
                nccl.ncclGroupEnd()
                wait()
                times.append(time.perf_counter_ns() - begin)
            cuda("cuCtxSynchronize")
            kind = "blocking" if is_blocking else "not blocking"
            say(f"a group of {count}, {kind}", f"{sorted(times)[100] / 1e3:.1f} us", state.value)


def load_nccl() -> ctypes.CDLL | None:
    for folder in [*sys.path, ""]:
        path = Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        name = str(path) if folder and path.exists() else "" if folder else "libnccl.so.2"
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is not None:
            version = ctypes.c_int()
            library.ncclGetVersion(ctypes.byref(version))
            say("NCCL", version.value, name)
            return library
    say("NCCL", "not found")
    return None


def main() -> None:
    cuda = Cuda()
    if sys.argv[1:2] == ["open"]:
        open_memory(cuda, bytes.fromhex(sys.argv[2]))
        return
    version = ctypes.c_int()
    cuda("cuDriverGetVersion", ctypes.byref(version))
    say("CUDA's driver", version.value)
    nccl = load_nccl()
    find_symbols(cuda, nccl)
    questions = [call_without_context, share_memory, time_calls, wait_behind_a_kernel]
    if nccl is not None:
        questions.append(functools.partial(time_launches, nccl=nccl))
    for question in questions:
        try:
            question(cuda)
        except RuntimeError as error:
            say(str(question), "failed:", error)


if __name__ == "__main__":
    main()
