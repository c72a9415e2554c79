"""Which gradients leave together: the ``groups`` argument of optimizers and tapes, and batches.

Also the part of their variables' names that all ranks agree about.

A binding gives ``key_of``, which tells one member of a group (a variable, a path) from another.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.core.compatibility import split_list

# As much as the engine starts at once while a core is spare. Large enough that a batch costs far
# more to move than to submit, small enough that the first one leaves early in backward.
BATCH_BYTES = 1 << 20
# The same for GPU memory, after a first batch of BATCH_BYTES: launches cost more there, NCCL is
# slow with small buckets, and nothing else waits for the processor that copies.
GPU_BATCH_BYTES = 25 << 20

_RUNNING_NUMBER = re.compile(r"_\d+(?=_|$)", re.ASCII)
_NO_WORD = re.compile(r"\W", re.ASCII)

Groups = int | Sequence[Sequence[Any]] | None


def check_groups(groups: Any, num_groups: int, key_of: Callable[[Any], Any]) -> Groups:
    """``groups`` as a number > 0 or lists of variables; None if nothing is grouped.

    Args:
        groups: what the user gave.
        num_groups: deprecated: the number, where ``groups`` is None.
        key_of: tells variables apart.

    Raises:
        ValueError: it is neither, or a variable is in two groups.
    """
    if num_groups != 0:
        warnings.warn("num_groups is deprecated; give the number as groups", DeprecationWarning, 3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, list | tuple):
        _check_lists(groups, key_of)
        return groups
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return groups
    raise ValueError(f"groups must be a number > 0 or a list of lists of variables, found {groups}")


def check_local_layers(local_layers: Any, layer_class: Callable[[], type]) -> list[Any]:
    """The layers that a user has given whose gradients stay on their rank: one, several or none.

    ``layer_class`` is called if there are some, for it may import Keras.

    Raises:
        ValueError: something else is among them.
    """
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, list | tuple) else [local_layers]
    for layer in layers:
        if not isinstance(layer, layer_class()):
            raise ValueError(
                f"local_layers must be a Keras layer or a list of Keras layers, found {layer!r}"
            )
    return layers


def split_into_groups(
    groups: Groups, keys: Mapping[int, Any], key_of: Callable[[Any], Any]
) -> tuple[list[list[int]], list[int]]:
    """Positions in groups, none of which is empty, and those that are in no group.

    Args:
        groups: what ``check_groups`` returned.
        keys: the key of the member at each position that there is, in their order. A member may be
            at several positions: the lists of variables of two models have those they share twice.
        key_of: tells members apart.
    """
    if groups is None:
        return [], list(keys)
    if isinstance(groups, int):
        pieces = split_list(list(keys), groups)
        return [list(piece) for piece in pieces if piece], []
    left: dict[Any, list[int]] = {}
    for position, key in keys.items():
        left.setdefault(key, []).append(position)
    chosen = [[p for m in group for p in left.pop(key_of(m), [])] for group in groups]
    return [group for group in chosen if group], [p for found in left.values() for p in found]


def leaf_of(variable: Any) -> str:
    """The last part of a variable's name: kernel, bias, gamma, embeddings, and so on.

    It has no running numbers. Layers have such numbers, too, and they differ between ranks once a
    rank has built one more model.
    """
    name = str(getattr(variable, "name", None) or "tensor").partition(":")[0].rpartition("/")[2]
    return _NO_WORD.sub("_", _RUNNING_NUMBER.sub("", name))


def batches_of(sizes_bytes: Sequence[int], limit_bytes: int) -> list[slice]:
    """Consecutive parts of at least ``limit_bytes`` each; the last one may be smaller.

    A batch starts when all its gradients are ready. Where a core is spare, several batches let the
    first gradients leave while others are still being computed. Elsewhere one batch costs least.
    """
    batches, begin, size_bytes = [], 0, 0
    for end, one in enumerate(sizes_bytes, start=1):
        size_bytes += one
        if size_bytes >= limit_bytes or end == len(sizes_bytes):
            batches.append(slice(begin, end))
            begin, size_bytes = end, 0
    return batches


def _check_lists(groups: Sequence[Any], key_of: Callable[[Any], Any]) -> None:
    seen: dict[Any, int] = {}
    for number, group in enumerate(groups):
        if not isinstance(group, list | tuple) or not all(hasattr(v, "assign") for v in group):
            raise ValueError(
                f"groups must be lists of variables, found {group!r} as group {number}"
            )
        for variable in group:
            key = key_of(variable)
            if key in seen:
                raise ValueError(
                    f"a variable can be in one group only; {variable.name!r} is in groups "
                    f"{seen[key]} and {number}"
                )
            seen[key] = number
