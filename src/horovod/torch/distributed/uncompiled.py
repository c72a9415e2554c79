"""Keeps ``torch.compile`` away from code that C++ code of torch calls.

The compiler also looks at frames that begin in C++, as those of a process group in the forward pass
of ``DistributedDataParallel``. It cannot compile them. ``torch.compiler.disable`` would do, but it
imports the compiler, which takes longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

__all__ = ["keep_uncompiled"]


def keep_uncompiled(*functions: type | Callable[..., Any]) -> None:
    """Mark functions, and all methods of classes: these and what they call run as they are."""
    evaluation: Any = torch._C._dynamo.eval_frame
    if not hasattr(evaluation, "set_code_exec_strategy"):  # an older torch
        return
    skip = evaluation._FrameAction.SKIP
    strategy = evaluation._FrameExecStrategy(skip, skip)
    for each in functions:
        members = vars(each).values() if isinstance(each, type) else [each]
        for member in members:
            if isinstance(member, FunctionType):
                evaluation.set_code_exec_strategy(member.__code__, strategy)
