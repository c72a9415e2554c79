"""Lists of ranks in texts for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_SHORTEST_RUN = 3


def ranks_text(ranks: Iterable[int | str], *, most: int = 16) -> str:
    """``rank 3``, ``ranks 2, 3, 7-40``; names that are no numbers come last, as they are.

    After ``most`` numbers or runs of them it says how many more ranks there are.
    """
    names = [str(rank) for rank in ranks]
    runs = list(_runs(sorted(int(name) for name in names if name.isdecimal())))
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:most]]
    parts += [name for name in names if not name.isdecimal()]
    left_out = sum(map(len, runs[most:]))
    more = f" and {left_out} more" if left_out else ""
    return f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(parts)}{more}"


def _runs(numbers: list[int]) -> Iterator[range]:
    """Numbers that follow one another; one by one where they are too few to abbreviate."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            continue
        run = range(numbers[start], numbers[end - 1] + 1)
        yield from [run] if len(run) >= _SHORTEST_RUN else [range(n, n + 1) for n in run]
        start = end
