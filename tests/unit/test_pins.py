"""Which lines pin segments: against a search block by block."""

from __future__ import annotations

import random

import numpy as np
import pytest

from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.merged_stack import merged
from msmemscope.analysis.pins import pins_of
from msmemscope.tables.run import Frame

LINES = 4


def frames(stack: int) -> tuple[Frame, ...]:
    """Several call stacks of one line, and one that has no frames."""
    return () if stack == 9 else (Frame("/src/train.py", f"f{stack % LINES}", 10 + stack % LINES, "python"),)


@pytest.mark.parametrize("seed", range(40))
def test_each_segment_is_charged_to_the_line_that_holds_most_of_it(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([0, 1, 5, 60, 200])
    blocks = [
        (chance.randrange(12), chance.choice([1, 2, 3, 5, 6, 9]), chance.choice([0, 0, 7]), chance.choice([1, 2, 8]))
        for _ in range(count)
    ]  # segment, Python and native stack, size
    free = [chance.choice([0, 100, 300]) for _ in range(12)]
    expected: dict[int, list[int]] = {}
    for segment in dict.fromkeys(one[0] for one in blocks):
        held: dict[tuple[int, int], list[int]] = {}
        for at, python, native, size in blocks:
            if at == segment:
                entry = held.setdefault((python, native), [0, 0])
                entry[0], entry[1] = entry[0] + size, entry[1] + 1
        stack, (size, number) = max(held.items(), key=lambda one: one[1][0])  # of equals the first
        innermost = line_of(merged(*(frames(one) if one else () for one in stack)))
        line = innermost.line if innermost is not None else 0
        sums = expected.setdefault(line, [0, 0, 0, 0])
        sums[:] = [one + more for one, more in zip(sums, (free[segment], 1, size, number), strict=True)]
    columns = np.array(blocks, np.int64).reshape(-1, 4)
    found = pins_of(
        frames,
        {
            "stack_py": columns[:, 1].astype(np.uint64),
            "stack_c": columns[:, 2].astype(np.uint64),
            "size": columns[:, 3],
        },
        columns[:, 0],
        {"size": np.full(12, 1000), "used_bytes": 1000 - np.array(free)},
    )
    assert [(one.place[1], [one.pinned_bytes, one.segments, one.bytes, one.blocks]) for one in found] == sorted(
        ((line, sums) for line, sums in expected.items() if sums[0]), key=lambda one: -one[1][0]
    )
