"""Columns in the shapes of a Keras model's inputs and labels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from horovod.spark.common.columns import Array
from horovod.spark.common.plan import Plan


def check_shapes(plan: Plan, model: Any) -> None:
    """Raise ``ValueError`` if columns do not match the model's inputs and outputs."""
    inputs, outputs = _row_shapes(model, "inputs"), _row_shapes(model, "outputs")
    if inputs is not None and len(inputs) != len(plan.features):
        raise ValueError(f"{len(plan.features)} feature columns for {len(inputs)} inputs")
    if outputs is not None and len(outputs) != len(plan.labels):
        raise ValueError(f"{len(plan.labels)} label columns for {len(outputs)} outputs")
    for name, shape in zip(plan.features, inputs or (), strict=False):
        size = plan.columns[name].size
        if None not in shape and prod(filter(None, shape)) != size:
            raise ValueError(
                f"column {name!r} has {size} numbers in a row; the model's input has the shape "
                f"{list(shape)}"
            )


def shaped_inputs(model: Any, features: Sequence[Array]) -> Any:
    """The features in the shapes of the model's inputs; one array, or a tuple."""
    shapes = _row_shapes(model, "inputs")
    arrays = list(features)
    if shapes is not None:
        arrays = [
            array if None in shape else array.reshape(len(array), *shape)
            for array, shape in zip(features, shapes, strict=True)
        ]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def shaped_labels(labels: Sequence[Array], shapes: Sequence[Sequence[int]] | None) -> Any:
    """The labels, in these shapes if given; one array, or a tuple."""
    arrays = list(labels)
    if shapes is not None:
        arrays = [array.reshape(*shape) for array, shape in zip(labels, shapes, strict=True)]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _row_shapes(model: Any, what: str) -> list[tuple[int | None, ...]] | None:
    """Shapes without the batch dimension; None if the model does not know them yet."""
    try:
        tensors = getattr(model, what, None)
    except (AttributeError, ValueError):
        return None
    return [tuple(tensor.shape[1:]) for tensor in tensors] if tensors else None
