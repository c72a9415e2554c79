"""Keras models and optimizers as bytes: in Keras's own file format, which is no pickle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import keras

__all__ = ["model_bytes", "model_of", "optimizer_config", "optimizer_of"]

_NAME = "model.keras"


def model_bytes(model: Any) -> bytes:
    """A model with all that Keras saves of it."""
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        path = os.path.join(folder, _NAME)
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def model_of(data: bytes, custom_objects: Mapping[str, Any] | None, is_trusted: bool) -> Any:
    """The model in ``data``, not compiled.

    Args:
        data: what ``model_bytes`` has made.
        custom_objects: classes and functions that Keras does not know, by name.
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
    """Class and settings of an optimizer, without its state."""
    config: dict[str, Any] = keras.optimizers.serialize(keras.optimizers.get(optimizer))
    return config


def optimizer_of(config: dict[str, Any], custom_objects: Mapping[str, Any] | None) -> Any:
    """A new optimizer of that class with those settings."""
    return keras.optimizers.deserialize(config, custom_objects=dict(custom_objects or {}))
