"""A collective in a compiled program: a call of the plugin, and the name by which ranks match it.

A collective without a name gets one from its position in the program: ranks that compile the same
functions give the same names, whatever else they compile and however often.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from horovod.jax.call import ProgramCall
from horovod.jax.plugin import TARGET

# XLA runs programs whose buffers all have up to 512 bytes, and those of up to 8 steps, one step
# after the other. There a collective would wait for the one before it, and ranks whose programs
# have another order would wait for each other. So each call gets a larger constant.
_BALLAST = np.zeros(1024, np.uint8)


class _Positions:
    """Numbers the collectives of one program; kept among JAX's data of the program."""

    def __init__(self) -> None:
        self.next = count().__next__


def lower_to_plugin(ctx: Any, operands: Sequence[Any], call: ProgramCall) -> Any:
    """The operations of a program that do a call.

    Raises:
        NotImplementedError: the program runs on several devices of this process.
    """
    _check_devices(ctx.module_context, call)
    aliases = {position: position for position in range(len(operands))} if call.keeps_shape else {}
    # Otherwise XLA removes a call whose result has no elements, perhaps on one rank only.
    options = {"operand_output_aliases": aliases, "has_side_effect": True}
    lower = jax.ffi.ffi_lowering(TARGET, **options)
    aval = jax.core.ShapedArray(_BALLAST.shape, _BALLAST.dtype)
    return lower(
        ctx.replace(avals_in=[*ctx.avals_in, aval]),
        *operands,
        mlir.ir_constant(_BALLAST),
        names="\n".join(_names(ctx.module_context, call)),
        kind=np.int64(call.kind),
        op=np.int64(call.op),
        is_group=np.int64(call.is_group),
        is_zeroed=np.int64(call.is_zeroed),
        root_rank=np.int64(call.root_rank),
        prescale_factor=np.float64(call.prescale),
        postscale_factor=np.float64(call.postscale),
        process_set_id=np.int64(call.process_set),
    )


def _names(program: mlir.ModuleContext, call: ProgramCall) -> list[str]:
    return [
        f"{call.prefix}.{_program_name(program)}.{_positions(program).next()}"
        if name is None
        else name
        for name in call.full_names()
    ]


def _program_name(program: Any) -> str:
    return str(program.module.operation.attributes["sym_name"].value)


def _positions(program: Any) -> _Positions:
    for kept in program.keepalives:
        if isinstance(kept, _Positions):
            return kept
    program.keepalives.append(_Positions())
    positions: _Positions = program.keepalives[-1]
    return positions


def _check_devices(program: Any, call: ProgramCall) -> None:
    context = program.axis_context  # of jit or of shard_map
    mesh_size: int = getattr(getattr(context, "mesh", None), "size", 1)
    devices = max(mesh_size, getattr(context, "num_devices", None) or 1)
    if devices > 1:
        raise NotImplementedError(
            f"{call.title}: the program runs on {devices} devices of this process; "
            "inside of jit a collective needs a program on one device. Reduce sharded arrays "
            "outside of jit"
        )
