"""The mean of gradients over all ranks, in place: what optimizer and trainer have in common."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from horovod.core.compatibility import split_list
from horovod.core.compression import check_compressor, compress_all, decompress_all
from horovod.core.operations import Average, check_predivide
from horovod.core.process_sets import ProcessSet, check_process_set, has_others
from horovod.mxnet.collectives import allreduce_, grouped_allreduce_
from horovod.mxnet.compression import Compression


class GradientReduction:
    """How gradients are reduced; the same on all ranks of the process set."""

    def __init__(
        self,
        prefix: str,
        gradient_predivide_factor: float,
        num_groups: int,
        process_set: ProcessSet,
        compression: Any = Compression.none,
    ) -> None:
        """Raise ``ValueError`` for unusable arguments."""
        check_predivide(Average, gradient_predivide_factor)
        check_compressor(compression)
        check_process_set(process_set)
        if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError(f"num_groups must be 0 or more, found {reprlib.repr(num_groups)}")
        self._prefix = prefix
        self._factor = gradient_predivide_factor
        self._num_groups = num_groups
        self._process_set = process_set
        self._compression = compression

    def is_needed(self) -> bool:
        """Whether this process takes part, with others."""
        return has_others(self._process_set)

    def run(self, indices: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Replace gradients by their means, in MXNet's order; earlier ones are more urgent.

        Args:
            indices: their names, without the prefix.
            gradients: dense arrays.
        """
        wires, contexts = compress_all(self._compression, gradients)
        self._reduce(indices, wires)
        results = decompress_all(self._compression, wires, contexts)
        for gradient, result in zip(gradients, results, strict=True):
            if result is not gradient:
                gradient[:] = result

    def _reduce(self, indices: Sequence[Any], wires: Sequence[Any]) -> None:
        options: dict[str, Any] = {
            "op": Average,
            "prescale_factor": 1.0 / self._factor,
            "postscale_factor": self._factor,
            "process_set": self._process_set,
        }
        if not self._num_groups:
            for position, (index, wire) in enumerate(zip(indices, wires, strict=True)):
                allreduce_(wire, name=f"{self._prefix}{index}", priority=-position, **options)
            return
        for positions in self._groups(wires):
            name = f"{self._prefix}{indices[positions[0]]}:{indices[positions[-1]]}"
            group = [wires[position] for position in positions]
            grouped_allreduce_(group, name=name, priority=-positions[0], **options)

    def _groups(self, wires: Sequence[Any]) -> list[list[int]]:
        """Positions in groups of one dtype each."""
        groups = []
        for piece in split_list(range(len(wires)), self._num_groups):
            by_dtype = sorted(piece, key=lambda position: str(wires[position].dtype))
            for _, same in groupby(by_dtype, lambda position: str(wires[position].dtype)):
                groups.append(list(same))
        return groups
