"""``TorchEstimator`` and ``TorchModel``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cloudpickle
import torch

from horovod.launch.calls import by_value
from horovod.spark.common.backend import Backend
from horovod.spark.common.columns import Array
from horovod.spark.common.declaration import Declared, Parameter, declares
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel, require, results_of
from horovod.spark.common.plan import Plan
from horovod.spark.torch.outputs import check_losses, check_shapes, inputs_of, outputs_of
from horovod.spark.torch.training import TorchResult, load_state, train

SHAPES_AND_LOSSES = {
    "input_shapes": Parameter(None, "shapes of the features, batch dimension first"),
    "loss_constructors": Parameter(None, "functions that make the losses, in place of loss"),
}


@declares(
    {
        **SHAPES_AND_LOSSES,
        "train_minibatch_fn": Parameter(None, "function that replaces the training step"),
    }
)
class TorchEstimator(HorovodEstimator):
    """Trains an ``nn.Module`` on a DataFrame; all arguments are keywords.

    The model takes a tensor for each of ``feature_cols`` and returns one for each of
    ``label_cols``. Floating-point numbers get the dtype of its parameters.

        estimator = TorchEstimator(num_proc=2, store=store, model=model, optimizer=optimizer,
                                   loss=nn.CrossEntropyLoss(), feature_cols=["features"],
                                   label_cols=["label"], batch_size=32, epochs=10)
        predictions = estimator.fit(train_df).transform(test_df)

    See docs/estimators.md for all params.

    Raises:
        TypeError: an argument is no param.
        ValueError: a param's value is unusable.
    """

    _run_prefix = "pytorch"

    def _check(self) -> None:
        check_module(self.value("model"))
        require(self, "optimizer", "Optimizer parameter is required")
        check_losses(self)

    def _train(self, backend: Backend, plan: Plan, checkpoint: str | None) -> TorchModel:
        return trained_model(self, plan, backend, train, checkpoint)


@declares(
    {
        **SHAPES_AND_LOSSES,
        "optimizer": Parameter(None, "optimizer in its state after the training"),
        "loss": Parameter(None, "loss that was minimized"),
    }
)
class TorchModel(HorovodModel):
    """A trained ``nn.Module``; ``getHistory()`` is a list with a dictionary for each epoch."""

    @staticmethod
    def _predictor(data: bytes) -> Any:
        model, input_shapes = cloudpickle.loads(data)
        model.eval()
        return partial(_predict, model, input_shapes)

    def _predictor_data(self) -> bytes:
        return by_value.dumps((self.value("model"), self.value("input_shapes")))


def trained_model(
    estimator: Declared, plan: Plan, backend: Backend, train: Callable[..., Any], checkpoint: Any
) -> TorchModel:
    """The model of an estimator after ``train`` in the processes of a backend.

    They call it with the plan, the pickled model and optimizer, and the checkpoint.
    """
    check_shapes(plan)
    # One pickle, so that the optimizer still steps on this model's parameters.
    trained = by_value.dumps((estimator.value("model"), estimator.value("optimizer")))
    result: TorchResult = backend.run(train, args=(plan, trained, checkpoint))[0]
    model, optimizer = cloudpickle.loads(trained)
    load_state(result.state, model, optimizer)
    return TorchModel(
        model=model,
        optimizer=optimizer,
        **results_of(plan, result.history, result.sizes, result.floats),
        **{name: estimator.value(name) for name in ("input_shapes", "loss", "loss_constructors")},
    )


def check_module(model: Any) -> None:
    """Raise ``ValueError`` unless this is a module of PyTorch."""
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model has to be a torch.nn.Module, not {type(model).__name__}")


@torch.no_grad()
def _predict(model: torch.nn.Module, input_shapes: Any, features: Sequence[Array]) -> list[Array]:
    # Spark's arrays are read-only, and tensors are not.
    tensors = [torch.as_tensor(array.copy()) for array in features]
    return [output.numpy() for output in outputs_of(model(*inputs_of(tensors, input_shapes)))]
