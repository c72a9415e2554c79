"""Keras models and optimizers as bytes and values, without pickle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import keras

_NAME = "model.keras"


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
