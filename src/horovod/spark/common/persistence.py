"""Estimators and models as MLlib saves and loads them.

What JSON cannot say (models, functions) is pickled: load only what you trust.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import cloudpickle
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)

from horovod.launch.calls import by_value
from horovod.spark.common.declaration import Declared

__all__ = ["Persistent"]

_PLAIN, _PICKLED, _PACKED = "value", "pickled", "packed"


class Persistent(Declared, MLReadable[Any], MLWritable):
    """``save``, ``write``, ``load`` and ``read``, also as a stage of a ``Pipeline``."""

    def write(self) -> MLWriter:
        """As MLlib's: ``write().overwrite().save(path)``."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """As MLlib's: ``read().load(path)``. Unpickles what is there: load only what you trust."""
        return _Reader(cls)

    @classmethod
    def packed(cls, name: str, value: Any) -> bytes | None:
        """A param's value in a form of the framework's own; None to pickle it."""
        return None

    @classmethod
    def unpacked(cls, name: str, data: bytes, custom_objects: Any) -> Any:
        """What ``packed`` has made."""
        raise NotImplementedError


class _Writer(MLWriter):
    def __init__(self, instance: Persistent) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:  # noqa: N802
        """Write all params but those that live here only."""
        instance = self._instance
        saved = {
            param.name: _encoded(type(instance), param.name, value)
            for param, value in instance._paramMap.items()
            if instance.parameters[param.name].is_saved
        }
        instance_without_defaults = instance.copy()
        instance_without_defaults._defaultParamMap.clear()
        DefaultParamsWriter.saveMetadata(
            instance_without_defaults, path, self.sparkSession, paramMap=saved
        )


class _Reader(MLReader[Any]):
    def __init__(self, kind: type[Persistent]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        """An instance like the one that was saved.

        Raises:
            ValueError: something else was saved there.
        """
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        expected = f"{self._kind.__module__}.{self._kind.__name__}"
        if metadata["class"] != expected:
            raise ValueError(f"{path} holds a {metadata['class']}, not a {expected}")
        instance = self._kind()
        instance._resetUid(metadata["uid"])
        saved = metadata["paramMap"]
        objects = _decoded(self._kind, "custom_objects", saved.get("custom_objects"), None)
        for name, encoded in saved.items():
            instance._set(**{name: _decoded(self._kind, name, encoded, objects)})
        return instance


def _encoded(kind: type[Persistent], name: str, value: Any) -> dict[str, Any]:
    packed = kind.packed(name, value)
    if packed is not None:
        return {_PACKED: base64.b64encode(packed).decode()}
    try:
        if json.loads(json.dumps(value)) == value:
            return {_PLAIN: value}
    except (TypeError, ValueError):
        pass
    return {_PICKLED: base64.b64encode(by_value.dumps(value)).decode()}


def _decoded(
    kind: type[Persistent], name: str, encoded: dict[str, Any] | None, objects: Any
) -> Any:
    if encoded is None:
        return None
    if _PLAIN in encoded:
        return encoded[_PLAIN]
    if _PACKED in encoded:
        return kind.unpacked(name, base64.b64decode(encoded[_PACKED]), objects)
    return cloudpickle.loads(base64.b64decode(encoded[_PICKLED]))
