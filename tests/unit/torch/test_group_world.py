"""Groups of ``torch.distributed`` whose default group is not Horovod's."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from horovod.torch.distributed.members import Members


def test_a_default_group_of_another_backend_is_named():
    with pytest.raises(ValueError, match=r"default group of Horovod, found .* another backend"):
        Members.of_group(dist.HashStore(), "group", [0], 1.0)
