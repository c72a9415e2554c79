"""Spark ML params from a table: one line gives param, default, check, setter and getter.

They are saved as in MLlib. Values that JSON cannot represent (models, functions) are pickled: load
only files that you trust.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import cloudpickle
from pyspark.ml import util
from pyspark.ml.param import Param, Params

from horovod.launch.calls import by_value

_PLAIN, _PICKLED, _PACKED = "value", "pickled", "packed"

Check = Callable[[str, Any], None]
C = TypeVar("C", bound="type[Declared]")


class Parameter(NamedTuple):
    """One param of a class.

    Args:
        default: the value if it is not set.
        doc: its meaning.
        check: raises ``ValueError`` for an unusable value.
        setter, getter: names of the accessors; by default ``setName`` and ``getName``.
        is_saved: whether it is saved with the instance.
    """

    default: Any
    doc: str
    check: Check | None = None
    setter: str | None = None
    getter: str | None = None
    is_saved: bool = True


class Declared(Params):
    """A class with params from a table; the constructor takes them as keywords."""

    parameters: Mapping[str, Parameter] = {}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        for name, parameter in self.parameters.items():
            self._setDefault(**{name: parameter.default})
        self.setParams(**kwargs)

    def setParams(self, **kwargs: Any) -> Declared:  # noqa: N802
        """Set params by their names.

        Raises:
            TypeError: there is no param of a name.
            ValueError: a value is unusable.
        """
        unknown = sorted(set(kwargs) - set(self.parameters))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no parameters {', '.join(unknown)}")
        self._set(**kwargs)
        return self

    def value(self, name: str) -> Any:
        """The value of a param, or its default."""
        return self.getOrDefault(self.getParam(name))


def declares(parameters: Mapping[str, Parameter]) -> Callable[[C], C]:
    """Give a class these params, in addition to those of its base."""

    def decorate(kind: C) -> C:
        kind.parameters = {**kind.parameters, **parameters}
        for name, parameter in parameters.items():
            _declare(kind, name, parameter)
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=parameter.default)
            for name, parameter in sorted(kind.parameters.items())
        ]
        kind.__signature__ = inspect.Signature(keywords)
        return kind

    return decorate


def at_least(least: float) -> Check:
    """Check that a value is a number of at least ``least``."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise ValueError(f"{name}={value!r}: it has to be a number of at least {least:g}")

    return check


def one_of(choices: Sequence[Any]) -> Check:
    """Check that a value is one of ``choices``."""

    def check(name: str, value: Any) -> None:
        if value not in choices:
            raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")

    return check


def _declare(kind: type[Declared], name: str, parameter: Parameter) -> None:
    def convert(value: Any) -> Any:
        if parameter.check is not None and value is not None:
            parameter.check(name, value)
        return value

    def set_value(self: Declared, value: Any) -> Declared:
        if value is None:
            self._paramMap.pop(self.getParam(name), None)
        else:
            self._set(**{name: value})
        return self

    def get_value(self: Declared) -> Any:
        return self.value(name)

    words = "".join(word.capitalize() for word in name.strip("_").split("_"))
    words = name[0].upper() + name[1:] if name != name.lower() else words
    setter, getter = parameter.setter or f"set{words}", parameter.getter or f"get{words}"
    set_value.__name__, set_value.__doc__ = setter, f"Set: {parameter.doc}."
    sentence = f"{parameter.doc[:1].upper()}{parameter.doc[1:]}."
    get_value.__name__, get_value.__doc__ = getter, sentence
    setattr(kind, name, Param(Params._dummy(), name, parameter.doc, convert))
    setattr(kind, setter, set_value)
    setattr(kind, getter, get_value)


class Persistent(Declared, util.MLReadable[Any], util.MLWritable):
    """``save``, ``write``, ``load`` and ``read``, also as a stage of a ``Pipeline``."""

    def write(self) -> util.MLWriter:
        """As MLlib's: ``write().overwrite().save(path)``."""
        return _Writer(self)

    @classmethod
    def read(cls) -> util.MLReader[Any]:
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


class _Writer(util.MLWriter):
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
        util.DefaultParamsWriter.saveMetadata(
            instance_without_defaults, path, self.sparkSession, paramMap=saved
        )


class _Reader(util.MLReader[Any]):
    def __init__(self, kind: type[Persistent]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        """An instance like the one that was saved.

        Raises:
            ValueError: an instance of another class was saved there.
        """
        metadata = util.DefaultParamsReader.loadMetadata(path, self.sparkSession)
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
