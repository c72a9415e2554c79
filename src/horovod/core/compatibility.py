"""What programs ask about a Horovod installation.

The logic behind ``horovod.common.util`` and ``horovod.runner``'s helpers, which only give it the
names under which it is imported. No tensor passes through here.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, ParamSpec, Protocol, TypeVar

from horovod.core import built, gpus
from horovod.core.base import mpi_library
from horovod.core.operations import Average, Sum, resolve_op

P = ParamSpec("P")
T = TypeVar("T")

_RELEASE = re.compile(r"\s*v?(\d+(?:\.\d+)*)[._-]?(.*)", re.ASCII | re.DOTALL)
_PRE_RELEASE = re.compile(r"(a|b|c|rc|alpha|beta|pre|preview|dev)[._-]?\d*", re.ASCII)
_TARGET = re.compile(r"\d+\.\d+\.\d+", re.ASCII)


class ReduceOps(Protocol):
    """An object with a binding's reduce operations, such as the module ``horovod.torch``."""

    Average: Any
    Sum: Any


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the binding for a framework, such as ``"torch"``, can be imported.

    ``verbose`` prints what is missing. Imports no framework to find out.
    """
    framework = ext_base_name.removeprefix("horovod.")
    for module in (f"horovod.{framework}", framework):
        if not is_installed(module):
            if verbose:
                print(f"Horovod: no {framework}: there is no module {module}", file=sys.stderr)
            return False
    return True


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether collectives of a framework's binding take tensors on a GPU of this machine."""
    is_built = built.cuda_built() or built.rocm_built()
    if verbose and not is_built:
        print(f"Horovod: no GPU: {gpus.cuda_problem()}", file=sys.stderr)
    if not is_built or not extension_available(ext_base_name, verbose):
        return False
    binding = import_module(f"horovod.{ext_base_name.removeprefix('horovod.')}")
    return bool(binding._check_has_gpu())


def gloo_built(verbose: bool = False) -> bool:
    """Whether runs without MPI are possible; ``verbose`` has nothing to tell."""
    return built.gloo_built()


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI can be used; ``verbose`` prints what is missing."""
    missing = mpi_library.why_not_built()
    if verbose and missing is not None:
        print(f"Horovod: no MPI: {missing}", file=sys.stderr)
    return missing is None


def nccl_built(verbose: bool = False) -> int:
    """Version of NCCL that can be used, 0 for none; ``verbose`` prints why."""
    missing = gpus.nccl_problem()
    if verbose and missing is not None:
        print(f"Horovod: no NCCL: {missing}", file=sys.stderr)
    return built.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM DDL can be used; ``verbose`` has nothing to tell."""
    return built.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Whether Intel oneCCL can be used; ``verbose`` has nothing to tell."""
    return built.ccl_built()


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError when the binding ``ext_name`` is missing, with what would bring it.

    ``pkg_path`` and what follows named files of a native library for each framework; this version
    has none.
    """
    if not extension_available(ext_name):
        raise ImportError(
            f"Extension {ext_name} has not been built. If its framework is installed, this version "
            f"of Horovod does not have the binding, and {ext_env_var}=1 changes nothing"
        )


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Does nothing: the engine is built for no framework, so every ``version`` fits.

    ``exception`` is the caller's reason to ask, for the caller to raise.
    """


def op_resolver(reduce_ops: ReduceOps) -> Callable[[int | None, bool | None], Any]:
    """A function of ``op`` and the deprecated ``average`` that gives the operation they mean.

    The function raises ValueError when both are given and warns when ``average`` is.
    """

    def resolve(op: int | None, average: bool | None) -> Any:
        meant = resolve_op(average, op)
        return {Average: reduce_ops.Average, Sum: reduce_ops.Sum}.get(meant, meant)

    return resolve


def cached(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: the function runs once for each set of (hashable) arguments, whatever thread."""
    results: dict[Any, T] = {}
    lock = threading.RLock()

    @functools.wraps(function)
    def look_up(*args: P.args, **kwargs: P.kwargs) -> T:
        key = args, frozenset(kwargs.items())
        with lock:
            if key not in results:
                results[key] = function(*args, **kwargs)
            return results[key]

    return look_up


@contextmanager
def temporary_environment(**variables: str | None) -> Iterator[None]:
    """Within ``with``: these environment variables are set, or unset where the value is None."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set_variables(variables)
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def is_version_at_least(ver: str, target: str) -> bool:
    """Whether version ``ver`` is ``target`` or later; pre-releases come before their release.

    Raises:
        ValueError: an argument is no string, ``target`` is not of the form a.b.c, or ``ver`` does
            not begin with a number.
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions {ver!r} and {target!r}: expected two strings")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"target version {target!r}: expected the form a.b.c")
    match = _RELEASE.fullmatch(ver)
    if match is None:
        raise ValueError(f"version {ver!r}: expected numbers with dots between them")
    found, wanted = (_numbers(text) for text in (match[1], target))
    if found == wanted:
        return _PRE_RELEASE.match(match[2]) is None
    return found > wanted


def _numbers(release: str) -> list[int]:
    """Without zeros at the end: 2.0 is 2.0.0."""
    numbers = [int(part) for part in release.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741 public name
    """``l`` in ``n`` pieces in order, whose lengths differ by one at most."""
    length, longer = divmod(len(l), n)
    ends = [i * length + min(i, longer) for i in range(n + 1)]
    return [l[begin:end] for begin, end in pairwise(ends)]


def is_power_of_2(num_rank: int) -> bool:
    """Whether a number of ranks is 1, 2, 4, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def extension_suffix() -> str:
    """How the file names of native Python modules end here."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start ``target(*args)`` in a new thread and return it; ``silent`` swallows its exceptions.

    Raises:
        ValueError: ``args`` is no tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args={args!r}: expected a tuple; for one argument write (argument,)")

    def run() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def rank_and_size(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Rank and size as the launcher says: ours, Open MPI or PMI; (0, 1) without any.

    Raises:
        RuntimeError: one of the two is there without the other.
    """
    environ = os.environ if environ is None else environ
    for prefix in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        names = f"{prefix}_RANK", f"{prefix}_SIZE"
        there = [name for name in names if name in environ]
        if len(there) == 1:
            missing = names[names[0] == there[0]]
            raise RuntimeError(f"{there[0]} is in the environment without {missing}")
        if there:
            return int(environ[names[0]]), int(environ[names[1]])
    return 0, 1


def is_installed(module: str) -> bool:
    """Whether a module can be imported; imports at most the packages around it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
