"""``DistributedOptimizer``: any optax transformation on the gradients of all ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod.core.compression import (
    LinkFormat,
    NoneCompressor,
    check_compressor,
    check_rounds,
    link_format_of,
)
from horovod.core.operations import Adasum, Average, Sharded, Sum, check_passes, check_sharded
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.jax.error_feedback import with_feedback
from horovod.jax.gradient_reduction import (
    GradientReduction,
    Groups,
    TransformationCompressor,
    already_distributed,
    check_groups,
)
from horovod.jax.sharded_optimizer import ShareReduction, share_step

__all__ = ["DistributedOptimizer", "PassesState"]


class PassesState(NamedTuple):
    """The state of an optimizer with several backward passes per step.

    Attributes:
        count: passes since the last step; int32.
        sums: the gradients of these passes, added up.
        inner_state: of the wrapped transformation.
    """

    count: Any
    sums: Any
    inner_state: Any


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str = "gradient",
    compression: Any = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    sharded: Sharded = False,
) -> Any:
    """Wrap an optax transformation so that it sees the gradients of all ranks.

    The result is an optax transformation itself: use it in ``optax.chain``, a flax ``TrainState``
    and so on, inside of ``jit`` or outside. Every rank has to give gradients of the same structure,
    and start from equal parameters (``broadcast_parameters``).

    Args:
        optimizer: any optax ``GradientTransformation``.
        name: begins the names of the operations; give each its own where one program has several
            distributed optimizers.
        compression: what travels, for example ``Compression.fp16``. With ``int8`` and the like,
            and with ``topk``, the state is a ``FeedbackState``, with what the last step left out on
            this rank; with ``powersgd`` a ``PowerSGDState``.
        backward_passes_per_step: gradients of so many calls of ``update`` are added up (not
            averaged) before each reduction; the calls between return zeros.
        op: ``Average``, ``Sum``, ``Min``, ``Max``, ``Product``, or ``Adasum``: the original update
            is made of this rank's gradients, and the updates are reduced.
        gradient_predivide_factor: splits the averaging: gradients are divided by it before the sum
            and multiplied by ``factor / size`` after it; only with ``Average``.
        groups: gradients of a group are reduced as one operation. A number > 0: all gradients are
            split evenly in so many groups. Lists of paths, as ``jax.tree_util.keystr`` writes them:
            those groups. All others form groups as suits the machine: one, or one for each MiB
            where a core is spare.
        process_set: the ranks that reduce; others step on their own gradients.
        sharded: each rank of the set updates its share of the elements of every parameter only,
            keeps the state of this share (a ``ShardedState``), and gets the other updates from the
            other ranks: the same bits in less memory. A program that joins the update with
            ``apply_updates`` may round differently. With ``Average`` and ``Sum``, for
            transformations that treat every element alike: ``init`` looks into the program of
            ``optimizer`` and refuses others, such as ``clip_by_global_norm``, ``adafactor``,
            ``lamb``, ``lars``, ``muon``, noise, and masks that look at shapes. ``"elementwise"``
            leaves that out: it says so of a transformation that cannot be looked into, for example
            because its ``update`` needs further arguments. ``whole_optimizer_state`` makes the
            state that there is without ``sharded``.

    Returns:
        An ``optax.GradientTransformationExtraArgs``. Without several passes its state is that of
        ``optimizer``, a ``FeedbackState``, ``PowerSGDState`` or ``ShardedState``, else a
        ``PassesState``.

    Raises:
        ImportError: optax is not installed.
        ValueError: an argument is unusable.
    """
    optax = _optax()
    check_transformation("DistributedOptimizer", optimizer)
    check_passes(backward_passes_per_step)
    check_compressor(compression)
    check_sharded(sharded, op)
    if isinstance(compression, TransformationCompressor):
        check_rounds(compression, sharded)
    chosen = check_groups(groups)
    reduction = (name, compression, op, gradient_predivide_factor, chosen, process_set)
    inner = optax.with_extra_args_support(optimizer)

    if isinstance(compression, TransformationCompressor):
        functions = compression.distribute(inner, reduction)
    elif sharded:
        functions = share_step(inner, ShareReduction(*reduction), sharded is True)
    elif link_format_of(compression) is not LinkFormat.AS_SET and op in (Average, Sum):
        functions = with_feedback(inner, GradientReduction(*reduction))
    else:
        functions = _reducing(inner, GradientReduction(*reduction))
    result = optax.GradientTransformationExtraArgs(*functions)
    passes = int(backward_passes_per_step)
    return result if passes == 1 else _every(passes, result)


def _reducing(inner: Any, reduce: GradientReduction) -> tuple[Any, Any]:
    """``init`` and ``update`` of a transformation on reduced gradients, or with reduced updates."""

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if reduce.op == Adasum:
            updates, state = inner.update(gradients, state, params, **extra)
            return reduce(updates), state
        updates, state = inner.update(reduce(gradients), state, params, **extra)
        return updates, state

    return inner.init, update


def check_transformation(title: str, optimizer: Any) -> None:
    """``ValueError`` if ``title`` cannot wrap this: no transformation of optax, or one of ours."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        found = " ".join(repr(optimizer).split())  # a torch optimizer's has several lines
        raise ValueError(f"{title}: expected an optax transformation, found {found}")
    # What ``DistributedOptimizer`` makes has a class of optax, and functions of ours.
    parts = (type(optimizer), optimizer.update)
    makers = [getattr(each, "__module__", None) or "" for each in parts]
    if any(maker.startswith("horovod.jax.") for maker in makers):
        raise already_distributed(title)


def _every(passes: int, inner: Any) -> Any:
    """``inner`` on the sums of so many passes."""

    def init(params: Any) -> PassesState:
        sums = jax.tree_util.tree_map(jnp.zeros_like, params)
        return PassesState(jnp.zeros((), jnp.int32), sums, inner.init(params))

    def update(
        gradients: Any, state: PassesState, params: Any = None, **extra: Any
    ) -> tuple[Any, PassesState]:
        sums = jax.tree_util.tree_map(jnp.add, state.sums, gradients)

        def step(sums: Any, inner_state: Any) -> tuple[Any, Any, Any]:
            updates, inner_state = inner.update(sums, inner_state, params, **extra)
            return updates, jax.tree_util.tree_map(jnp.zeros_like, sums), inner_state

        def skip(sums: Any, inner_state: Any) -> tuple[Any, Any, Any]:
            shapes = jax.eval_shape(step, sums, inner_state)[0]
            zeros = jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
            return zeros, sums, inner_state

        count = (state.count + 1) % passes
        given = (sums, state.inner_state)
        if isinstance(count, jax.core.Tracer):
            found = jax.lax.cond(count == 0, step, skip, *given)
        else:  # outside of ``jit`` each ``cond`` would be compiled anew, and kept
            found = step(*given) if count == 0 else skip(*given)
        updates, sums, inner_state = found
        return updates, PassesState(count, sums, inner_state)

    return type(inner)(init, update)


def _optax() -> Any:
    try:
        import optax
    except ModuleNotFoundError as error:
        if error.name != "optax":
            raise
        raise ImportError(
            "DistributedOptimizer needs optax, which is not installed here: "
            "pip install 'horovod[jax]'"
        ) from error
    return optax
