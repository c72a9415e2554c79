"""What a rank does in a step: when it has which gradient, and when it has computed all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod.simulate.architectures import Layer, layers_of

_FLOAT_BYTES = 4
_MOST_SAMPLES = 1 << 50


@dataclass(frozen=True)
class Gradient:
    """``ready_s``: from the begin of the step until a rank that nothing disturbs has it."""

    name: str
    size_bytes: int
    ready_s: float


@dataclass(frozen=True)
class Workload:
    """A step of one rank.

    Attributes:
        title: what it is, for people.
        gradients: in the order in which they are ready.
        compute_s: until the backward pass ends.
        update_s: the optimizer's step, after the last gradient is reduced.
        samples: of one rank in a step; 0 if not known.
    """

    title: str
    gradients: Sequence[Gradient]
    compute_s: float
    update_s: float = 0.0
    samples: float = 0.0

    @property
    def size_bytes(self) -> int:
        """Of all gradients."""
        return sum(gradient.size_bytes for gradient in self.gradients)

    @property
    def alone_s(self) -> float:
        """A step without other ranks."""
        return self.compute_s + self.update_s


def of_model(name: str, batch: int, samples_per_second: float) -> Workload:
    """The step of a well-known model, from the speed of one device alone.

    A third of the time is the forward pass; the backward pass takes twice as long for each layer.

    Raises:
        ValueError: no such model, or a number that is not positive, or beyond 2**50.
    """
    if not 1 <= batch <= _MOST_SAMPLES or not 0 < samples_per_second <= _MOST_SAMPLES:
        raise ValueError("the batch and the samples per second must be positive, at most 2**50")
    layers = layers_of(name)
    step_s = batch / samples_per_second
    title = f"{name}, batch {batch}, {samples_per_second:g} samples/s alone"
    return Workload(title, _backward(layers, step_s), step_s, samples=batch)


def _backward(layers: Sequence[Layer], step_s: float) -> list[Gradient]:
    whole = sum(layer.work for layer in layers)
    now_s, gradients = step_s / 3, []
    for layer in reversed(layers):
        now_s += 2 / 3 * step_s * layer.work / whole
        for index, count in reversed(list(enumerate(layer.parameters))):
            gradients.append(Gradient(f"{layer.name}.{index}", count * _FLOAT_BYTES, now_s))
    return gradients
