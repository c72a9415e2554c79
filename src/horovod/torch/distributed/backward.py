"""Operations that ``DistributedDataParallel`` starts during the backward pass.

DDP waits for the buckets of gradients only after the whole backward pass. Where every core has a
rank, a background thread that reduces a bucket meanwhile takes the core from the backward pass, of
this rank or of another one. So there nothing is woken for a bucket in host memory, and a callback
at the end of the backward pass, before that of DDP, waits for all of them and makes the progress.

This holds only for operations that C++ code of torch starts itself. Python code, such as a hook,
may wait for a future in the middle of the backward pass.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING

import torch

from horovod.core.world import has_spare_cores

if TYPE_CHECKING:
    from horovod.torch.distributed.work import HorovodWork

_BACKWARD = "_engine_run_backward"  # of torch.autograd.graph: calls the C++ code


class _Local(threading.local):
    """A thread's latest backward pass, and the works that it has started there.

    They live until the next one, since C++ code may still ask for them: see ``work.Unwaited``.
    """

    backward = -1

    def __init__(self) -> None:
        self.works: list[HorovodWork] = []


_local = _Local()


def is_started_by_ddp(depth: int) -> bool:
    """Whether C++ code has called the function ``depth`` calls above, in a backward pass.

    Not at its end, in a callback: there DDP waits at once for what it starts.
    """
    if torch._C._current_graph_task_id() == -1 or has_spare_cores():
        return False
    return torch._C._current_autograd_node() is not None and is_called_by_cpp(depth + 1)


def is_called_by_cpp(depth: int) -> bool:
    """Whether C++ code has called the function ``depth`` calls above, in a backward pass."""
    try:
        return sys._getframe(depth + 1).f_code.co_name == _BACKWARD
    except ValueError:  # a thread without any Python code
        return torch._C._current_graph_task_id() != -1


def end_after_backward(work: HorovodWork) -> None:
    """Wait for the work when the backward pass ends that this thread is in.

    The thread that ends the pass can be another one.
    """
    backward = torch._C._current_graph_task_id()
    if _local.backward != backward:
        _local.backward, _local.works = backward, []
        end = functools.partial(_end_all, _local.works)
        torch.autograd.Variable._execution_engine.queue_callback(end)
    _local.works.append(work)
    work.is_waited_for = True


def _end_all(works: list[HorovodWork]) -> None:
    for work in works:
        try:
            work.wait()
        except (RuntimeError, ValueError) as error:
            work.give_up(error)
