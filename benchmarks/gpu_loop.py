"""The measured loops of ``gpu.py``: copies, sums and training on a GPU; run in the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from loop import Loop
from torch import nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["COPIES", "CopyLoop", "StepLoop", "SumLoop", "make_model"]

COPIES = ("on the card", "to the host", "to the card")
_IMAGES = 32


class _Loop(Loop):
    """Iterations of one operation, including all its work on the GPU."""

    def __init__(self, contestant: Any) -> None:
        super().__init__(contestant)
        torch.cuda.set_device(0)  # all ranks use one card

    def release(self) -> None:
        super().release()
        torch.cuda.empty_cache()

    def _wait(self) -> None:
        torch.cuda.synchronize()


class CopyLoop(_Loop):
    """Copies by the driver: no collective can be faster."""

    def prepare(self, *, copy: str, size_bytes: int) -> None:
        there = torch.zeros(size_bytes, dtype=torch.uint8, device="cuda")
        if copy == "on the card":
            other = torch.zeros_like(there)
        else:
            other = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)
        source, target = (other, there) if copy == "to the card" else (there, other)
        self._run = lambda: target.copy_(source, non_blocking=True)


class SumLoop(_Loop):
    """In-place sums of float32 tensors on the card."""

    def prepare(self, *, element_count: int) -> None:
        """Make the tensor, sum ones once, and raise if the sum is wrong."""
        tensor = torch.ones(element_count, device="cuda")
        self._run = self._contestant.blocking(tensor)
        self._run()
        if not bool((tensor == self._contestant.size).all()):
            raise RuntimeError("wrong sums")
        tensor.zero_()  # stays finite when it is summed many times
        torch.cuda.synchronize()


class StepLoop(_Loop):
    """Steps of SGD with momentum of a model of ResNet-50's size, in mixed precision."""

    def prepare(self) -> float:
        """Build the model and make two steps; the sum of the weights, to compare the ranks."""
        torch.manual_seed(0)
        model = make_model().to("cuda", memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        wrapped, optimizer = self._contestant.distribute(model, optimizer)
        torch.manual_seed(1 + self._contestant.rank)
        images = torch.randn(_IMAGES, 3, 224, 224, device="cuda")
        images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (_IMAGES,), device="cuda")
        self._run = _training_step(wrapped, optimizer, images, labels)
        for _ in range(2):
            self._run()
        return sum(float(p.detach().double().sum()) for p in model.parameters())


def _training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
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
