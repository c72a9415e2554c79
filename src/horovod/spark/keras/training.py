"""The training in each process of a ``KerasEstimator``; models as bytes without pickle."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import keras
import numpy as np

import horovod.keras as hvd
from horovod.spark.common.base_store import upload
from horovod.spark.common.columns import Array
from horovod.spark.common.plan import Plan, gpu_number

_NAME = "model.keras"

_BEST = "checkpoint"


class KerasPlan(NamedTuple):
    """A plan with the bytes of ``model_bytes`` and the result of ``optimizer_config``."""

    plan: Plan
    model: bytes
    optimizer: dict[str, Any]
    checkpoint: str | None

    def new_model(self) -> Any:
        """The model as it was given, not compiled."""
        return model_of(self.model, self.plan.params["custom_objects"], is_trusted=True)


class KerasResult(NamedTuple):
    """The result of rank 0; ``sizes`` are the numbers in one row of each output."""

    history: dict[str, list[float]]
    model: bytes
    optimizer: dict[str, Any]
    sizes: list[int]


def train(job: KerasPlan) -> KerasResult | None:
    """Train on this process's shard; None on ranks other than 0."""
    hvd.init()
    plan, params = job.plan, job.plan.params
    plan.prepare_process()
    if params["use_gpu"] and "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu_number())
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if params["random_seed"] is not None:
        keras.utils.set_random_seed(params["random_seed"] + hvd.rank())
    with plan.remote.get_local_output_dir() as folder:
        model = _compiled(job, folder)
        checkpoint = _checkpoint_callback(job, folder)
        with plan.open_data(hvd.rank(), hvd.size(), keras.backend.floatx()) as data:
            feed = _Feed(job, model)
            val_data = feed.over(data.val_data()) if plan.has_val else None
            history = model.fit(
                feed.over(data.train_data()),
                steps_per_epoch=plan.train_steps(hvd.rank(), hvd.size()),
                epochs=params["epochs"],
                validation_data=val_data,
                validation_steps=plan.val_steps(hvd.rank(), hvd.size()) or None,
                callbacks=_callbacks(job, checkpoint, folder),
                verbose=2 if params["verbose"] and hvd.rank() == 0 else 0,
                shuffle=False,
            )
        if hvd.rank() != 0:
            return None
        if os.path.exists(checkpoint.filepath):
            model.load_weights(checkpoint.filepath)
        return _result(job, model, history.history, feed.first)


class _Feed:
    """Batches for ``fit``, without an end."""

    def __init__(self, job: KerasPlan, model: Any) -> None:
        self._job = job
        self._model = model
        self.first: Mapping[str, Any] | None = None

    def over(self, data: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
        """The batches of all epochs."""
        while True:
            for batch in data:
                self.first = self.first or {name: array[:1] for name, array in batch.items()}
                yield self._parts(batch)

    def inputs(self, batch: Mapping[str, Any]) -> Any:
        """The inputs of the model."""
        return shaped_inputs(self._model, [batch[name] for name in self._job.plan.features])

    def _parts(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        plan = self._job.plan
        shapes = plan.params["label_shapes"]
        labels = shaped_labels([batch[name] for name in plan.labels], shapes)
        if plan.weight is None:
            return self.inputs(batch), labels
        weights = np.asarray(batch[plan.weight], keras.backend.floatx())
        every = weights if len(plan.labels) == 1 else (weights,) * len(plan.labels)
        return self.inputs(batch), labels, every


def _compiled(job: KerasPlan, folder: str) -> Any:
    """The compiled model: new, or from the checkpoint."""
    plan, params = job.plan, job.plan.params
    optimizer = optimizer_of(job.optimizer, params["custom_objects"])
    learning_rate = _learning_rate(optimizer)
    model = job.new_model()
    compression = params["gradient_compression"] or hvd.Compression.none
    compile_model(plan, model, hvd.DistributedOptimizer(optimizer, compression=compression))
    if job.checkpoint is not None:
        path = os.path.join(folder, f"resumed{_ending(job)}")
        with open(path, "wb") as file:
            file.write(plan.remote.store.read(job.checkpoint))
        # The optimizer's state is among the weights of a compiled model.
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
        os.remove(path)
    if learning_rate is not None:
        model.optimizer.learning_rate = learning_rate * hvd.size()
    return model


def compile_model(plan: Plan, model: Any, optimizer: Any) -> None:
    """Compile a model with the losses and metrics of the plan."""
    params = plan.params
    metrics = params["metrics"] or None
    model.compile(optimizer, params["loss"], loss_weights=params["loss_weights"], metrics=metrics)


def _learning_rate(optimizer: Any) -> float | None:
    """The learning rate; None for a schedule, which does not change."""
    value = optimizer.learning_rate
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return None
    return float(keras.backend.get_value(value) if hasattr(keras.backend, "get_value") else value)


def _ending(job: KerasPlan) -> str:
    callback = job.plan.params["checkpoint_callback"]
    return ".weights.h5" if getattr(callback, "save_weights_only", False) else ".keras"


def _checkpoint_callback(job: KerasPlan, folder: str) -> Any:
    callback = job.plan.params["checkpoint_callback"]
    if callback is None:
        monitored = "val_loss" if job.plan.has_val else "loss"
        callback = hvd.callbacks.BestModelCheckpoint(monitor=monitored)
    callback.filepath = os.path.join(folder, f"{_BEST}{_ending(job)}")
    return callback


def _callbacks(job: KerasPlan, checkpoint: Any, folder: str) -> list[Any]:
    params = job.plan.params
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        *params["callbacks"],
    ]
    if hvd.rank() == 0:
        callbacks.append(checkpoint)
        if job.plan.remote.saving_runs:
            callbacks += [_logs(job, folder), _Upload(job.plan, checkpoint, folder)]
    return callbacks


def _logs(job: KerasPlan, folder: str) -> Any:
    """A callback that writes logs: TensorBoard's if it is installed."""
    path = os.path.join(folder, job.plan.remote.logs_subdir)
    os.makedirs(path)
    if all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))):
        return keras.callbacks.TensorBoard(path)
    return keras.callbacks.CSVLogger(os.path.join(path, "epochs.csv"))


class _Upload(keras.callbacks.Callback):
    """Uploads checkpoint and logs into the store after each epoch."""

    def __init__(self, plan: Plan, checkpoint: Any, folder: str) -> None:
        super().__init__()
        self._remote = plan.remote
        self._checkpoint = checkpoint
        self._folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Upload the files."""
        remote, path = self._remote, self._checkpoint.filepath
        if remote.checkpoint_path is not None and os.path.exists(path):
            with open(path, "rb") as file:
                remote.store.write(remote.checkpoint_path, file.read())
        logs = os.path.join(self._folder, remote.logs_subdir)
        upload(remote.store, f"{remote.run_path}/{remote.logs_subdir}", logs)


def _result(
    job: KerasPlan, model: Any, history: Mapping[str, Any], row: Mapping[str, Any] | None
) -> KerasResult:
    learning_rate = _learning_rate(model.optimizer)
    config = dict(job.optimizer)
    if learning_rate is not None:
        config["config"] = {**config["config"], "learning_rate": learning_rate / hvd.size()}
    assert row is not None
    found = model.predict_on_batch(_Feed(job, model).inputs(row))
    outputs = found if isinstance(found, list | tuple) else [found]
    plain = job.new_model()
    plain.set_weights(model.get_weights())
    numbers = {name: [float(value) for value in values] for name, values in history.items()}
    sizes = [int(np.prod(np.shape(output)[1:])) for output in outputs]
    return KerasResult(numbers, model_bytes(plain), config, sizes)


def model_bytes(model: Any) -> bytes:
    """A model in Keras's file format."""
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        path = os.path.join(folder, _NAME)
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def model_of(data: bytes, custom_objects: Mapping[str, Any] | None, is_trusted: bool) -> Any:
    """The model in ``data``, not compiled.

    Args:
        data: a result of ``model_bytes``.
        custom_objects: the user's classes and functions, by name.
        is_trusted: whether Python code in the file (lambdas) may run.
    """
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        path = os.path.join(folder, _NAME)
        with open(path, "wb") as file:
            file.write(data)
        return keras.models.load_model(
            path, custom_objects=custom_objects, compile=False, safe_mode=not is_trusted
        )


def optimizer_config(optimizer: Any) -> dict[str, Any]:
    """The class and settings of an optimizer, without its state."""
    config: dict[str, Any] = keras.optimizers.serialize(keras.optimizers.get(optimizer))
    return config


def optimizer_of(config: dict[str, Any], custom_objects: Mapping[str, Any] | None) -> Any:
    """A new optimizer with this class and these settings."""
    return keras.optimizers.deserialize(config, custom_objects=dict(custom_objects or {}))


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
