"""A plain PyTorch module as a Lightning module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule

from horovod.spark.torch.outputs import Loss, Shapes, losses_of, matched, outputs_of
from horovod.spark.torch.training import named_metrics


def to_lightning_module(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fns: Any,
    loss_weights: Sequence[float] | None,
    feature_cols: Sequence[str],
    label_cols: Sequence[str],
    sample_weights_col: str | None = None,
    label_shapes: Shapes = None,
    metrics: Any = (),
) -> LightningModule:
    """A module that trains ``model`` on batches ``{column: tensor}``.

    Args:
        model: takes the features, returns an output for each label.
        optimizer: an optimizer of its parameters.
        loss_fns: a loss, or one for each label.
        loss_weights: the weights of the losses.
        feature_cols, label_cols, sample_weights_col: the columns of the batches.
        label_shapes: the labels' shapes; by default the outputs' shapes, if the sizes are equal.
        metrics: functions of outputs and labels, or a list of them for each label.
    """
    loss = Loss(
        losses_of(loss_fns, None, len(label_cols)), loss_weights, sample_weights_col is not None
    )
    columns = _Columns(feature_cols, label_cols, sample_weights_col, label_shapes)
    return _Legacy(model, optimizer, loss, columns, named_metrics(metrics, label_cols))


class _Columns(NamedTuple):
    features: Sequence[str]
    labels: Sequence[str]
    weight: str | None
    label_shapes: Shapes


class _Legacy(LightningModule):
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        columns: _Columns,
        metrics: Sequence[tuple[str, int, Any]],
    ) -> None:
        super().__init__()
        self.model = model
        self._optimizer = optimizer
        self._loss = loss
        self._columns = columns
        self._metrics = metrics

    def forward(self, *features: torch.Tensor) -> Any:
        """The model's outputs."""
        return self.model(*features)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The given optimizer."""
        return self._optimizer

    def training_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        return self._loss_of(batch, "")

    def validation_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        return self._loss_of(batch, "val_")

    def _loss_of(self, batch: Mapping[str, torch.Tensor], prefix: str) -> torch.Tensor:
        columns = self._columns
        outputs = outputs_of(self.model(*[batch[name] for name in columns.features]))
        labels = matched(outputs, [batch[name] for name in columns.labels], columns.label_shapes)
        weights = None if columns.weight is None else batch[columns.weight]
        loss = self._loss(outputs, labels, weights)
        values = {f"{prefix}loss": loss}
        for name, place, metric in self._metrics:
            values[f"{prefix}{name}"] = metric(outputs[place].detach(), labels[place])
        rows = len(outputs[0])
        self.log_dict(values, on_step=False, on_epoch=True, batch_size=rows, sync_dist=True)
        return loss
