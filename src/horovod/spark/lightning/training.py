"""The training in each process of a Lightning ``TorchEstimator``."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from horovod.spark.lightning.callbacks import EndOnNan, History, Upload
from horovod.spark.lightning.legacy import to_lightning_module
from horovod.spark.torch.losses import losses_of
from horovod.spark.torch.shapes import inputs_of, outputs_of
from horovod.spark.torch.training import TorchResult, adopt, float_dtype, pick_device, state_bytes

_WHATS = ("train", "val")


@dataclass(frozen=True)
class LightningPlan:
    """A plan with Lightning's additions.

    ``trained`` is the pickled model and optimizer; ``checkpoints`` are the paths of the run's
    checkpoints.
    """

    plan: Plan
    trained: bytes
    loss: Any
    loss_constructors: Any
    checkpoints: Sequence[str]
    params: Mapping[str, Any]


def train(job: LightningPlan) -> TorchResult | None:
    """Train on this process's shard; None on ranks other than 0."""
    hvd.init()
    plan, params = job.plan, job.plan.params
    plan.prepare_process()
    device = pick_device(params["use_gpu"] and job.params["num_gpus"] != 0)
    if params["random_seed"] is not None:
        torch.manual_seed(params["random_seed"] + hvd.rank())
    model, optimizer = cloudpickle.loads(job.trained)
    if optimizer is not None:
        adopt(optimizer, model)
    module = _module(job, model, optimizer)
    saved = _newest(job)
    if saved is not None:
        module.load_state_dict(saved["state_dict"])
    floats = float_dtype(model)
    history = History(plan)
    with plan.remote.get_local_output_dir() as folder, _loaders(job, floats) as loaders:
        states = None if saved is None else saved["optimizer_states"]
        trainer = _trainer(job, device, folder, history, states)
        trainer.fit(module, **loaders)
    if hvd.rank() != 0:
        return None
    state = state_bytes(model, None if optimizer is None else trainer.optimizers[0])
    return TorchResult(history.rows, state, _sizes(job, model, floats), floats)


def _module(job: LightningPlan, model: Any, optimizer: Any) -> LightningModule:
    if isinstance(model, LightningModule):
        return model
    plan = job.plan
    return to_lightning_module(
        model,
        optimizer,
        losses_of(job.loss, job.loss_constructors, len(plan.labels)),
        plan.params["loss_weights"],
        plan.features,
        plan.labels,
        plan.weight,
        job.params["label_shapes"],
        plan.params["metrics"],
    )


def _trainer(
    job: LightningPlan, device: torch.device, folder: str, history: History, optimizer_states: Any
) -> Trainer:
    plan, params = job.plan, job.params
    compression = plan.params["gradient_compression"]
    is_shown = bool(plan.params["verbose"])
    logs = os.path.join(folder, plan.remote.logs_subdir)
    own = {
        "accelerator": "gpu" if device.type == "cuda" else "cpu",
        "devices": 1 if device.type == "cpu" else [device.index],
        "strategy": HorovodStrategy(device, compression, optimizer_states),
        "max_epochs": plan.params["epochs"],
        "limit_train_batches": plan.params["train_steps_per_epoch"] or 1.0,
        "limit_val_batches": plan.params["validation_steps_per_epoch"] or 1.0,
        "accumulate_grad_batches": params["backward_passes_per_step"],
        "callbacks": _callbacks(job, folder, history),
        "logger": params["logger"] or CSVLogger(logs, name="", version=""),
        "log_every_n_steps": params["log_every_n_steps"],
        "profiler": params["profiler"],
        "num_sanity_val_steps": 0,
        "enable_progress_bar": False,
        "enable_model_summary": is_shown,
        "default_root_dir": folder,
        "use_distributed_sampler": False,
        # Otherwise Lightning looks for launchers and may load a broken MPI library.
        "plugins": [LightningEnvironment()],
    }
    return Trainer(**{**own, **(params["trainer_args"] or {})})


def _callbacks(job: LightningPlan, folder: str, history: History) -> list[Callback]:
    remote = job.plan.remote
    callbacks = list(job.plan.params["callbacks"])
    checkpoints = os.path.join(folder, remote.checkpoint_filename)
    found = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    for callback in found:
        callback.dirpath = callback.dirpath or checkpoints
    if remote.saving_runs and not found:
        callbacks.append(ModelCheckpoint(checkpoints, filename="{epoch:06d}", save_top_k=1))
    if job.params["terminate_on_nan"]:
        callbacks.append(EndOnNan())
    callbacks.append(history)
    return [*callbacks, Upload(job.plan, folder)] if remote.saving_runs else callbacks


class _Loader(AsyncDataLoaderMixin, BaseDataLoader):
    """Batches of tensors, with features in their shapes."""

    def __init__(
        self, job: LightningPlan, data: Iterable[Mapping[str, Any]], steps: int, ahead: int
    ) -> None:
        self._job = job
        self._data = data
        self._steps = steps
        super().__init__(
            async_loader_queue_size=ahead, debug_data_loader=job.params["debug_data_loader"]
        )

    def __len__(self) -> int:
        return self._steps

    def _iterate(self) -> Iterator[dict[str, torch.Tensor]]:
        features, shapes = self._job.plan.features, self._job.params["input_shapes"]
        for batch in self._data:
            tensors = {name: torch.as_tensor(array) for name, array in batch.items()}
            shaped = inputs_of([tensors[name] for name in features], shapes)
            yield {**tensors, **dict(zip(features, shaped, strict=True))}


@contextmanager
def _loaders(job: LightningPlan, floats: str) -> Iterator[dict[str, Any]]:
    """The data arguments of ``fit``: a data module of Lightning, or loaders over one of ours."""
    plan, place = job.plan, (hvd.rank(), hvd.size())
    module: Any = plan.open_data(*place, floats)
    if isinstance(module, LightningDataModule):
        yield {"datamodule": module}
        return
    ahead = {what: job.params[f"{what}_async_data_loader_queue_size"] or 0 for what in _WHATS}
    with module as data:
        loaders = {
            "train_dataloaders": _Loader(
                job, data.train_data(), plan.train_steps(*place), ahead["train"]
            )
        }
        if plan.has_val:
            loaders["val_dataloaders"] = _Loader(
                job, data.val_data(), plan.val_steps(*place), ahead["val"]
            )
        try:
            yield loaders
        finally:
            for loader in loaders.values():
                loader.close_async_loader()


def _newest(job: LightningPlan) -> dict[str, Any] | None:
    """The newest checkpoint, loaded without running pickled code."""
    if not job.checkpoints:
        return None
    store = job.plan.remote.store
    newest = max(job.checkpoints, key=lambda path: (store.fs.modified(path), path))
    state: dict[str, Any] = torch.load(
        io.BytesIO(store.read(newest)), weights_only=True, map_location="cpu"
    )
    return state


@torch.no_grad()
def _sizes(job: LightningPlan, model: Any, floats: str) -> list[int]:
    """The numbers in one row of each output, computed with a row of zeros."""
    model.eval()
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    columns = [job.plan.columns[name] for name in job.plan.features]
    rows = [
        np.zeros((1, *column.shape), floats if column.dtype.startswith("float") else column.dtype)
        for column in columns
    ]
    inputs = inputs_of(
        [torch.as_tensor(row, device=device) for row in rows], job.params["input_shapes"]
    )
    return [output.numel() for output in outputs_of(model(*inputs))]
