"""State of optimizers in HDF5 files, as Keras writes it.

Keras 3 writes it but, when it loads such a file, builds the optimizer before it knows the model's
variables, and the state is lost.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_optimizer_values"]

_GROUP, _NAMES = "optimizer_weights", "weight_names"


def read_optimizer_values(filepath: Any) -> list[NDArray[Any]]:
    """The values of an optimizer's variables, in its order; empty if the file has none."""
    if not str(filepath).endswith((".h5", ".hdf5")) or not os.path.isfile(filepath):
        return []
    import h5py

    with h5py.File(filepath, "r") as file:
        if _GROUP not in file:
            return []
        group = file[_GROUP]
        return [np.asarray(group[name]) for name in _names_of(group.attrs)]


def _names_of(attributes: Any) -> list[Any]:
    """One attribute, or, if it would be too long, several that are numbered."""
    parts = [_NAMES] if _NAMES in attributes else []
    while f"{_NAMES}{len(parts)}" in attributes:
        parts.append(f"{_NAMES}{len(parts)}")
    names = [name for part in parts for name in attributes[part]]
    return [name.decode() if isinstance(name, bytes) else name for name in names]
