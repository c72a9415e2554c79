"""``DiLoCo`` and ``LocalSGD``: ranks step alone, and agree on parameters from time to time.

The inner steps are an optax transformation's, in programs of JAX that know nothing of other ranks.
Between them, outside of ``jit``, ``LocalStepsOptimizer.sync`` sends and merges what is due. The
agreed parameters and the outer momentum are NumPy arrays in host memory: they are needed once in
many steps. What the words mean, and the papers, is in ``horovod.torch.local_steps``.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from horovod.core.compression import (
    NoneCompressor,
    compress_all,
    decompress_all,
    keeps_tensors,
    link_format_of,
)
from horovod.core.local_steps import AVERAGING, LocalSteps, describe, make_local_steps, parts_of
from horovod.core.operations import Average
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import has_others, rank
from horovod.elastic import is_elastic_job
from horovod.errors import HorovodInternalError, MismatchError
from horovod.jax.error_feedback import first_errors, reduce_corrected
from horovod.jax.gradient_reduction import TransformationCompressor, alone
from horovod.jax.optimizer import check_transformation
from horovod.jax.outer_state import (
    Array,
    OuterRound,
    OuterState,
    check_outer,
    check_outside,
    check_shapes,
    keeping,
    like,
    on_host,
)
from horovod.jax.topk import TopK, TopKReduction
from horovod.numpy import adapter
from horovod.numpy.objects import check_equal_settings


class _Flight(NamedTuple):
    """A fragment on its way."""

    sent_at: int
    handle: int | None  # None: ``wires`` are the average
    wires: list[Array]
    contexts: list[Any]


class LocalStepsOptimizer:
    """What ``DiLoCo`` and ``LocalSGD`` return; ``init`` and ``update`` are the transformation's.

    So the inner step is written as without it. ``begin`` makes the outer state, which goes beside
    the parameters from then on: ``params, outer = optimizer.sync(params, outer)`` after each step.
    The states are values, and none is changed; what is on its way belongs to this object, which
    serves one model.

    Attributes:
        init: makes the inner state of parameters.
        update: makes updates of gradients, inside of ``jit`` or outside, without communication.
    """

    def __init__(
        self, optimizer: Any, rules: LocalSteps, compression: Any, process_set: ProcessSet
    ) -> None:
        self.init = optimizer.init
        self.update = alone(rules.title, optimizer.update)
        self._rules = rules
        self._compression = compression
        self._process_set = process_set
        self._flights: dict[int, _Flight] = {}
        self._is_sparse = isinstance(compression, TopK)

    def begin(self, params: Any) -> OuterState:
        """The outer state before the first step; blocks for all ranks, but not in an elastic job.

        Args:
            params: a pytree of floating arrays, equal on all ranks.

        Raises:
            ValueError: a leaf is something else, there are more fragments than arrays, or another
                rank has other arguments or arrays.
        """
        rules = self._rules
        leaves = self._leaves("begin", params)
        rules.check_fragments(len(leaves))
        if has_others(self._process_set) and not is_elastic_job():
            shapes = [np.shape(leaf) for leaf in leaves]
            settings = rules.settings(self._compression, describe(shapes))
            check_equal_settings(rules.title, rules.name, settings, self._process_set)
        agreed = [on_host(leaf) for leaf in leaves]
        has_momentum = rules.outer_momentum > 0
        return {
            "step": 0,
            "agreed": agreed,
            "momentum": [np.zeros_like(array) for array in agreed if has_momentum],
            "agreed_at": [0] * rules.fragments,
            "arrived": {},
        }

    def sync(self, params: Any, outer: OuterState) -> tuple[Any, OuterState]:
        """Count a step, and send and merge what is due; call it after each inner step.

        Not inside of ``jit``. Blocks only where a result is due that is not there yet. All ranks of
        the set have to call it equally often.

        Args:
            params: this rank's after the step.
            outer: what ``begin`` or the last ``sync`` has returned.

        Returns:
            Parameters to go on from, in the places (device, sharding) of those given, and the new
            outer state.

        Raises:
            ValueError: the parameters or ``outer`` do not fit, the call is inside of ``jit``, or
                what was on its way when the state was saved is lost (``settle``).
            HorovodInternalError: a reduction failed.
        """
        rules = self._rules
        check_outer(f"{rules.title}: sync", params, outer)
        step = outer["step"] + 1
        outer = {**outer, "step": step}
        if not self._process_set.included():
            return params, outer
        sent = rules.sent_after(step)
        due = rules.merged_after(step) if rules.overlap else sent
        if not (sent or due):
            return params, outer
        round_ = self._round("sync", params, outer)
        for number in sent:
            self._send(number, round_, step)
        for number in due:
            sent_at = step - rules.overlap
            if outer["agreed_at"][number] < sent_at or not rules.overlap:  # else ``finish`` did it
                gradients = self._arrived(number, sent_at, outer)
                round_.merge(number, gradients, rules, rules.merge_weight)
                self._flights.pop(number, None)
        return round_.result()

    def finish(self, params: Any, outer: OuterState) -> tuple[Any, OuterState]:
        """Agree on all parameters now; blocks until all ranks of the set call it.

        At the end of training. What is under way is merged, and an outer step is made of what ranks
        have changed since. Afterwards all ranks have the agreed parameters, and may go on.

        Raises:
            ValueError: the parameters do not fit the state, or have changed though no ``sync`` has
                counted a step.
            HorovodInternalError: a reduction failed.
        """
        check_outer(f"{self._rules.title}: finish", params, outer)
        if not self._process_set.included():
            return params, outer
        rules = self._rules
        outer = self.settle(outer)
        round_ = self._round("finish", params, outer)
        if outer["step"] == 0:
            round_.check_unchanged(f"{rules.title}: finish")
        for number, gradients in outer["arrived"].items():
            round_.merge(number, gradients, rules, rules.merge_weight)
        reached = enumerate(round_.outer["agreed_at"])
        late = [number for number, step in reached if step != outer["step"]]
        for number in late:
            self._send(number, round_, 0)
        for number in late:
            round_.merge(number, self._wait(number), rules, 1.0)
        self._flights.clear()
        return round_.result()

    def settle(self, outer: OuterState) -> OuterState:
        """The same state with the averages that are on their way; waits for them.

        Before each save: what is on its way is in this process only. Training goes on from either
        state with the same bits.
        """
        check_outer(f"{self._rules.title}: settle", None, outer)
        arrived = dict(outer["arrived"])
        for number, flight in list(self._flights.items()):
            if flight.sent_at <= outer["step"] < flight.sent_at + self._rules.overlap:
                arrived[number] = self._wait(number)
        return {**outer, "arrived": arrived}

    def agreed_parameters(self, params: Any, outer: OuterState) -> Any:
        """The parameters that ranks last agreed on, to evaluate or save; no communication.

        ``params``: a pytree that has the structure, dtypes and places.
        """
        leaves = self._leaves("agreed_parameters", params, outer)
        placed = [like(leaf, value) for leaf, value in zip(leaves, outer["agreed"], strict=True)]
        return jax.tree_util.tree_structure(params).unflatten(placed)

    def _round(self, method: str, params: Any, outer: OuterState) -> OuterRound:
        found, expected = len(outer["agreed_at"]), self._rules.fragments
        if found != expected:
            raise ValueError(
                f"{self._rules.title}: {method}: outer is of an optimizer with fragments={found}, "
                f"expected {expected}"
            )
        leaves = self._leaves(method, params, outer)
        parts = parts_of([np.size(leaf) for leaf in leaves], self._rules.fragments)
        return OuterRound(params, leaves, outer, [range(part.start, part.stop) for part in parts])

    def _send(self, number: int, round_: OuterRound, marked: int) -> None:
        """Send a fragment; ``marked``: the step, or 0 for ``finish``."""
        if number in self._flights:  # of steps that a restored state has taken back
            with contextlib.suppress(HorovodInternalError):
                self._wait(number)
        changes = round_.changes(number)
        sent_at = round_.outer["step"]
        must_compare = self._rules.must_compare(sent_at, marked)
        checksum = round_.checksum(number) if must_compare else None
        marker = np.empty(self._rules.marker_shape(marked, checksum), np.float32)
        if self._is_sparse:
            handle = self._start(number, [marker])
            try:
                with keeping(changes):
                    average = self._reduced(number, changes, round_)
            finally:
                self._synchronize(handle)
            self._flights[number] = _Flight(sent_at, None, average, [])
            return
        contexts: list[Any] = []
        if not keeps_tensors(self._compression):
            sent, contexts = compress_all(self._compression, [jnp.asarray(c) for c in changes])
            changes = [np.array(wire, order="C") for wire in sent]
        handle = self._start(number, [*changes, marker])
        self._flights[number] = _Flight(sent_at, handle, changes, contexts)

    def _start(self, number: int, wires: list[Array]) -> int:
        return adapter.grouped_allreduce_async_(
            wires,
            None,
            self._rules.name_of(number),
            Average,
            process_set=self._process_set,
            link_format=link_format_of(self._compression),
        )

    def _synchronize(self, handle: int) -> None:
        try:
            adapter.synchronize(handle)
        except MismatchError as error:
            raise self._rules.out_of_step(error) from None

    def _reduced(self, number: int, changes: list[Array], round_: OuterRound) -> list[Array]:
        """The average of what ranks have sent of a fragment; what they have not is in ``errors``.

        Waits for it: the next errors are a part of the state.
        """
        name = self._rules.name_of(number)
        operation = self._compression, Average, 1.0, None, self._process_set
        reduction = TopKReduction(name, *operation)
        gradients = {
            self._rules.label_of(number, index, change.shape): jnp.asarray(change)
            for index, change in enumerate(changes)
        }
        owner, known = round_.outer.get("errors", (0, {}))
        if owner != rank():
            known = {}
        errors = first_errors(reduction, gradients) | known.get(number, {})
        reduced = reduce_corrected(reduction, gradients, errors)
        kept = {path: np.asarray(error) for path, error in errors.items()}
        round_.outer["errors"] = rank(), {**known, number: kept}
        return [np.asarray(reduced[key]) for key in gradients]

    def _wait(self, number: int) -> list[Array]:
        """The average of a fragment's outer gradients, which stays here."""
        flight = self._flights[number]
        if flight.handle is None:
            return flight.wires
        try:
            self._synchronize(flight.handle)
        except HorovodInternalError:
            del self._flights[number]
            raise
        average = flight.wires
        if not keeps_tensors(self._compression):
            wires = [jnp.asarray(wire) for wire in average]
            received = decompress_all(self._compression, wires, flight.contexts)
            average = list(map(np.asarray, received))
        self._flights[number] = flight._replace(handle=None, wires=average)
        return average

    def _arrived(self, number: int, sent_at: int, outer: OuterState) -> list[Array]:
        if number in outer["arrived"]:
            found: list[Array] = outer["arrived"][number]
            return found
        flight = self._flights.get(number)
        if flight is None or flight.sent_at != sent_at:
            raise ValueError(
                f"{self._rules.title}: fragment {number} was sent after step {sent_at}, and its "
                "average is not in this state; save settle(outer) instead of outer"
            )
        return self._wait(number)

    def _leaves(self, method: str, params: Any, outer: OuterState | None = None) -> list[Any]:
        title = f"{self._rules.title}: {method}"
        check_outside(title, params)
        paths = jax.tree_util.tree_flatten_with_path(params)[0]
        for path, leaf in paths:
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            if isinstance(kind, str) or not jnp.issubdtype(kind, jnp.floating):
                raise ValueError(
                    f"{title}: params{jax.tree_util.keystr(path)} must be a floating array, found "
                    f"{kind}; leave out what is not trained"
                )
        leaves = [leaf for _, leaf in paths]
        if outer is not None:
            check_shapes(title, leaves, outer)
        return leaves


def DiLoCo(  # noqa: N802
    optimizer: Any,
    sync_every: int,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    nesterov: bool = True,
    fragments: int = 1,
    overlap: int = 0,
    merge_weight: float | None = None,
    compression: Any = NoneCompressor,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> LocalStepsOptimizer:
    """Wrap an optax transformation so that ranks step alone, and agree on parameters at times.

    For slow networks: see ``docs/local-steps.md``. The algorithm is DiLoCo (arXiv 2311.08105), with
    ``fragments`` and ``overlap`` Streaming DiLoCo (arXiv 2501.18512). Every rank has to start from
    equal parameters (``broadcast_parameters``). A rank that has called ``hvd.join()`` counts as one
    that has changed nothing.

    Args:
        optimizer: any optax ``GradientTransformation``, of the inner steps.
        sync_every: local steps between two agreements on the same parameters; 100 to 500 is usual.
        outer_lr: learning rate of the outer steps.
        outer_momentum: of the outer steps, in [0, 1).
        nesterov: whether it is Nesterov's.
        fragments: the parameters are cut into so many parts of about equal size, in their order.
            One after the other is sent, each every ``sync_every`` steps: the same bytes, but fewer
            at a time. At most ``sync_every`` and the number of arrays.
        overlap: inner steps that a rank makes while a fragment is on its way; the result is merged
            after them. Less than ``sync_every``.
        merge_weight: parameters become ``merge_weight * agreed + (1 - merge_weight) * own`` then.
            By default 1 without ``overlap``, else 0.5.
        compression: what travels, as for ``hvd.allreduce``, for example ``Compression.bf16``; or
            ``Compression.topk(ratio)``, for short periods. Then a fragment is waited for when it
            is sent, and no rank may have called ``hvd.join()``.
        process_set: the ranks that agree; others step alone, and nothing else happens there.
        name: begins the names of the operations, ``DiLoCo.fragment.0`` and so on. Needed where one
            program has several such optimizers.

    Raises:
        ValueError: an argument cannot be right; the text names it.
    """
    outer = (outer_lr, outer_momentum, nesterov)
    schedule = (fragments, overlap, merge_weight)
    rules = make_local_steps("DiLoCo", name, sync_every, outer, schedule)
    return _make(optimizer, rules, compression, process_set)


def LocalSGD(  # noqa: N802
    optimizer: Any,
    sync_every: int,
    fragments: int = 1,
    overlap: int = 0,
    merge_weight: float | None = None,
    compression: Any = NoneCompressor,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> LocalStepsOptimizer:
    """Wrap an optax transformation so that ranks step alone, and average parameters at times.

    The same as ``DiLoCo`` with ``outer_lr=1`` and without momentum (Local SGD, arXiv 1805.09767);
    arguments, result and errors are explained there.
    """
    schedule = (fragments, overlap, merge_weight)
    rules = make_local_steps("LocalSGD", name, sync_every, AVERAGING, schedule)
    return _make(optimizer, rules, compression, process_set)


def _make(
    optimizer: Any, rules: LocalSteps, compression: Any, process_set: ProcessSet
) -> LocalStepsOptimizer:
    check_transformation(rules.title, optimizer)
    is_refused = isinstance(compression, TransformationCompressor) and not isinstance(
        compression, TopK
    )
    rules.check_compression(compression, is_refused, "arrays")
    check_process_set(process_set)
    return LocalStepsOptimizer(optimizer, rules, compression, process_set)
