"""Our classes for one Keras: each gets the base that this Keras wants, and knows its Keras."""

from __future__ import annotations

from typing import Any

__all__ = ["with_base"]


def with_base(ours: type, base: type, keras: Any, module: str) -> Any:
    """A class of the same name that is also a ``base``; ``module`` is where it can be imported."""
    namespace = {"__module__": module, "__doc__": ours.__doc__, "_keras": keras}
    bases = (ours,) if issubclass(ours, base) else (ours, base)
    return type(ours.__name__, bases, namespace)
