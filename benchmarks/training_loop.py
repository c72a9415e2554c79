"""The training step of ``training.py`` and its four models; runs in the workers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from loop import Loop
from torch import nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["MODELS", "TrainingLoop"]


class _Residual(nn.Linear):
    """``x + linear(x)`` with small weights: keeps a signal in range through hundreds of layers."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def _convolutions() -> nn.Module:
    """28 tensors of 0.1 M parameters: 13 convolutions and a linear layer."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    for _ in range(12):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def _dense(width: int, layer_count: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(layer_count):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _deep(width: int, layer_count: int) -> nn.Module:
    return nn.Sequential(*(_Residual(width) for _ in range(layer_count)))


# Label -> how to make the model, the shape of one sample, samples per rank and step.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "28 small convolution tensors": (_convolutions, (3, 32, 32), 8),
    "8 tensors, 25 M parameters": (lambda: _dense(2499, 4), (2499,), 128),
    "602 tensors, 0.6 M parameters": (lambda: _deep(44, 301), (44,), 8),
    "6 tensors, 101 M parameters": (lambda: _dense(5800, 3), (5800,), 8),
}


class TrainingLoop(Loop):
    """Steps of SGD with momentum on random data, distributed in the contestant's way."""

    def prepare(self, *, model: str) -> float:
        """Build a model and make two steps; the sum of the weights, to compare the ranks."""
        return self._prepare(model, MODELS[model][2])

    def _prepare(self, model: str, batch_size: int) -> float:
        build, sample_shape, _ = MODELS[model]
        torch.manual_seed(0)
        network = build()
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
        wrapped, optimizer = self._contestant.distribute(network, optimizer)
        self._begin(wrapped, optimizer, (batch_size, *sample_shape))
        return sum(float(p.detach().double().sum()) for p in network.parameters())

    def _begin(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, input_shape: tuple[int, ...]
    ) -> None:
        """Make two steps."""
        torch.manual_seed(1 + self._contestant.rank)
        self._run = _training_step(model, optimizer, torch.randn(input_shape))
        for _ in range(2):
            self._run()


def _training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor
) -> Callable[[], None]:
    with torch.no_grad():
        targets = torch.randn_like(model(inputs))

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    return step
