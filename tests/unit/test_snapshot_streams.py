"""What a snapshot says of streams, against sums in plain Python."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest

from msmemscope.folds.snapshots import MAX_STREAMS, SnapshotFold
from msmemscope.vocabulary import EVENT_COLUMNS, Kind


def fed(rows: list[dict[str, int]]) -> SnapshotFold:
    columns = {name: np.array([row.get(name, 0) for row in rows], kind) for name, kind in EVENT_COLUMNS.items()}
    fold = SnapshotFold()
    fold.take(columns, list(range(len(rows))))
    return fold


def segment(stream: int, size: int, used: int, largest: int) -> dict[str, int]:
    return {"kind": Kind.SNAPSHOT_SEGMENT, "size": size, "used": used, "total": largest, "attr": stream, "aux": 2}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_free_with_other_streams(seed: int) -> None:
    chance = Random(seed)
    rows: list[dict[str, int]] = []
    for _ in range(chance.randint(1, 3)):  # the latest counts alone
        rows.append({"kind": Kind.SNAPSHOT, "used": 1, "total": 2})
        used, free, largest = (defaultdict(int) for _ in range(3))
        for _ in range(chance.randint(0, 30)):
            stream, size = chance.randint(0, 4), chance.randint(1, 100) << 20
            given = chance.choice([0, size, chance.randint(0, size)])
            piece = chance.randint(0, size - given)
            rows.append(segment(stream, size, given, piece))
            used[stream] += given
            free[stream] += size - given
            largest[stream] = max(largest[stream], piece)
    (one,) = fed(rows).tables()
    assert one.streams == len(used)
    others = sorted(used, key=lambda stream: -used[stream])[1:]
    assert one.other_free == sum(free[stream] for stream in others)
    assert one.other_largest == max((largest[stream] for stream in others), default=0)


def test_streams_without_end_cost_no_memory() -> None:
    rows = [{"kind": Kind.SNAPSHOT}, segment(0, 100, 100, 0), *(segment(n, 10, 1, 9) for n in range(1, 1000))]
    (one,) = fed(rows).tables()
    assert one.streams == MAX_STREAMS
    # Those beyond are one, which holds most by then.
    assert one.other_free == 9 * (MAX_STREAMS - 2)
