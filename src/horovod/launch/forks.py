"""Children that go on from here: forks of this process that pass for a Python started anew.

To start Python and to import what every worker needs takes longer than Spark takes for a stage; a
fork has that already. A program shall not have to care which it is. So a process forks only if it
has one thread and has loaded nothing but the modules of Python, its engine, NumPy and ours
(``may_fork``), and only for an environment that a start would not have read in another way
(``starts_alike``). The fork parts with all that is its parent's: descriptors, what signals do,
standard files, the main module, the state of random numbers, what was to be done at the end.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import io
import locale
import os
import re
import signal
import site
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NoReturn

from horovod.launch.processes import Pipes
from horovod.launch.search_path import path_of_python

__all__ = ["fork", "fork_with_pipes", "may_fork", "starts_alike"]

_OF_ENGINES = {"cloudpickle", "org", "psutil", "py4j", "pyspark"}  # org: Spark's archive of Java
_OF_THE_START = {"_distutils_hack", "sitecustomize", "usercustomize"}
_KNOWN_MODULES = sys.stdlib_module_names | _OF_ENGINES | _OF_THE_START | {"horovod", "numpy"}
# By the loader, the C library, Python, and what may be loaded by now.
_READ_AT_START = re.compile(
    r"(BLIS|GLIBC|GOMP|GOTO|KMP|LD|MALLOC|MKL|NPY|NUMPY|OMP|OPENBLAS)_|PYTHON|TZ$"
)
_READ_BY_FORKS = {"PYTHONFAULTHANDLER", "PYTHONPATH", "PYTHONUNBUFFERED"}
# What modules want done when they have been imported; the first is done last.
_AT_THE_END = {
    "horovod.rendezvous.meeting": "_close_contact",
    "logging": "shutdown",
    "multiprocessing.util": "_exit_function",
}
_LAST_MOMENT_S = 0.01
_THREADS = "/proc/self/task"
_DESCRIPTORS = "/proc/self/fd"


def may_fork() -> bool:
    """Whether a fork of this process can pass for a new one."""
    return (
        sys.platform == "linux"
        and _has_one_thread()
        and None not in (sys.__stdin__, sys.__stdout__, sys.__stderr__)
        and not _is_watched()
        and _is_known(sys.modules)
    )


def _has_one_thread() -> bool:
    """One that Python has seen end may take a moment to be gone."""
    deadline = time.monotonic() + _LAST_MOMENT_S
    while len(os.listdir(_THREADS)) > 1:
        if threading.active_count() > 1 or time.monotonic() > deadline:
            return False
        time.sleep(_LAST_MOMENT_S / 20)
    return True


def _is_watched() -> bool:
    """By a debugger or profiler, which would follow the fork."""
    monitoring = getattr(sys, "monitoring", None)
    tools = () if monitoring is None else map(monitoring.get_tool, range(6))
    return any((sys.gettrace(), sys.getprofile(), *tools))


def _is_known(modules: Iterable[str]) -> bool:
    """Others may hold anything: settings that were changed, files that are old by now."""
    packages = {name.partition(".")[0] for name in modules}
    strangers = packages - _KNOWN_MODULES - {"__main__"}
    return all(name.startswith("_sysconfigdata_") for name in strangers)


def starts_alike(environment: Mapping[str, str]) -> bool:
    """Whether ``environment`` has the values of this process's where only a start reads them."""
    names = {*os.environ, *environment} - _READ_BY_FORKS
    read = filter(_READ_AT_START.match, names)
    are_alike = all(environment.get(name) == os.environ.get(name) for name in read)
    charsets = _charset(environment), _charset(os.environ)
    return are_alike and charsets[0] == charsets[1] and _finds_as_much(environment)


def _finds_as_much(environment: Mapping[str, str]) -> bool:
    """What users install for themselves is where HOME says, unless a variable of Python's does."""
    home, other = os.path.expanduser("~"), environment.get("HOME", "")
    if not site.ENABLE_USER_SITE or "PYTHONUSERBASE" in environment or home == other:
        return True
    own = site.getusersitepackages()
    folders = own, other + own.removeprefix(home)
    return not any(map(os.path.isdir, folders))


def _charset(environment: Mapping[str, str]) -> str:
    names = filter(None, map(environment.get, ("LC_ALL", "LC_CTYPE", "LANG")))
    name = next(names, "C")
    charset = name.partition(".")[2].partition("@")[0].lower().replace("-", "")
    return "utf8" if name in ("C", "POSIX") else charset or name  # as Python takes these two


def fork_with_pipes(
    main: Callable[[], object], environment: Mapping[str, str], descriptors: Mapping[int, int]
) -> Pipes:
    """As ``fork``, with standard output and error in pipes. Raises OSError."""
    (stdout_fd, stdout_write), (stderr_fd, stderr_write) = os.pipe(), os.pipe()
    try:
        pid = fork(main, environment, {1: stdout_write, 2: stderr_write, **descriptors})
    except BaseException:
        os.close(stdout_fd)
        os.close(stderr_fd)
        raise
    finally:
        os.close(stdout_write)
        os.close(stderr_write)
    return Pipes(pid, stdout_fd, stderr_fd)


def fork(
    main: Callable[[], object], environment: Mapping[str, str], descriptors: Mapping[int, int]
) -> int:
    """The pid of a child, in a session of its own, that calls ``main`` and exits as a program does.

    ``descriptors`` maps numbers in the child to open descriptors of this process; beside them it
    has standard output and error, and nothing on standard input. Blocks until the child is a group
    of its own that signals have their usual effect on, which takes a millisecond.

    Raises:
        OSError: there can be no more processes or descriptors.
    """
    _flush()  # or the child would write it once more
    begun_fd, begins_fd = os.pipe()
    with open(begun_fd, "rb", buffering=0) as begun:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _be_child(main, environment, descriptors, mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(begins_fd)
        begun.read(1)  # until the child lets go of its end
    return pid


def _be_child(
    main: Callable[[], object],
    environment: Mapping[str, str],
    descriptors: Mapping[int, int],
    mask: Iterable[int],
) -> NoReturn:
    exit_code = 1
    try:
        exit_code = _exit_code_of(lambda: _live(main, environment, descriptors, mask))
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _write_out()
        _flush()
    finally:
        os._exit(exit_code)  # not one frame of the parent's goes on in here


def _live(
    main: Callable[[], object],
    environment: Mapping[str, str],
    descriptors: Mapping[int, int],
    mask: Iterable[int],
) -> None:
    os.setsid()
    gc.freeze()  # what the parent has made is never garbage here
    _forget_endings()
    _forget_handlers()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _keep_descriptors(descriptors)
    _forget_parent(environment)
    main()


def _forget_endings() -> None:
    """What the parent wants done at its end is for the parent; only modules' own orders stay."""
    atexit._clear()
    finalizers: Iterable[Any] = list(getattr(weakref.finalize, "_registry", ()))
    for finalizer in finalizers:
        finalizer.detach()
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.process"]._children = set()  # type: ignore[attr-defined]
        sys.modules["multiprocessing.util"]._finalizer_registry.clear()
    for module, name in _AT_THE_END.items():
        if module in sys.modules:
            atexit.register(getattr(sys.modules[module], name))


def _forget_handlers() -> None:
    """Signals do what they do to a Python that has just started; what is ignored stays so."""
    signal.set_wakeup_fd(-1)
    faulthandler.disable()
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(signum) != signal.SIG_IGN:
            is_interrupt = signum == signal.SIGINT
            signal.signal(signum, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def _keep_descriptors(descriptors: Mapping[int, int]) -> None:
    """The numbers of others stay taken, by nothing: objects of the parent's still close them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    free = max((2, *descriptors)) + 1
    given = {0: nothing, **descriptors}
    copies = {n: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free) for n, fd in given.items()}
    for number, fd in copies.items():
        os.dup2(fd, number)
    for fd in map(int, os.listdir(_DESCRIPTORS)):
        if fd not in (1, 2, nothing, *given):
            os.dup2(nothing, fd, inheritable=False)


def _forget_parent(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "")
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _unbuffered(1, sys.__stdout__)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2, sys.__stderr__)  # type: ignore[misc]
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    ahead = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = dict.fromkeys((*map(os.path.abspath, ahead), *path_of_python()))
    sys.argv[:] = ["-c"]
    sys.modules["__main__"] = main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # the one of Python's library does so by itself
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
    if "logging" in sys.modules:
        sys.modules["logging"].root.handlers.clear()
        sys.modules["logging"].root.setLevel("WARNING")
    socket.setdefaulttimeout(None)


def _unbuffered(fd: int, like: Any) -> io.TextIOWrapper:
    """As Python makes it with PYTHONUNBUFFERED, which all workers have."""
    raw: Any = io.FileIO(fd, "w", closefd=False)
    raw.name = like.name
    file: Any = io.TextIOWrapper(raw, like.encoding, like.errors, newline="\n", write_through=True)
    file.mode = like.mode
    return file  # type: ignore[no-any-return]


def _write_out() -> None:
    """What open files still hold, as the end of Python does; the parent's own are frozen."""
    files = [file for file in gc.get_objects() if issubclass(type(file), io.IOBase)]
    text = [file.flush for file in files if isinstance(file, io.TextIOWrapper)]
    packed = [  # these write their last part when they are closed
        file.close
        for file in files
        if isinstance(file, io.BufferedIOBase) and type(file).__module__ != "_io"
    ]
    buffered = [
        file.flush for file in files if isinstance(file, (io.BufferedWriter, io.BufferedRandom))
    ]
    for write in (*text, *packed, *buffered):
        with contextlib.suppress(Exception):
            write()


def _flush() -> None:
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            file.flush()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).fflush(None)  # what a library has printed


def _exit_code_of(main: Callable[[], object]) -> int:
    try:
        main()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0
