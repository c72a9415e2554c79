"""Saving and loading of estimators and models, as in MLlib.

Values that JSON cannot represent (models, functions) are pickled: load only files that you trust.
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

_PLAIN, _PICKLED, _PACKED = "value", "pickled", "packed"


class Persistent(Declared, MLReadable[Any], MLWritable):
    """``save``, ``write``, ``load`` and ``read``, also as a stage of a ``Pipeline``."""

    def write(self) -> MLWriter:
        """As MLlib's: ``write().overwrite().save(path)``."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """As MLlib's: ``read().load(path)``. It unpickles: load only files that you trust."""
        return _Reader(cls)

    @classmethod
    def to_bytes(cls, name: str, value: Any) -> bytes | None:
        """A param's value in the framework's own format; None to pickle it."""
        return None

    @classmethod
    def from_bytes(cls, name: str, data: bytes, custom_objects: Any) -> Any:
        """The inverse of ``to_bytes``."""
        raise NotImplementedError


class _Writer(MLWriter):
    def __init__(self, instance: Persistent) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:  # noqa: N802
        """Write all params that are saved."""
        instance = self._instance
        saved = {
            param.name: _to_json(type(instance), param.name, value)
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
            ValueError: an instance of another class was saved there.
        """
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        expected = f"{self._kind.__module__}.{self._kind.__name__}"
        if metadata["class"] != expected:
            raise ValueError(f"{path} holds a {metadata['class']}, not a {expected}")
        instance = self._kind()
        instance._resetUid(metadata["uid"])
        saved = metadata["paramMap"]
        objects = _from_json(self._kind, "custom_objects", saved.get("custom_objects"), None)
        for name, saved_value in saved.items():
            instance._set(**{name: _from_json(self._kind, name, saved_value, objects)})
        return instance


def _to_json(kind: type[Persistent], name: str, value: Any) -> dict[str, Any]:
    packed = kind.to_bytes(name, value)
    if packed is not None:
        return {_PACKED: base64.b64encode(packed).decode()}
    try:
        if json.loads(json.dumps(value)) == value:
            return {_PLAIN: value}
    except (TypeError, ValueError):
        pass
    return {_PICKLED: base64.b64encode(by_value.dumps(value)).decode()}


def _from_json(
    kind: type[Persistent], name: str, saved_value: dict[str, Any] | None, objects: Any
) -> Any:
    if saved_value is None:
        return None
    if _PLAIN in saved_value:
        return saved_value[_PLAIN]
    if _PACKED in saved_value:
        return kind.from_bytes(name, base64.b64decode(saved_value[_PACKED]), objects)
    return cloudpickle.loads(base64.b64decode(saved_value[_PICKLED]))
