"""Keeps ``torch.compile`` away from code that has to run as it is.

The compiler traces with tensors that have no memory, and some results it takes for constants: the
engine cannot work so. It also looks at frames that begin in C++, such as hooks of gradients, and
those of a process group in the forward pass of ``DistributedDataParallel``.
``torch.compiler.disable`` would do, but it imports the compiler, which takes longer than all the
rest, and it puts a frame around every call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import FunctionType
from typing import Any

import torch


def keep_uncompiled(*given: type | Callable[..., Any]) -> None:
    """Mark functions, and all methods of classes: these and what they call run as they are.

    A compiled function that calls one is split there.
    """
    for each in given:
        members = vars(each).values() if isinstance(each, type) else [each]
        for function in (found for member in members for found in _functions_of(member)):
            function._torchdynamo_disable = True  # the compiler does not trace into it
            _run_as_it_is(inspect.unwrap(function))


def _functions_of(member: Any) -> Iterator[Any]:
    """The functions that run when a program uses a member of a class, or calls a method."""
    if isinstance(member, property):
        found = [member.fget, member.fset, member.fdel]
    else:
        found = [getattr(member, "__func__", member)]
    yield from (function for function in found if isinstance(function, FunctionType))


def _run_as_it_is(function: Any) -> None:
    """Tell the interpreter's hook, if there is one, to leave the frames of a function alone.

    A decorator's code is that of other functions, too, so this has to be the innermost one.
    """
    if _HOOK_KNOWS_CODES:
        skip = _evaluation._FrameAction.SKIP
        strategy = _evaluation._FrameExecStrategy(skip, skip)
        _evaluation.set_code_exec_strategy(function.__code__, strategy)


def _leave_out_files() -> None:
    """Before torch 2.7 the hook leaves out a frame, but not what it calls: so leave out all files.

    This imports the compiler, as a torch of that age does for any optimizer.
    """
    try:
        rules: Any = import_module("torch._dynamo.skipfiles")
    except ImportError:  # since torch 2.3
        rules = import_module("torch._dynamo.trace_rules")
    for name in _names_in("horovod") - {"horovod.core"} | _names_in("horovod.core") - _TRACED:
        rules.add(name)


def _names_in(package: str) -> set[str]:
    found = iter_modules(import_module(package).__path__, f"{package}.")
    return {module.name for module in found}


_evaluation: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_HOOK_KNOWS_CODES = hasattr(_evaluation, "set_code_exec_strategy")
# Of these are rank(), size() and the like, which may be constants of a compiled function.
_TRACED = {f"horovod.core.{name}" for name in ("position", "process_set", "process_sets")}
if _evaluation is not None and not _HOOK_KNOWS_CODES:
    _leave_out_files()
