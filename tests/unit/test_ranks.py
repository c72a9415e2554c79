import pytest

from horovod.core.base.ranks import ranks_text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([3, 2], "ranks 2, 3"),
        (range(1, 41), "ranks 1-40"),
        ({9, 5, 4, 3, 7}, "ranks 3-5, 7, 9"),
        (range(0, 40, 2), f"ranks {', '.join(map(str, range(0, 32, 2)))} and 4 more"),
        (["3"], "rank 3"),
        (["0", "1", "2", "7", "9 (pid 5)"], "ranks 0-2, 7, 9 (pid 5)"),
    ],
)
def test_ranks_in_a_text(ranks, text):
    assert ranks_text(ranks) == text


def test_all_of_them_if_asked_for():
    assert ranks_text(range(0, 10, 2), most=2) == "ranks 0, 2 and 3 more"
    assert ranks_text(range(0, 10, 2), most=5) == "ranks 0, 2, 4, 6, 8"
