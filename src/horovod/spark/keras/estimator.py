"""``KerasEstimator`` and ``KerasModel``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import cloudpickle
import keras
import numpy as np

from horovod.launch.calls import by_value
from horovod.spark.common.backend import Backend
from horovod.spark.common.columns import Array
from horovod.spark.common.declaration import Parameter, declares
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel, require, results_of
from horovod.spark.common.plan import Plan
from horovod.spark.keras import training

_CUSTOM_OBJECTS = Parameter({}, "the user's classes and functions, by name")


class _KerasFormat:
    """Saves params in Keras's own formats."""

    @classmethod
    def to_bytes(cls, name: str, value: Any) -> bytes | None:
        """A model or an optimizer in Keras's own format."""
        if name == "model":
            return training.model_bytes(value)
        if name == "optimizer":
            return json.dumps(training.optimizer_config(value)).encode()
        return None

    @classmethod
    def from_bytes(cls, name: str, data: bytes, custom_objects: Any) -> Any:
        """The inverse of ``to_bytes``."""
        if name == "model":
            return training.model_of(data, custom_objects, is_trusted=False)
        return training.optimizer_of(json.loads(data), custom_objects)


@declares(
    {
        "custom_objects": _CUSTOM_OBJECTS,
        "checkpoint_callback": Parameter(None, "ModelCheckpoint that selects the model"),
        "backend_env": Parameter(
            {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}, "environment of the processes"
        ),
    }
)
class KerasEstimator(_KerasFormat, HorovodEstimator):
    """Trains a Keras model on a DataFrame; all arguments are keywords.

    Columns of ``feature_cols`` are the model's inputs; columns of ``label_cols`` are the labels of
    its outputs, in order and in the model's shapes. During training the learning rate is multiplied
    by the number of processes. The result is the model of the epoch with the smallest loss (on
    validation data, if there are any), or the one that ``checkpoint_callback`` keeps.

        estimator = KerasEstimator(num_proc=2, store=store, model=model, optimizer=optimizer,
                                   loss="sparse_categorical_crossentropy", metrics=["accuracy"],
                                   feature_cols=["features"], label_cols=["label"], epochs=10)
        predictions = estimator.fit(train_df).transform(test_df)

    See docs/estimators.md for all params.

    Raises:
        TypeError: an argument is no param.
        ValueError: a param's value is unusable.
    """

    _run_prefix = "keras"

    def _check(self) -> None:
        model = self.value("model")
        if not isinstance(model, keras.Model):
            raise ValueError(f"model has to be a keras.Model, not {type(model).__name__}")
        require(self, "loss", "Loss parameter is required for the model to compile")
        if self._given_optimizer() is None:
            raise ValueError("Optimizer parameter is required, or a compiled model")

    def _given_optimizer(self) -> Any:
        return self.value("optimizer") or getattr(self.value("model"), "optimizer", None)

    def _train(self, backend: Backend, plan: Plan, checkpoint: str | None) -> KerasModel:
        model, custom_objects = self.value("model"), self.value("custom_objects")
        training.check_shapes(plan, model)
        optimizer = training.optimizer_config(self._given_optimizer())
        job = training.KerasPlan(plan, training.model_bytes(model), optimizer, checkpoint)
        result = backend.run(training.train, args=(job,), env=self._environment())[0]
        trained = training.model_of(result.model, custom_objects, is_trusted=True)
        used = training.optimizer_of(result.optimizer, custom_objects)
        training.compile_model(plan, trained, used)
        floats = keras.backend.floatx()
        return KerasModel(
            model=trained,
            custom_objects=custom_objects,
            _floatx=floats,
            **results_of(plan, result.history, result.sizes, floats),
        )

    def _environment(self) -> dict[str, str]:
        chosen = getattr(keras.backend, "backend", None)
        environment = {"KERAS_BACKEND": str(chosen())} if chosen else {}
        if not self.value("use_gpu"):
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return {**environment, **(self.value("backend_env") or {})}


@declares(
    {
        "custom_objects": _CUSTOM_OBJECTS,
        "_floatx": Parameter("float32", "dtype of floating-point numbers", getter="getFloatx"),
    }
)
class KerasModel(_KerasFormat, HorovodModel):
    """A trained Keras model; ``getHistory()`` is the ``history`` of Keras's ``fit``."""

    @staticmethod
    def _predictor(data: bytes) -> Any:
        _hide_gpus()
        saved, custom_objects = cloudpickle.loads(data)
        return partial(_predict, training.model_of(saved, custom_objects, is_trusted=True))

    def _predictor_data(self) -> bytes:
        saved = training.model_bytes(self.value("model"))
        return by_value.dumps((saved, self.value("custom_objects")))

    def _floats(self) -> str:
        return str(self.value("_floatx"))


def _hide_gpus() -> None:
    """Keep TensorFlow off the GPUs: each of the predicting tasks has one core only."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        with suppress(RuntimeError):  # TensorFlow is initialized already
            tensorflow.config.set_visible_devices([], "GPU")


def _predict(model: Any, features: Sequence[Array]) -> list[Array]:
    found = model.predict_on_batch(training.shaped_inputs(model, features))
    if isinstance(found, Mapping):
        return [np.asarray(found[name]) for name in found]
    return [np.asarray(one) for one in found] if isinstance(found, list | tuple) else [found]
