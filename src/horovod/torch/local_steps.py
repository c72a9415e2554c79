"""``DiLoCo`` and ``LocalSGD``: ranks step alone, and agree on parameters from time to time.

An inner optimizer of any class makes the local steps. Every ``sync_every`` steps the outer gradient
(the agreed parameters minus this rank's) is averaged over ranks, and SGD with Nesterov momentum
steps the agreed parameters. So ranks send once what they would send ``sync_every`` times.

- LocalSGD: Stich, Local SGD Converges Fast and Communicates Little (arXiv 1805.09767)
- DiLoCo: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models (arXiv
  2311.08105)
- fragments, overlap and merging: Douillard et al., Streaming DiLoCo with overlapping communication
  (arXiv 2501.18512)
- in practice, elastic: Jaghouar et al., INTELLECT-1 Technical Report (arXiv 2412.01152)
- compressed outer gradients: Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo
  (arXiv 2508.15706)
"""

from __future__ import annotations

import torch

from horovod.core.compression import Compressor
from horovod.core.local_steps import AVERAGING, make_local_steps
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch.compression import Compression
from horovod.torch.local_steps_optimizer import LocalStepsOptimizer, make_optimizer
from horovod.torch.topk import TopK


def DiLoCo(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    sync_every: int,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    nesterov: bool = True,
    fragments: int = 1,
    overlap: int = 0,
    merge_weight: float | None = None,
    compression: type[Compressor] | TopK = Compression.none,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> LocalStepsOptimizer:
    """Wrap an optimizer so that ranks step alone, and agree on parameters every so many steps.

    For slow networks: see ``docs/local-steps.md``. The algorithm is DiLoCo (arXiv 2311.08105), with
    ``fragments`` and ``overlap`` Streaming DiLoCo (arXiv 2501.18512). Every rank has to wrap the
    same parameters in the same order with equal arguments, and start from equal values
    (``broadcast_parameters``). Buffers, such as batch norm's statistics, stay those of each rank.
    ``torch.amp.GradScaler``, schedulers, closures and gradient clipping work as without it. A rank
    that has called ``hvd.join()`` counts as one that has changed nothing.

    Args:
        optimizer: any torch optimizer, of the inner steps; its parameter groups and state are
            shared, not copied. Use the result instead of it from now on.
        sync_every: local steps between two agreements on the same parameters; 100 to 500 is usual.
        outer_lr: learning rate of the outer steps.
        outer_momentum: of the outer steps, in [0, 1).
        nesterov: whether it is Nesterov's.
        fragments: the parameters are cut into so many parts of about equal size, in their order.
            One after the other is sent, each every ``sync_every`` steps: the same bytes, but fewer
            at a time. At most ``sync_every`` and the number of parameters.
        overlap: inner steps that a rank makes while a fragment is on its way; the result is merged
            after them. Less than ``sync_every``.
        merge_weight: parameters become ``merge_weight * agreed + (1 - merge_weight) * own`` then.
            By default 1 without ``overlap``, else 0.5.
        compression: what travels, as for ``hvd.allreduce``, for example ``Compression.bf16``; or
            ``Compression.topk(ratio)``, for short periods.
        process_set: the ranks that agree; others step alone, and nothing else happens there.
        name: begins the names of the operations, ``DiLoCo.fragment.0`` and so on. Needed where one
            program has several such optimizers.

    Returns:
        An optimizer of a subclass of ``optimizer``'s class with the same class name. Blocks until
        all ranks of the set are here, but not in an elastic job.

    Raises:
        ValueError: an argument cannot be right, is another one on another rank, or ``init`` was not
            called.
    """
    outer = (outer_lr, outer_momentum, nesterov)
    schedule = (fragments, overlap, merge_weight)
    rules = make_local_steps("DiLoCo", name, sync_every, outer, schedule)
    return make_optimizer(optimizer, rules, compression, process_set)


def LocalSGD(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    sync_every: int,
    fragments: int = 1,
    overlap: int = 0,
    merge_weight: float | None = None,
    compression: type[Compressor] | TopK = Compression.none,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> LocalStepsOptimizer:
    """Wrap an optimizer so that ranks step alone, and average parameters every so many steps.

    The same as ``DiLoCo`` with ``outer_lr=1`` and without momentum (Local SGD, arXiv 1805.09767);
    arguments, result and errors are explained there.
    """
    schedule = (fragments, overlap, merge_weight)
    rules = make_local_steps("LocalSGD", name, sync_every, AVERAGING, schedule)
    return make_optimizer(optimizer, rules, compression, process_set)
