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
    evaluation: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if not hasattr(evaluation, "set_code_exec_strategy"):  # an older torch
        return
    skip = evaluation._FrameAction.SKIP
    strategy = evaluation._FrameExecStrategy(skip, skip)
    evaluation.set_code_exec_strategy(function.__code__, strategy)
