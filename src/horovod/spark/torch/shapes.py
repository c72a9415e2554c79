"""Columns in the shapes of a model's inputs and labels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from horovod.spark.common.plan import Plan

Shapes = Sequence[Sequence[int]] | None


def inputs_of(tensors: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
    """The tensors in these shapes; the first dimension is the batch."""
    if shapes is None:
        return list(tensors)
    return [tensor.reshape(*shape) for tensor, shape in zip(tensors, shapes, strict=True)]


def outputs_of(found: Any) -> list[torch.Tensor]:
    """The outputs of a model as a list."""
    return list(found) if isinstance(found, tuple | list) else [found]


def matched(
    outputs: Sequence[torch.Tensor], labels: Sequence[torch.Tensor], shapes: Shapes
) -> list[torch.Tensor]:
    """The labels in these shapes; by default in the outputs' shapes, if the sizes are equal."""
    if shapes is not None:
        return inputs_of(labels, shapes)
    return [
        label.reshape(output.shape) if label.numel() == output.numel() else label
        for output, label in zip(outputs, labels, strict=True)
    ]


def check_shapes(plan: Plan, input_shapes: Shapes, label_shapes: Shapes) -> None:
    """Raise ``ValueError`` if columns do not fit the shapes."""
    for what, names, shapes in (
        ("input_shapes", plan.features, input_shapes),
        ("label_shapes", plan.labels, label_shapes),
    ):
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
