"""What ``SyncBatchNorm`` asks of torch's kernels, which have to serve CPU and CUDA alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from horovod.torch import sync_batch_norm

BACKWARD = torch.ops.aten.native_batch_norm_backward.default
FORMATS = [torch.contiguous_format, torch.channels_last]


class Calls(TorchDispatchMode):
    """Notes the arguments of the kernel that backward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == BACKWARD:
            self.noted.append(args)
        return func(*args, **(kwargs or {}))


class OneRank:
    """The exchange of a rank that is alone."""

    def add(self, mine: torch.Tensor) -> torch.Tensor:
        return mine


def _has_kernel(dtype: torch.dtype) -> bool:
    try:
        torch.nn.functional.batch_norm(torch.zeros(2, 1, dtype=dtype), None, None, training=True)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_backward_saves_the_statistics_for_the_kernels(
    dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    if not _has_kernel(dtype):
        pytest.skip("this torch has no batch norm of this dtype for CPUs")
    x = torch.randn(3, 2, 4, 5, dtype=dtype).to(memory_format=memory_format).requires_grad_()
    wide = torch.promote_types(dtype, torch.float32)
    total = sync_batch_norm._moments(x.detach(), wide)
    y = sync_batch_norm._Normalize.apply(x, None, None, total, 1e-5, OneRank())  # type: ignore[no-untyped-call]
    with Calls() as calls:
        y.backward(torch.ones_like(y))
    ((grad, given, ones, _, _, mean, inverse, is_training, *_),) = calls.noted
    assert grad.dtype == given.dtype == dtype
    assert {each.dtype for each in (ones, mean, inverse)} == {wide}
    assert is_training  # else those of the CPU would read running statistics
    torch.testing.assert_close(mean, total.mean, rtol=0, atol=0)
    torch.testing.assert_close(inverse, 1 / torch.sqrt(total.squares / total.size + 1e-5))
