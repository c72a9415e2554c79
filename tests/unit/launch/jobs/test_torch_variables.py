"""The variables of torch that a rank gets."""

from __future__ import annotations

from horovod.core.base.rank_info import RankInfo
from horovod.launch.jobs.torch_variables import torch_master, torch_position


def test_the_position_of_a_rank() -> None:
    info = RankInfo(rank=3, size=6, local_rank=1, local_size=2, cross_rank=1, cross_size=3)
    assert torch_position(info) == {
        "RANK": "3",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
    }


def test_a_user_says_where_the_store_is() -> None:
    given = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5"}
    assert torch_master("127.0.0.1", given) == {}
    # These are of a job that this one was started from.
    found = torch_master("127.0.0.1", {**given, "RANK": "0"})
    assert found["MASTER_ADDR"] == "127.0.0.1"
    assert found["MASTER_PORT"] != "5"
    assert set(torch_master("10.0.0.2", {})) == {"MASTER_ADDR", "MASTER_PORT"}
