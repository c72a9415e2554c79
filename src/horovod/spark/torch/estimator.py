"""``TorchEstimator`` and the model that it makes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import cloudpickle
import torch

from horovod.launch.calls import by_value
from horovod.spark.common.backend import Backend
from horovod.spark.common.columns import Array
from horovod.spark.common.declaration import Parameter, declares
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel, metadata_of, require
from horovod.spark.common.plan import Plan
from horovod.spark.torch.losses import check_losses
from horovod.spark.torch.shapes import check_shapes, inputs_of, outputs_of
from horovod.spark.torch.training import TorchPlan, train

__all__ = ["TorchEstimator", "TorchModel"]

_SHARED = {
    "input_shapes": Parameter(None, "shapes of the features, batch dimension first"),
    "loss_constructors": Parameter(None, "functions that make the losses, instead of loss"),
}


@declares(
    {
        **_SHARED,
        "data_module": Parameter(None, "class that reads the data"),
        "train_minibatch_fn": Parameter(None, "makes a step, instead of the usual one"),
    }
)
class TorchEstimator(HorovodEstimator):
    """Trains an ``nn.Module`` on a DataFrame; all arguments are keywords.

    The model gets a tensor for each of ``feature_cols`` and gives one for each of ``label_cols``.
    Floating-point numbers get the dtype of its parameters.

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
        model = self.value("model")
        if not isinstance(model, torch.nn.Module):
            raise ValueError(f"model has to be a torch.nn.Module, not {type(model).__name__}")
        require(self, "optimizer", "Optimizer parameter is required")
        check_losses(
            self.value("loss"),
            self.value("loss_constructors"),
            self.value("loss_weights"),
            len(self.value("label_cols")),
        )

    def _train(self, backend: Backend, plan: Plan, checkpoint: str | None) -> TorchModel:
        input_shapes = self.value("input_shapes")
        check_shapes(plan, input_shapes, self.value("label_shapes"))
        job = TorchPlan(
            plan=plan,
            # In one piece, so that the optimizer goes on stepping on this model's parameters.
            trained=by_value.dumps((self.value("model"), self.value("optimizer"))),
            loss=self.value("loss"),
            loss_constructors=self.value("loss_constructors"),
            input_shapes=input_shapes,
            label_shapes=self.value("label_shapes"),
            train_minibatch_fn=self.value("train_minibatch_fn"),
            backward_passes_per_step=self.value("backward_passes_per_step"),
            checkpoint=checkpoint,
        )
        result = backend.run(train, args=(job,))[0]
        model, optimizer = cloudpickle.loads(job.trained)
        state = torch.load(io.BytesIO(result.state), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return TorchModel(
            history=result.history,
            model=model,
            feature_columns=list(plan.features),
            label_columns=list(plan.labels),
            input_shapes=input_shapes,
            optimizer=optimizer,
            run_id=plan.run_id,
            _metadata=metadata_of(plan, result.sizes, result.floats),
            loss=self.value("loss"),
            loss_constructors=self.value("loss_constructors"),
        )


@declares(
    {
        **_SHARED,
        "optimizer": Parameter(None, "the optimizer, in the state after the training"),
        "loss": Parameter(None, "what was made small"),
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


@torch.no_grad()
def _predict(model: torch.nn.Module, input_shapes: Any, features: Sequence[Array]) -> list[Array]:
    # What Spark hands over cannot be written to, and a tensor could.
    tensors = [torch.as_tensor(array.copy()) for array in features]
    return [output.numpy() for output in outputs_of(model(*inputs_of(tensors, input_shapes)))]
