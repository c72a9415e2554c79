"""Callbacks for local steps: ranks step alone, and agree on the model from time to time.

Keras compiles the optimizer into the step of ``fit``, for each backend in another way. So the
optimizer stays as it is, and a callback sends and merges between two steps what is due. The classes
have no base; ``with_base`` adds the base of one Keras. What the words mean, and the papers, is in
``horovod.torch.local_steps``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from horovod._keras.fragments import Exchange, Fragment
from horovod._keras.library import (
    Array,
    attach_state,
    broadcast_variables,
    read_values,
)
from horovod._keras.optimizer_class import is_distributed
from horovod.core.compression import FeedbackCompressor, NoneCompressor, check_compressor
from horovod.core.local_steps import AVERAGING, LocalSteps, describe, make_local_steps, parts_of
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import has_others
from horovod.numpy.objects import check_equal_settings


class LocalStepsCallback:
    """What ``DiLoCoCallback`` and ``LocalSGDCallback`` do in ``fit``; never made on its own.

    Attributes:
        local_step: batches since ``fit`` began; equal on all ranks.
    """

    _keras: Any
    model: Any
    params: Any = None  # Keras 2 has none before set_params

    def __init__(self, rules: LocalSteps, compression: Any, process_set: ProcessSet) -> None:
        super().__init__()
        _check_compression(rules.title, compression)
        check_process_set(process_set)
        self._rules = rules
        self._compression = compression
        self._process_set = process_set
        self._fragments: list[Fragment] = []
        self._known: list[Any] = []
        self.local_step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin anew from the model as it is; blocks until all ranks of the set are here.

        If trainable variables differ, ranks get those of the set's first rank.

        Raises:
            ValueError: the model cannot be trained so, an argument, the number of epochs or of
                batches is another one on another rank, or ``init`` was not called.
            HorovodInternalError: a rank was lost.
        """
        for fragment in self._fragments:  # of a ``fit`` that an exception has ended
            fragment.drop()
        self.local_step, self._fragments = 0, []
        if not self._process_set.included():
            return
        _check_model(self._rules.title, self.model)
        self._known = variables = list(self.model.trainable_variables)
        values = read_values(self._keras, variables)
        _check_floating(self._rules.title, variables, values)
        self._rules.check_fragments(len(variables))
        if has_others(self._process_set):
            self._start_alike(values)
        exchange = Exchange(self._keras, self._compression, self._process_set)
        parts = parts_of([value.size for value in values], self._rules.fragments)
        for number, part in enumerate(parts):
            self._fragments.append(Fragment(number, variables[part], self._rules, exchange))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step, and send and merge what is due.

        Blocks only where a result is due that is not there yet.

        Raises:
            MismatchError: another rank trains more batches or fewer.
            HorovodInternalError: a rank was lost.
            ValueError: the model has other trainable variables than at the beginning.
        """
        self.local_step += 1
        if not self._fragments:  # not a member
            return
        rules, step = self._rules, self.local_step
        sent = rules.sent_after(step)
        due = rules.merged_after(step) if rules.overlap else sent
        if not (sent or due):
            return
        self._attach()
        for number in sent:
            self._fragments[number].send(step)
        for number in due:
            self._fragments[number].merge(rules.merge_weight, step)

    def on_train_end(self, logs: Any = None) -> None:
        """Agree on all variables; blocks until all ranks of the set end ``fit``.

        What is under way is merged, and an outer step is made of what ranks have changed since.
        Afterwards all ranks have the agreed values. Raises what ``on_train_batch_end`` does.
        """
        step = self.local_step
        if self._fragments:
            self._attach()
        for fragment in self._fragments:
            if fragment.is_under_way:
                fragment.merge(self._rules.merge_weight, step)
        for fragment in self._fragments:
            fragment.send_rest(step)
        for fragment in self._fragments:
            fragment.merge(1.0, step)

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        """Inside, the trainable variables have the values that ranks last agreed on.

        To evaluate or save the model: between two batches of ``fit``, in a callback or a loop of
        the user's own. No communication. Afterwards this rank has its own again. Do not train
        inside. Before ``fit`` and on ranks outside of the set nothing changes.

        Raises:
            ValueError: the model has other trainable variables than when ``fit`` began.
        """
        fragments = self._fragments
        if not fragments:
            yield
            return
        self._attach()
        own = [fragment.put_agreed() for fragment in fragments]
        try:
            yield
        finally:
            attach_state(self.model)  # an evaluation that failed may have left values in its step
            for fragment, values in zip(fragments, own, strict=True):
                fragment.put_back(values)

    def _start_alike(self, values: list[Array]) -> None:
        rules, process_set = self._rules, self._process_set
        params = self.params or {}  # empty in a loop of the user's own
        settings = {
            **rules.settings(self._compression, describe([value.shape for value in values])),
            "epochs": params.get("epochs"),
            "batches_per_epoch": params.get("steps"),  # None: Keras does not know it yet
        }
        own = _digest_of(values)
        digests = check_equal_settings(rules.title, rules.name, settings, process_set, own)
        if len(set(digests)) > 1:
            root = (process_set.ranks or [0])[0]
            name = f"{rules.name}.start"
            broadcast_variables(self._keras, self._known, root, name, process_set=process_set)

    def _attach(self) -> None:
        """Give the variables their current values; refuses a model that is not the same."""
        attach_state(self.model)
        found = self.model.trainable_variables
        if [id(variable) for variable in found] != [id(variable) for variable in self._known]:
            raise ValueError(
                f"{self._rules.title}: the model has {len(found)} trainable variables, and had "
                f"{len(self._known)} others when fit() began: ranks would not agree on them"
            )


class DiLoCoCallback(LocalStepsCallback):
    """Ranks step alone in ``fit``, and agree on the model every so many batches.

    For slow networks: see ``docs/local-steps.md``. The algorithm is DiLoCo (arXiv 2311.08105), with
    ``fragments`` and ``overlap`` Streaming DiLoCo (arXiv 2501.18512). The model has a plain
    optimizer, of the inner steps. Every rank has to train equally many batches with equal
    arguments. After ``fit`` all ranks have the same trainable variables; other variables, such as
    the statistics of batch normalisation, and the optimizer's stay those of each rank. Each ``fit``
    begins anew, without outer momentum.

    Args:
        sync_every: batches between two agreements on the same variables; 100 to 500 is usual.
        outer_lr: learning rate of the outer steps.
        outer_momentum: of the outer steps, in [0, 1).
        nesterov: whether it is Nesterov's.
        fragments: the variables are cut into so many parts of about equal size, in their order. One
            after the other is sent, each every ``sync_every`` batches: the same bytes, but fewer at
            a time. At most ``sync_every`` and the number of trainable variables.
        overlap: batches that a rank trains while a fragment is on its way; the result is merged
            after them. Less than ``sync_every``.
        merge_weight: variables become ``merge_weight * agreed + (1 - merge_weight) * own`` then. By
            default 1 without ``overlap``, else 0.5.
        compression: what travels, as for ``hvd.allreduce``, for example ``Compression.fp16``;
            ``topk`` and ``powersgd`` are refused.
        process_set: the ranks that agree; others step alone, and nothing else happens there.
        name: begins the names of the operations, ``DiLoCo.fragment.0`` and so on.

    Raises:
        ValueError: an argument cannot be right.
    """

    def __init__(
        self,
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
    ) -> None:
        outer = (outer_lr, outer_momentum, nesterov)
        schedule = (fragments, overlap, merge_weight)
        name = "DiLoCo" if name is None else name
        rules = make_local_steps("DiLoCoCallback", name, sync_every, outer, schedule)
        super().__init__(rules, compression, process_set)


class LocalSGDCallback(LocalStepsCallback):
    """Ranks step alone in ``fit``, and average the model every so many batches.

    The same as ``DiLoCoCallback`` with ``outer_lr=1`` and without momentum (Local SGD, arXiv
    1805.09767); arguments and errors are explained there.
    """

    def __init__(
        self,
        sync_every: int,
        fragments: int = 1,
        overlap: int = 0,
        merge_weight: float | None = None,
        compression: Any = NoneCompressor,
        process_set: ProcessSet = global_process_set,
        name: str | None = None,
    ) -> None:
        schedule = (fragments, overlap, merge_weight)
        name = "LocalSGD" if name is None else name
        rules = make_local_steps("LocalSGDCallback", name, sync_every, AVERAGING, schedule)
        super().__init__(rules, compression, process_set)


def _check_compression(title: str, compression: Any) -> None:
    check_compressor(compression)
    kind = compression if isinstance(compression, type) else type(compression)
    if issubclass(kind, FeedbackCompressor):
        raise ValueError(
            f"{title}: compression={kind.__name__} keeps errors, which this callback does not; use "
            "none, fp16, bf16, int8, fp8, mxfp8 or int4"
        )


def _check_model(title: str, model: Any) -> None:
    if is_distributed(getattr(model, "optimizer", None)):
        raise ValueError(
            f"{title}: the model's optimizer is distributed, and ranks agree in every step then; "
            "compile the model with the plain optimizer"
        )
    # Keras 2 has a variable, with another name.
    at_once = getattr(model, "steps_per_execution", getattr(model, "_steps_per_execution", None))
    if at_once is not None and int(at_once) != 1:
        raise ValueError(
            f"{title}: steps_per_execution must be 1, found {int(at_once)}: nothing can be sent "
            "between the steps of an execution"
        )
    if not (model.built and model.trainable_variables):
        raise ValueError(
            f"{title}: the model has no trainable variables when fit() begins; give it an Input or "
            "call model.build(input_shape) before"
        )


def _check_floating(title: str, variables: list[Any], values: list[Array]) -> None:
    for variable, value in zip(variables, values, strict=True):
        if not value.dtype.name.startswith(("float", "bfloat")):
            raise ValueError(
                f"{title}: trainable variables must be floating, found {variable.name!r} of shape "
                f"{list(value.shape)}, which is {value.dtype}"
            )


def _digest_of(values: list[Array]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
