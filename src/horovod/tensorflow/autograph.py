"""Keeps AutoGraph away from our code.

Inside of ``tf.function`` it would translate every function that is called into one that builds
conditions and loops from tensors. Ours decide in Python, and translating them takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

__all__ = ["not_converted"]

F = TypeVar("F", bound=Callable[..., Any])


def not_converted(function: F) -> F:
    """Decorator for what users call: it runs as it is written, and so does all that it calls."""
    return cast(F, tf.autograph.experimental.do_not_convert(function))
