"""The search against made-up objectives: no engine, no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from horovod.autotune.knobs import Knob, Values
from horovod.autotune.search import PAIRS, Result, Search

MB = 1024 * 1024
FUSION = Knob("fusion_threshold_bytes", tuple(MB * 2**i for i in range(9)))
FORMAT = Knob("link_compression", ("none", "int8", "int4"))
BLOCK = Knob("allreduce_block_kb", (64, 128, 256, 512, 1024))
DEFAULTS: Values = {
    "fusion_threshold_bytes": 128 * MB,
    "cycle_time_ms": 0.0,
    "allreduce_block_kb": 512,
    "small_allreduce_kb": 64,
    "small_allreduce_between_hosts_kb": 64,
    "link_compression": "none",
}


def run(
    search: Search, score_of: Callable[[Values], float]
) -> tuple[Result, list[tuple[Values, str]]]:
    """The result, and all that was proposed with what for."""
    proposed = []
    while (proposal := search.propose()) is not None:
        proposed.append((proposal.values, proposal.phase))
        search.tell(score_of(proposal.values))
    result = search.result
    assert result is not None
    return result, proposed


def chance(seed: int, deviation: float) -> Iterator[float]:
    """Numbers about 1, without an end."""
    numbers = random.Random(seed)
    while True:
        yield numbers.gauss(1, deviation)


def speed(values: Values) -> float:
    """Best at 4 MB and 128 KB, 1.5 times as good as the defaults."""
    far = abs(FUSION.levels.index(values["fusion_threshold_bytes"]) - 2) / 8
    far += abs(BLOCK.levels.index(values["allreduce_block_kb"]) - 1) / 4
    return 100 / (1 + far)


def test_the_better_values_are_found_by_chance_in_few_of_all_points():
    result, proposed = run(Search((FUSION, BLOCK), DEFAULTS, 20, 0.1), speed)
    assert result.gain > 1.8
    assert len(proposed) == 20 + 2 * PAIRS
    assert len({tuple(values.values()) for values, phase in proposed if phase == "search"}) == 20


def test_noise_does_not_hide_what_is_much_better():
    for seed in range(5):
        search, luck = Search((FUSION, BLOCK), DEFAULTS, 20, 0.8), chance(seed, 0.05)
        result, _ = run(search, lambda values, luck=luck: speed(values) * next(luck))
        assert speed(result.values) > 1.5 * speed(DEFAULTS)


def test_what_is_only_luck_stays_with_the_defaults():
    for seed in range(20):
        search, luck = Search((FUSION, BLOCK), DEFAULTS, 20, 0.8), chance(seed, 0.01)
        result, _ = run(search, lambda _, luck=luck: next(luck))
        assert result.values == DEFAULTS


def test_ties_stay_with_the_defaults_without_a_comparison():
    result, proposed = run(Search((FUSION, BLOCK), DEFAULTS, 7, 0.8), lambda _: 5.0)
    assert result == Result(DEFAULTS, 5.0)
    assert [phase for _, phase in proposed] == ["search"] * 7


def test_the_defaults_come_first_and_what_is_fixed_stays():
    _, proposed = run(Search((BLOCK,), DEFAULTS, 20, 0.8), speed)
    assert proposed[0][0] == DEFAULTS
    searched = [values for values, phase in proposed if phase == "search"]
    assert len(searched) == 5  # all there is
    assert {values["fusion_threshold_bytes"] for values in searched} == {128 * MB}


def test_without_anything_to_change_it_ends_at_once():
    result, proposed = run(Search((), DEFAULTS, 20, 0.8), lambda _: 3.0)
    assert result == Result(DEFAULTS, 3.0)
    assert len(proposed) == 1


def test_the_documented_points_begin_the_search():
    cycle = Knob("cycle_time_ms", (0, 1, 5, 10, 25, 50))
    _, proposed = run(Search((FUSION, cycle), DEFAULTS, 6, 0.8), lambda _: 1.0)
    begun = [
        (values["fusion_threshold_bytes"] / MB, values["cycle_time_ms"]) for values, _ in proposed
    ]
    assert begun[:5] == [(128, 0), (4, 5), (32, 50), (16, 25), (8, 10)]


def test_each_format_is_tried_alone_first_and_the_fastest_one_is_found():
    factors = {"none": 1.0, "int8": 3.0, "int4": 2.0}

    def score(values: Values) -> float:
        return factors[str(values["link_compression"])] * speed(values)

    result, proposed = run(Search((FUSION, BLOCK, FORMAT), DEFAULTS, 20, 0.8), score)
    begun = [values for values, _ in proposed[:3]]
    assert begun == [{**DEFAULTS, "link_compression": name} for name in FORMAT.levels]
    assert result.values["link_compression"] == "int8"
    assert speed(result.values) > 1.2 * speed(DEFAULTS)  # the others are found with it


def test_a_format_that_is_only_as_fast_is_not_taken():
    result, _ = run(Search((FORMAT,), DEFAULTS, 20, 0.8), lambda _: 5.0)
    assert result.values == DEFAULTS


def test_a_proposal_stands_until_it_is_answered():
    search = Search((FUSION, BLOCK), DEFAULTS, 3, 0.8)
    first = search.propose()
    assert search.propose() is first
    search.tell(1.0)
    assert search.propose() is not first


def test_one_lucky_pair_is_not_enough_and_a_clear_lead_is():
    def result_of(gains: list[float]) -> Result:
        search = Search((BLOCK,), DEFAULTS, 2, 0.8)
        search.tell(1.0)
        search.tell(1.1)  # worth a comparison
        for gain in gains:
            for _ in range(2):
                proposal = search.propose()
                assert proposal is not None
                search.tell(gain if proposal.values != DEFAULTS else 1.0)
        assert search.result is not None
        return search.result

    assert result_of([3.0, 3.0, 1.01, 1.01, 1.01, 1.01, 1.01]).values == DEFAULTS
    assert result_of([1.05, 1.05, 1.05, 1.05, 1.05, 0.9, 0.9]).values == DEFAULTS
    assert result_of([1.05, 1.05, 1.05, 1.05, 1.05, 1.05, 0.9]).gain == 1.05
