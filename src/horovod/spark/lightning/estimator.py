"""``TorchEstimator`` for Lightning modules."""

from __future__ import annotations

from lightning.pytorch import LightningModule

from horovod.spark.common.backend import Backend
from horovod.spark.common.declaration import Parameter, at_least, declares, one_of
from horovod.spark.common.estimator import HorovodEstimator, require
from horovod.spark.common.plan import Plan
from horovod.spark.lightning.training import train
from horovod.spark.torch.estimator import SHAPES_AND_LOSSES, TorchModel, check_module, trained_model
from horovod.spark.torch.outputs import check_losses

__all__ = ["TorchEstimator", "TorchModel"]


@declares(
    {
        **SHAPES_AND_LOSSES,
        "data_module": Parameter(None, "class that reads the data, Horovod's or Lightning's"),
        "reader_pool_type": Parameter(
            None, "reader: thread, process, dummy", one_of(("thread", "process", "dummy"))
        ),
        "train_minibatch_fn": Parameter(None, "not allowed: the module's training_step is used"),
        "num_gpus": Parameter(
            None,
            "GPUs of a process: 1, or 0 to train without",
            at_least(0),
            setter="setNumGPUs",
            getter="getNumGPUs",
        ),
        "logger": Parameter(None, "Lightning's logger; by default one that writes CSV files"),
        "log_every_n_steps": Parameter(50, "steps between two entries of the log", at_least(1)),
        "loader_num_epochs": Parameter(
            None, "epochs for which data are read; None: all", at_least(1)
        ),
        "terminate_on_nan": Parameter(False, "raise an error if the loss is no number"),
        "profiler": Parameter(None, "Lightning's profiler"),
        "trainer_args": Parameter(None, "arguments of Trainer that replace the estimator's"),
        "debug_data_loader": Parameter(False, "print messages of data loaders"),
        "train_async_data_loader_queue_size": Parameter(
            None, "batches prefetched by a thread", at_least(0)
        ),
        "val_async_data_loader_queue_size": Parameter(None, "the same for validation", at_least(0)),
    }
)
class TorchEstimator(HorovodEstimator):
    """Trains a ``LightningModule``, or a plain module, on a DataFrame; all arguments are keywords.

    The module's steps take batches ``{column: tensor}``. A plain ``nn.Module`` needs ``optimizer``
    and ``loss``; a Lightning module has its own.

        estimator = TorchEstimator(num_proc=2, store=store, model=module, epochs=10,
                                   feature_cols=["features"], label_cols=["label"])
        predictions = estimator.fit(train_df).transform(test_df)

    See docs/estimators.md for all params.

    Raises:
        TypeError: an argument is no param.
        ValueError: a param's value is unusable.
    """

    _run_prefix = "pytorch"

    def _check(self) -> None:
        model = self.value("model")
        check_module(model)
        if self.value("train_minibatch_fn") is not None:
            raise ValueError(
                "train_minibatch_fn must not be given: training_step of a LightningModule makes "
                "the step; horovod.spark.torch.TorchEstimator takes such a function"
            )
        epochs = self.value("loader_num_epochs")
        if epochs is not None and epochs < self.value("epochs"):
            raise ValueError(f"loader_num_epochs={epochs}, but epochs={self.value('epochs')}")
        own = ("optimizer", "loss", "loss_constructors", "loss_weights")
        if isinstance(model, LightningModule):
            for name in own:
                if self.value(name) is not None:
                    raise ValueError(f"{name} must not be given: the Lightning module has its own")
            return
        kind = "a module that is no LightningModule of lightning.pytorch"
        require(self, "optimizer", f"Optimizer parameter is required for {kind}")
        check_losses(self)

    def _train(self, backend: Backend, plan: Plan, checkpoint: str | None) -> TorchModel:
        checkpoints = plan.remote.store.get_checkpoints(plan.run_id) if checkpoint else []
        return trained_model(self, plan, backend, train, checkpoints)
