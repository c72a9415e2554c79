"""The measured loop of ``gpu.py``: copies, sums and training on a GPU; runs in the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from loop import Loop
from torch import nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["COPIES", "COUNTS", "GpuLoop", "make_model"]

COPIES = ("on the card", "to the host", "to the card")
COUNTS = ("buckets", "allreduce_operations", "allreduce_tensors")
_IMAGES = 32
_COUNTED_STEPS = 2


class GpuLoop(Loop):
    """Iterations of one operation, including all its work on the GPU."""

    def __init__(self, contestant: Any) -> None:
        super().__init__(contestant)
        torch.cuda.set_device(0)  # all ranks use one card
        self._model = nn.Module()
        self._batch: tuple[torch.Tensor, ...] = ()

    def prepare_copy(self, *, copy: str, size_bytes: int) -> None:
        """A copy by the driver: no collective can be faster."""
        there = torch.zeros(size_bytes, dtype=torch.uint8, device="cuda")
        if copy == "on the card":
            other = torch.zeros_like(there)
        else:
            other = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)
        source, target = (other, there) if copy == "to the card" else (there, other)
        self._run = lambda: target.copy_(source, non_blocking=True)

    def prepare_sum(self, *, element_count: int) -> float:
        """Make a tensor of float32 and sum ones once, in place; an element of the result."""
        tensor = torch.ones(element_count, device="cuda")
        self._run = self._contestant.blocking(tensor)
        self._run()
        lowest, highest = (float(bound) for bound in tensor.aminmax())
        if lowest != highest:
            raise RuntimeError(f"wrong sums: from {lowest} to {highest}")
        tensor.zero_()  # stays finite when it is summed many times
        torch.cuda.synchronize()
        return lowest

    def build_model(self) -> None:
        """Build the model and run it once, without communication: its kernels are loaded then."""
        torch.manual_seed(0)
        self._model = make_model().to("cuda", memory_format=torch.channels_last)
        torch.manual_seed(1 + self._contestant.rank)
        images = torch.randn(_IMAGES, 3, 224, 224, device="cuda")
        labels = torch.randint(1000, (_IMAGES,), device="cuda")
        self._batch = images.to(memory_format=torch.channels_last), labels
        _loss(self._model, *self._batch).backward()
        self._model.zero_grad()
        torch.cuda.synchronize()

    def prepare_step(self) -> float:
        """Make two steps of the model; the sum of the weights, to compare the ranks."""
        model = self._model
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        wrapped, optimizer = self._contestant.distribute(model, optimizer)
        self._run = _training_step(wrapped, optimizer, *self._batch)
        for _ in range(2):
            self._run()
        return sum(float(p.detach().double().sum()) for p in model.parameters())

    def count(self) -> dict[str, float]:
        """What the engine counts in one iteration; nothing where the contestant is not ours."""
        count = getattr(self._contestant, "metrics", dict)
        before = count()
        for _ in range(_COUNTED_STEPS):
            self._run()
        self._wait()
        after = count()
        return {name: (after[name] - before[name]) / _COUNTED_STEPS for name in COUNTS if after}

    def release(self) -> None:
        self._model, self._batch = nn.Module(), ()
        super().release()
        torch.cuda.empty_cache()

    def _wait(self) -> None:
        torch.cuda.synchronize()


def _loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return F.cross_entropy(model(images), labels)


def _training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        _loss(model, images, labels).backward()
        optimizer.step()

    return step


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(channels, width, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, 4 * width, 1),
        )
        self.skip = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.skip = nn.Sequential(*_convolution(channels, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x))


def _convolution(channels: int, width: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
    return [layer, nn.BatchNorm2d(width)]


def make_model() -> nn.Module:
    """161 tensors with 25.6 M parameters, in the shapes of ResNet-50."""
    layers = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(_Bottleneck(channels, width, stride))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
