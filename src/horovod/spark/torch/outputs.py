"""A model's inputs, outputs and labels in their shapes.

The losses of several outputs and of weighted rows are one number.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from horovod.spark.common.declaration import Declared
from horovod.spark.common.plan import Plan

Shapes = Sequence[Sequence[int]] | None
Tensors = Sequence[torch.Tensor]


def inputs_of(tensors: Tensors, shapes: Shapes) -> list[torch.Tensor]:
    """The tensors in these shapes; the first dimension is the batch."""
    if shapes is None:
        return list(tensors)
    return [tensor.reshape(*shape) for tensor, shape in zip(tensors, shapes, strict=True)]


def outputs_of(found: Any) -> list[torch.Tensor]:
    """The outputs of a model as a list."""
    return list(found) if isinstance(found, tuple | list) else [found]


def matched(outputs: Tensors, labels: Tensors, shapes: Shapes) -> list[torch.Tensor]:
    """The labels in these shapes; by default in the outputs' shapes, if the sizes are equal."""
    if shapes is not None:
        return inputs_of(labels, shapes)
    return [
        label.reshape(output.shape) if label.numel() == output.numel() else label
        for output, label in zip(outputs, labels, strict=True)
    ]


def check_shapes(plan: Plan) -> None:
    """Raise ``ValueError`` if columns do not fit the shapes."""
    for what, names in (("input_shapes", plan.features), ("label_shapes", plan.labels)):
        shapes: Shapes = plan.params[what]
        if shapes is None:
            continue
        if len(shapes) != len(names):
            raise ValueError(f"{len(shapes)} {what} for {len(names)} columns {list(names)}")
        for name, shape in zip(names, shapes, strict=True):
            row = prod(shape[1:])
            size = plan.columns[name].size
            if -1 not in shape[1:] and row != size:
                raise ValueError(
                    f"column {name!r} has {size} numbers in a row, which {what} {list(shape)} "
                    f"makes {row}"
                )


def losses_of(loss: Any, constructors: Any, count: int) -> list[Callable[..., torch.Tensor]]:
    """A loss for each output; a single loss is for all outputs."""
    if constructors is not None:
        made = constructors if isinstance(constructors, list | tuple) else [constructors]
        losses = [constructor() for constructor in made]
    else:
        losses = list(loss) if isinstance(loss, list | tuple) else [loss]
    return losses * count if len(losses) == 1 else losses


def check_losses(estimator: Declared) -> None:
    """Raise ``ValueError`` unless an estimator has usable losses for all of its labels."""
    loss, constructors = estimator.value("loss"), estimator.value("loss_constructors")
    weights, count = estimator.value("loss_weights"), len(estimator.value("label_cols"))
    if (loss is None) == (constructors is None):
        raise ValueError("give either loss or loss_constructors")
    given = loss if constructors is None else constructors
    losses = given if isinstance(given, list | tuple) else [given]
    if not all(callable(one) for one in losses):
        raise ValueError("loss has to be callable, or a list of callables")
    if len(losses) not in (1, count):
        raise ValueError(f"{len(losses)} losses for {count} label columns")
    if weights is not None and len(weights) != count:
        raise ValueError(f"{len(weights)} loss_weights for {count} label columns")


class Loss:
    """``loss(outputs, labels, sample_weights)``: the weighted sum of the losses of all outputs.

    With sample weights a loss is the mean over the rows of loss times weight.

    Raises:
        ValueError: (with sample weights) a loss cannot be computed for each row.
    """

    def __init__(
        self,
        losses: Sequence[Callable[..., torch.Tensor]],
        weights: Sequence[float] | None,
        has_rows: bool,
    ) -> None:
        self._losses = [_by_row(loss) for loss in losses] if has_rows else list(losses)
        self._weights = weights or [1.0] * len(self._losses)

    def __call__(
        self, outputs: Tensors, labels: Tensors, sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        total = None
        for weight, loss, output, label in zip(
            self._weights, self._losses, outputs, labels, strict=True
        ):
            value = loss(output, label)
            if sample_weights is not None:
                value = (value.reshape(len(output), -1).mean(dim=1) * sample_weights).mean()
            part = value if weight == 1.0 else weight * value
            total = part if total is None else total + part
        assert total is not None
        return total


def _by_row(loss: Any) -> Callable[..., torch.Tensor]:
    if hasattr(loss, "reduction"):
        alike = copy.copy(loss)
        alike.reduction = "none"
        return alike  # type: ignore[no-any-return]
    if "reduction" in inspect.signature(loss).parameters:
        return lambda output, label: loss(output, label, reduction="none")
    raise ValueError(
        f"sample_weight_col needs the loss of each row; {loss!r} has no argument 'reduction'"
    )
