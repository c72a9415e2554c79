"""The training in each process of a Lightning ``TorchEstimator``."""

from __future__ import annotations

import io
import math
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.environments import LightningEnvironment

import horovod.torch as hvd
from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader
from horovod.lightning import HorovodStrategy
from horovod.spark.common.plan import Plan
from horovod.spark.lightning.legacy import to_lightning_module
from horovod.spark.torch.outputs import inputs_of, losses_of, outputs_of
from horovod.spark.torch.training import TorchResult, adopt, float_dtype, pick_device, state_bytes

_WHATS = ("train", "val")


def train(plan: Plan, trained: bytes, checkpoints: Sequence[str]) -> TorchResult | None:
    """Train on this process's shard; None on ranks other than 0.

    ``trained`` is the pickled model and optimizer; ``checkpoints`` are the paths of the run's
    checkpoints.
    """
    hvd.init()
    params = plan.params
    plan.prepare_process()
    device = pick_device(params["use_gpu"] and params["num_gpus"] != 0)
    if params["random_seed"] is not None:
        torch.manual_seed(params["random_seed"] + hvd.rank())
    model, optimizer = cloudpickle.loads(trained)
    if optimizer is not None:
        adopt(optimizer, model)
    module = _module(plan, model, optimizer)
    saved = _newest(plan, checkpoints)
    if saved is not None:
        module.load_state_dict(saved["state_dict"])
    floats = float_dtype(model)
    history = History(plan)
    with plan.remote.get_local_output_dir() as folder, _loaders(plan, floats) as loaders:
        states = None if saved is None else saved["optimizer_states"]
        trainer = _trainer(plan, device, folder, history, states)
        trainer.fit(module, **loaders)
    if hvd.rank() != 0:
        return None
    state = state_bytes(model, None if optimizer is None else trainer.optimizers[0])
    return TorchResult(history.rows, state, _sizes(plan, model, floats), floats)


def _module(plan: Plan, model: Any, optimizer: Any) -> LightningModule:
    if isinstance(model, LightningModule):
        return model
    params = plan.params
    losses = losses_of(params["loss"], params["loss_constructors"], len(plan.labels))
    columns = (plan.features, plan.labels, plan.weight, params["label_shapes"])
    return to_lightning_module(
        model, optimizer, losses, params["loss_weights"], *columns, params["metrics"]
    )


def _trainer(
    plan: Plan, device: torch.device, folder: str, history: History, optimizer_states: Any
) -> Trainer:
    params = plan.params
    logs = os.path.join(folder, plan.remote.logs_subdir)
    own = {
        "accelerator": "gpu" if device.type == "cuda" else "cpu",
        "devices": 1 if device.type == "cpu" else [device.index],
        "strategy": HorovodStrategy(device, params["gradient_compression"], optimizer_states),
        "max_epochs": params["epochs"],
        "limit_train_batches": params["train_steps_per_epoch"] or 1.0,
        "limit_val_batches": params["validation_steps_per_epoch"] or 1.0,
        "accumulate_grad_batches": params["backward_passes_per_step"],
        "callbacks": _callbacks(plan, folder, history),
        "logger": params["logger"] or CSVLogger(logs, name="", version=""),
        "log_every_n_steps": params["log_every_n_steps"],
        "profiler": params["profiler"],
        "num_sanity_val_steps": 0,
        "enable_progress_bar": False,
        "enable_model_summary": bool(params["verbose"]),
        "default_root_dir": folder,
        "use_distributed_sampler": False,
        # Otherwise Lightning looks for launchers and may load a broken MPI library.
        "plugins": [LightningEnvironment()],
    }
    return Trainer(**{**own, **(params["trainer_args"] or {})})


def _callbacks(plan: Plan, folder: str, history: History) -> list[Callback]:
    remote = plan.remote
    callbacks = list(plan.params["callbacks"])
    checkpoints = os.path.join(folder, remote.checkpoint_filename)
    found = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    for callback in found:
        callback.dirpath = callback.dirpath or checkpoints
    if remote.saving_runs and not found:
        callbacks.append(ModelCheckpoint(checkpoints, filename="{epoch:06d}", save_top_k=1))
    if plan.params["terminate_on_nan"]:
        callbacks.append(EndOnNan())
    callbacks.append(history)
    return [*callbacks, Upload(plan, folder)] if remote.saving_runs else callbacks


class _Loader(AsyncDataLoaderMixin, BaseDataLoader):
    """Batches of tensors, with features in their shapes."""

    def __init__(
        self, plan: Plan, data: Iterable[Mapping[str, Any]], steps: int, ahead: int
    ) -> None:
        self._plan = plan
        self._data = data
        self._steps = steps
        super().__init__(
            async_loader_queue_size=ahead, debug_data_loader=plan.params["debug_data_loader"]
        )

    def __len__(self) -> int:
        return self._steps

    def _iterate(self) -> Iterator[dict[str, torch.Tensor]]:
        features, shapes = self._plan.features, self._plan.params["input_shapes"]
        for batch in self._data:
            tensors = {name: torch.as_tensor(array) for name, array in batch.items()}
            shaped = inputs_of([tensors[name] for name in features], shapes)
            yield {**tensors, **dict(zip(features, shaped, strict=True))}


@contextmanager
def _loaders(plan: Plan, floats: str) -> Iterator[dict[str, Any]]:
    """The data arguments of ``fit``: a data module of Lightning, or loaders over one of ours."""
    place = (hvd.rank(), hvd.size())
    module: Any = plan.open_data(*place, floats)
    if isinstance(module, LightningDataModule):
        yield {"datamodule": module}
        return
    ahead = {what: plan.params[f"{what}_async_data_loader_queue_size"] or 0 for what in _WHATS}
    with module as data:
        loaders = {
            "train_dataloaders": _Loader(
                plan, data.train_data(), plan.train_steps(*place), ahead["train"]
            )
        }
        if plan.has_val:
            loaders["val_dataloaders"] = _Loader(
                plan, data.val_data(), plan.val_steps(*place), ahead["val"]
            )
        try:
            yield loaders
        finally:
            for loader in loaders.values():
                loader.close_async_loader()


def _newest(plan: Plan, checkpoints: Sequence[str]) -> dict[str, Any] | None:
    """The newest checkpoint, loaded without running pickled code."""
    if not checkpoints:
        return None
    store = plan.remote.store
    newest = max(checkpoints, key=lambda path: (store.fs.modified(path), path))
    state: dict[str, Any] = torch.load(
        io.BytesIO(store.read(newest)), weights_only=True, map_location="cpu"
    )
    return state


@torch.no_grad()
def _sizes(plan: Plan, model: Any, floats: str) -> list[int]:
    """The numbers in one row of each output, computed with a row of zeros."""
    model.eval()
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    columns = [plan.columns[name] for name in plan.features]
    rows = [
        np.zeros((1, *column.shape), floats if column.dtype.startswith("float") else column.dtype)
        for column in columns
    ]
    inputs = inputs_of(
        [torch.as_tensor(row, device=device) for row in rows], plan.params["input_shapes"]
    )
    return [output.numel() for output in outputs_of(model(*inputs))]


class History(Callback):
    """The logged values of each epoch, as means over the ranks."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.rows: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the epoch, after its validation."""
        mine = {name: float(value) for name, value in trainer.callback_metrics.items()}
        found = hvd.allgather_object(mine, name="estimator.metrics")
        means = {name: sum(other[name] for other in found) / len(found) for name in mine}
        row: dict[str, Any] = {"epoch": trainer.current_epoch, "train": {}}
        for name, value in means.items():
            what = "validation" if name.startswith("val") else "train"
            row.setdefault(what, {})[name] = value
        self.rows.append(row)
        if self._plan.params["verbose"] and hvd.rank() == 0:
            numbers = "  ".join(f"{name} {value:.4f}" for name, value in means.items())
            print(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {numbers}", flush=True)


class EndOnNan(Callback):
    """Ends the training with ValueError."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the loss."""
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if loss is not None and not math.isfinite(float(loss)):
            raise ValueError(f"the loss of step {trainer.global_step} is {float(loss)}")


class Upload(Callback):
    """Uploads checkpoints and logs into the store, and deletes those that Lightning deletes."""

    def __init__(self, plan: Plan, folder: str) -> None:
        self._remote = plan.remote
        self._folder = folder
        self._sent: set[str] = set()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Upload the files of the epoch before."""
        self._send()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Upload the files of the last epoch."""
        self._send()

    def _send(self) -> None:
        if hvd.rank() != 0:
            return
        store, found = self._remote.store, set()
        for parent, _, names in os.walk(self._folder):
            for path in (os.path.join(parent, name) for name in names):
                found.add(path)
                # A checkpoint does not change, a log does.
                if path not in self._sent or not path.endswith(".ckpt"):
                    with open(path, "rb") as file:
                        store.write(self._target(path), file.read())
        for path in self._sent - found:
            store.fs.rm(self._target(path))
        self._sent = found

    def _target(self, path: str) -> str:
        inside = os.path.relpath(path, self._folder).replace(os.sep, posixpath.sep)
        return f"{self._remote.run_path}/{inside}"
