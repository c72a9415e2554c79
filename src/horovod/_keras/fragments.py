"""A part of a model that ranks with local steps agree on at a time: sent, awaited and merged.

The *agreed* values are the same bits on every rank. They and the outer momentum are NumPy arrays,
float32 at least: they are needed once in many steps. What the words mean, and the papers, is in
``horovod.torch.local_steps``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from horovod._keras.library import Array, assign_values, backend_for, read_values
from horovod.core.compression import compress_all, decompress_all, keeps_tensors, link_format_of
from horovod.core.local_steps import LocalSteps, mixed
from horovod.core.operations import Average
from horovod.core.process_sets import ProcessSet
from horovod.errors import HorovodInternalError, MismatchError
from horovod.numpy import adapter

_DUTY = "train equally many batches (shapes [batches, 0] are those of ranks that end fit())"


class _Flight(NamedTuple):
    """An average on its way."""

    handle: int
    wires: list[Array]
    contexts: list[Any]


@dataclass(frozen=True)
class Exchange:
    """Averages arrays over ranks.

    Attributes:
        keras: the Keras module; the compressor is one of its backend.
        compression: what travels.
        process_set: the ranks.
    """

    keras: Any
    compression: Any
    process_set: ProcessSet

    def start(self, name: str, arrays: list[Array], labels: Sequence[str]) -> _Flight:
        """Begin; ``labels`` say what low-bit formats leave exact. The arrays may be overwritten."""
        contexts: list[Any] = []
        if not keeps_tensors(self.compression):
            wires, contexts = compress_all(self.compression, self._tensors(arrays))
            arrays = read_values(self.keras, wires)
        handle = adapter.grouped_allreduce_async_(
            arrays,
            None,
            name,
            Average,
            process_set=self.process_set,
            link_format=link_format_of(self.compression),
            members=labels,
        )
        return _Flight(handle, arrays, contexts)

    def finish(self, flight: _Flight) -> list[Array]:
        """The averages; blocks until they are there.

        Raises:
            HorovodInternalError: the reduction failed.
        """
        adapter.synchronize(flight.handle)
        if keeps_tensors(self.compression):
            return flight.wires
        wires = self._tensors(flight.wires)
        return read_values(self.keras, decompress_all(self.compression, wires, flight.contexts))

    def _tensors(self, arrays: Sequence[Array]) -> list[Any]:
        to_tensor = backend_for(self.keras).to_tensor
        return [to_tensor(array) for array in arrays]


class Fragment:
    """Some variables of a model, their agreed values and the outer gradient under way.

    Args:
        number: of the fragment.
        variables: floating ones, whose values are the same on every rank now.
        rules: of the outer step and of merging.
        exchange: averages the outer gradients.

    Attributes:
        agreed_at: the step after which this rank's variables had the agreed values.
    """

    def __init__(
        self, number: int, variables: Sequence[Any], rules: LocalSteps, exchange: Exchange
    ) -> None:
        self._number = number
        self._variables = list(variables)
        self._rules = rules
        self._exchange = exchange
        self._flight: _Flight | None = None
        self._agreed = self._own()
        has_momentum = rules.outer_momentum > 0
        self._momentum = [np.zeros_like(a) if has_momentum else None for a in self._agreed]
        self.agreed_at = 0

    @property
    def is_under_way(self) -> bool:
        """Whether it was sent, and not merged yet."""
        return self._flight is not None

    def send(self, step: int) -> None:
        """Begin to average the outer gradient; ``step``: the number of the rank's step."""
        self._start(self._changes(), self._rules.marker_shape(step))

    def send_rest(self, step: int) -> None:
        """Begin to average what the ranks have changed since they had the agreed values, if any.

        All ranks call it at the end of training. One that makes a step instead is found out.
        """
        changes = [] if self.agreed_at == step else self._changes()
        self._start(changes, self._rules.marker_shape(step)[::-1])

    def merge(self, weight: float, step: int) -> None:
        """Wait, make the outer step, and move the variables to the agreed values.

        Args:
            weight: how far they move; 1 is all the way.
            step: the number of the rank's step.

        Raises:
            MismatchError: another rank has made more steps or fewer, or has other variables.
            HorovodInternalError: the reduction failed; nothing is merged.
        """
        gradients = self._average()
        if not gradients:
            return
        for index, gradient in enumerate(gradients):
            agreed, momentum = self._agreed[index], self._momentum[index]
            stepped, momentum = self._rules.step_outer(agreed, momentum, gradient)
            self._agreed[index] = np.asarray(stepped, agreed.dtype)
            if momentum is not None:
                self._momentum[index] = np.asarray(momentum, agreed.dtype)
        values = self._agreed
        if weight != 1:
            pairs = zip(self._agreed, self._own(), strict=True)
            values = [np.asarray(mixed(*pair, weight), pair[0].dtype) for pair in pairs]
        assign_values(self._exchange.keras, self._variables, values)
        if weight == 1:
            self.agreed_at = step

    def put_agreed(self) -> list[Array]:
        """Give the variables the agreed values; returns those of this rank."""
        own = read_values(self._exchange.keras, self._variables)
        assign_values(self._exchange.keras, self._variables, self._agreed)
        return own

    def put_back(self, own: list[Array]) -> None:
        """The reverse of ``put_agreed``."""
        assign_values(self._exchange.keras, self._variables, own)

    def drop(self) -> None:
        """Wait for what is under way, and forget it."""
        if self._flight is not None:
            with contextlib.suppress(HorovodInternalError):
                self._average()

    def _own(self) -> list[Array]:
        """This rank's values, in the dtypes of the agreed ones."""
        return [outer(value) for value in read_values(self._exchange.keras, self._variables)]

    def _changes(self) -> list[Array]:
        pairs = zip(self._agreed, self._own(), strict=True)
        return [np.asarray(agreed - own, agreed.dtype, order="C") for agreed, own in pairs]

    def _start(self, changes: list[Array], marker_shape: tuple[int, ...]) -> None:
        arrays = [*changes, np.empty(marker_shape, np.float32)]
        rules, number = self._rules, self._number
        labels = [rules.label_of(number, i, array.shape) for i, array in enumerate(arrays)]
        self._flight = self._exchange.start(rules.name_of(number), arrays, labels)

    def _average(self) -> list[Array]:
        """The averaged outer gradients; empty if nothing had changed."""
        assert self._flight is not None
        flight, self._flight = self._flight, None
        try:
            return self._exchange.finish(flight)[:-1]
        except MismatchError as error:
            raise self._rules.out_of_step(error, _DUTY) from None


def outer(value: Array) -> Array:
    """A value in the dtype of the outer state: float32 at least, for half precision."""
    return value.astype(np.float64 if value.dtype == np.float64 else np.float32, copy=False)
