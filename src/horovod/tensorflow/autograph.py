"""Stops AutoGraph from translating the code of this package.

Inside of ``tf.function`` it would translate every called function into one that builds conditions
and loops from tensors. Functions here decide in Python, and translating them takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def not_converted(function: F) -> F:
    """Decorator: the function, and all that it calls, runs untranslated."""
    return cast(F, tf.autograph.experimental.do_not_convert(function))
