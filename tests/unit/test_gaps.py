"""The gap table, against hand-made steps whose ratios are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from msmemscope.analysis.gaps import Gap, gap_table
from msmemscope.vocabulary import DeviceType, Pool

MIB = 1 << 20


def steps_table(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    defaults = {
        "process": 0,
        "device_type": int(DeviceType.NPU),
        "device": 0,
        "pool": int(Pool.PTA),
        "step": 0,
        "start_bytes": 0,
        "end_bytes": 0,
        "min_bytes": 0,
        "most_bytes": 0,
        "complete": True,
        "steps": 1,
    }
    return {name: np.array([{**defaults, **row}[name] for row in rows]) for name in defaults}


def test_smallest_and_largest_ratio_are_named_with_their_steps():
    table = steps_table(
        [
            {"step": 0, "min_bytes": 0, "most_bytes": 9 * MIB},
            {"step": 1, "min_bytes": 0, "most_bytes": 10 * MIB},
            {"step": 2, "min_bytes": 4 * MIB, "most_bytes": 10 * MIB},
            {"step": 3, "min_bytes": 5 * MIB, "most_bytes": 10 * MIB},
            {"step": 4, "min_bytes": 2 * MIB, "most_bytes": 8 * MIB},
            {"step": 5, "min_bytes": 5 * MIB, "most_bytes": 10 * MIB},
        ]
    )
    (gaps,) = gap_table(table)
    assert (gaps.device, gaps.pool) == ("npu:0", "PTA")
    assert gaps.smallest == Gap(0.25, 2 * MIB, 8 * MIB, 4)
    assert gaps.largest == Gap(0.5, 5 * MIB, 10 * MIB, 3)  # the first of two equal steps


def test_warm_up_and_the_open_step_do_not_count():
    table = steps_table(
        [
            {"step": 0, "min_bytes": 1, "most_bytes": 100},
            {"step": 1, "min_bytes": 1, "most_bytes": 100},
            {"step": 2, "min_bytes": 50, "most_bytes": 100},
            {"step": 3, "min_bytes": 100, "most_bytes": 100, "complete": False},
        ]
    )
    (gaps,) = gap_table(table)
    assert gaps.smallest == gaps.largest == Gap(0.5, 50, 100, 2)


def test_every_pool_device_and_process_has_its_own_table_whatever_the_order_of_rows():
    rows = [
        {"process": p, "device": d, "pool": int(pool), "step": s, "min_bytes": 10 * s + d, "most_bytes": 100 + p}
        for p in (0, 1)
        for d in (0, 1)
        for pool in (Pool.PTA, Pool.ATB, Pool.PTA_WORKSPACE)
        for s in (2, 3, 4)
    ]
    np.random.default_rng(7).shuffle(rows)
    gaps = gap_table(steps_table(rows))
    assert [(g.process, g.device, g.pool) for g in gaps] == [
        (p, f"npu:{d}", pool) for p in (0, 1) for d in (0, 1) for pool in ("PTA", "PTA_WORKSPACE", "ATB")
    ]
    assert all(g.smallest is not None and g.smallest.step == 2 for g in gaps)
    assert all(g.largest is not None and g.largest.step == 4 for g in gaps)
    assert gaps[-1].largest == Gap(41 / 101, 41, 101, 4)


def test_a_pool_that_is_empty_has_no_ratio():
    (gaps,) = gap_table(steps_table([{"step": 2}, {"step": 3}]))
    assert (gaps.smallest, gaps.largest, gaps.empty_steps) == (None, None, 2)
    (gaps,) = gap_table(steps_table([{"step": 2}, {"step": 3, "min_bytes": 3, "most_bytes": 4}]))
    assert gaps.smallest == Gap(0.75, 3, 4, 3)
    assert gaps.empty_steps == 1


def test_no_steps_no_table():
    assert gap_table(steps_table([])) == []
