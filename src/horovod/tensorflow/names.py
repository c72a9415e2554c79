"""Names of operations: the same on every rank, in whatever order ranks run them.

The engine matches operations by name. In a graph a name belongs to one node, so it is taken from
the node's scope and made unique in the graph; graphs that ranks build alike get the same names.
Eagerly one operation runs after the other, so a name may be used again at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.operations import Kind

_NO_WORD = re.compile(r"\W", re.ASCII)
# The characters of a node's name in TensorFlow; a name begins with a letter, digit or dot.
_NO_NODE = re.compile(r"[^A-Za-z0-9_./-]")
_NODE_BEGIN = re.compile(r"[A-Za-z0-9.]")
_RUNNING_NUMBER = re.compile(r"_\d+(?=_|$)", re.ASCII)


def op_type_of(kind: Kind, is_group: bool = False) -> str:
    """The type of a collective's nodes, such as "HorovodAllreduce"; of groups only a name."""
    return f"Horovod{'Grouped' if is_group else ''}{kind.name.capitalize()}"


def name_of(op_type: str, name: str | None, tensor: Any, ignore_name_scope: bool = False) -> str:
    """The engine's name for an operation on one tensor.

    Args:
        op_type: the default name, in graphs followed by the name of the tensor.
        name: what the caller gave.
        tensor: its input.
        ignore_name_scope: in a graph, be outside of the current name scope.
    """
    if tf.executing_eagerly():
        return op_type if name is None else name
    return _in_graph(name or op_type + _suffix_of(tensor), ignore_name_scope)


def group_name(op_type: str, name: str | None, ignore_name_scope: bool = False) -> str:
    """The engine's name for an operation on a group of tensors."""
    name = op_type if name is None else name
    return name if tf.executing_eagerly() else _in_graph(name, ignore_name_scope)


def names_of(op_type: str, names: Sequence[str | None], tensors: Sequence[Any]) -> list[str]:
    """The engine's names for operations that one node starts."""
    pairs = zip(names, tensors, strict=True)
    return [name_of(op_type, name, tensor) for name, tensor in pairs]


def derived(names: Sequence[str], suffix: str) -> list[str]:
    """Names for operations that follow from those named: gradients and what they need."""
    wanted = [f"{name}_{suffix}" for name in names]
    # The names of the forward pass already have the scope.
    return wanted if tf.executing_eagerly() else [_unique(name) for name in wanted]


def normalized(name: str) -> str:
    """``name`` with underscores in place of all characters but letters, digits and underscores."""
    return _NO_WORD.sub("_", name)


def node_name(op_type: str, names: Sequence[str], is_group: bool = False) -> str:
    """The name of the graph node that runs these operations.

    The name is unique in the graph already. A slash at its end makes TensorFlow keep it unchanged.
    """
    if not is_group and len(names) > 1:
        return op_type
    return names[0] if tf.executing_eagerly() else f"{names[0]}/"


def _in_graph(name: str, ignore_name_scope: bool) -> str:
    graph = tf.compat.v1.get_default_graph()
    scope = "" if ignore_name_scope else graph.get_name_scope()
    return _unique("/".join([*_functions_around(graph), *filter(None, [scope, name])]))


def _functions_around(graph: Any) -> list[str]:
    """The names of a graph and of the graphs around it, without the outermost one.

    These are functions, branches and loop bodies. They may run at the same time as the graphs
    around them. TensorFlow's own names for them have running numbers, which differ between ranks.
    """
    names: list[str] = []
    while _is_inner(graph):
        word = _NO_WORD.sub("", _RUNNING_NUMBER.sub("", graph.name)).strip("_")
        names.insert(0, word or "function")
        graph = graph.outer_graph
    return names


def _is_inner(graph: Any) -> bool:
    return isinstance(graph, tf.__internal__.FuncGraph) and (
        isinstance(graph.outer_graph, tf.__internal__.FuncGraph)
    )


def _unique(name: str) -> str:
    """``name``, or that with a number: unique in the graph and in all functions it is part of."""
    outermost = graph = tf.compat.v1.get_default_graph()
    while _is_inner(outermost):
        outermost = outermost.outer_graph
    taken: set[str] = getattr(outermost, "_horovod_names", set())
    outermost._horovod_names = taken
    name = _NO_NODE.sub("_", name)
    name = name if _NODE_BEGIN.match(name) else f".{name}"
    with graph.name_scope(None):
        unique: str = graph.unique_name(name)
        while unique in taken:
            unique = graph.unique_name(name)
    taken.add(unique)
    return unique


def _suffix_of(tensor: Any) -> str:
    # A tensor from outside of the graph has a number as its name, which differs between ranks.
    if not tf.is_symbolic_tensor(tensor) or tensor.name[0].isdigit():
        return ""
    return "_" + normalized(tensor.name)
