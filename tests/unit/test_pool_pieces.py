"""Segments and blocks of an allocator: what is told of them, and what a fold makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from msmemscope.collect.rank import pool_pieces
from msmemscope.collect.rank.pool_pieces import pieces_of
from msmemscope.folds.messages import pack, unpack
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.folds.snapshots import MAX_SNAPSHOTS, PoolSnapshot
from msmemscope.vocabulary import EVENT_COLUMNS, BlockState, DeviceType, Kind, Pool

MIB = 1 << 20


def segment(address: int, *blocks: tuple[int, str], device: int = 0) -> dict[str, Any]:
    """As torch.cuda.memory_snapshot() returns it; blocks: (size, state)."""
    return {
        "device": device,
        "address": address,
        "total_size": sum(size for size, _ in blocks),
        "stream": 7,
        "blocks": [{"size": size, "requested_size": size - 8, "state": state} for size, state in blocks],
    }


def test_a_segment_has_its_sums_and_each_block_its_place_and_state() -> None:
    told = segment(
        0x1000, (MIB, "active_allocated"), (2 * MIB, "inactive"), (MIB, "active_pending_free"), (4 * MIB, "inactive")
    )

    pieces, left_out = pieces_of([told, segment(0x9000, (MIB, "inactive"), device=1)], 0)

    assert left_out == 0
    assert pieces == [
        (False, 0x1000, 8 * MIB, MIB, 4 * MIB, 7, 4),
        (True, 0x1000, MIB, MIB - 8, -1, 0x1000, BlockState.ALLOCATED),
        (True, 0x1000 + MIB, 2 * MIB, 0, -1, 0x1000, BlockState.FREE),
        (True, 0x1000 + 3 * MIB, MIB, MIB - 8, -1, 0x1000, BlockState.PENDING_FREE),
        (True, 0x1000 + 4 * MIB, 4 * MIB, 0, -1, 0x1000, BlockState.FREE),
    ]


def test_of_too_many_blocks_those_of_the_largest_segments_are_told_and_the_sums_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_pieces, "MOST_BLOCKS", 3)
    small = segment(0x1000, (8, "inactive"), (8, "active_allocated"))
    large = segment(0x2000, (64, "inactive"), (64, "active_allocated"))

    pieces, left_out = pieces_of([small, large], 0)

    assert left_out == 2
    assert [piece[:3] for piece in pieces] == [
        (False, 0x2000, 128),
        (True, 0x2000, 64),
        (True, 0x2040, 64),
        (False, 0x1000, 16),
    ]


def events(rows: list[dict[str, int]]) -> dict[str, bytes]:
    import numpy as np

    blank = dict.fromkeys(COLUMNS, 0) | {"device_type": DeviceType.CUDA, "pool": Pool.CUDA}
    return {name: np.array([{**blank, **row}[name] for row in rows], EVENT_COLUMNS[name]).tobytes() for name in COLUMNS}


def told_of(fold: RingFold) -> tuple[PoolSnapshot, ...]:
    return unpack(pack(fold.tables())).snapshots


def test_a_fold_keeps_the_latest_snapshot_of_a_name_however_its_events_are_cut() -> None:
    first = [
        {"kind": Kind.SNAPSHOT, "name": 5, "device": 2, "ts": 10, "step": 1, "used": 100, "total": 900},
        {"kind": Kind.SNAPSHOT_SEGMENT, "name": 5, "device": 2, "size": 900, "used": 100, "total": 700, "aux": 3},
    ]
    second = [
        {"kind": Kind.SNAPSHOT, "name": 5, "device": 2, "ts": 20, "step": 4, "used": 300, "total": 1500},
        {"kind": Kind.SNAPSHOT_SEGMENT, "name": 5, "device": 2, "size": 900, "used": 300, "total": 400, "aux": 4},
        {"kind": Kind.SNAPSHOT_BLOCK, "name": 5, "device": 2, "size": 300, "used": 290, "aux": 1},
        {"kind": Kind.SNAPSHOT_SEGMENT, "name": 5, "device": 2, "size": 600, "used": 0, "total": 600, "aux": 1},
    ]
    for cut in range(7):
        fold = RingFold(1)
        rows = first + second
        fold.take(cut, events(rows[:cut]))
        fold.take(len(rows) - cut, events(rows[cut:]))
        (found,) = told_of(fold)
        assert found == PoolSnapshot(
            name=5, device_type=DeviceType.CUDA, device=2, pool=Pool.CUDA, ts=20, step=4, allocated=300, reserved=1500,
            taken=2, segments=2, blocks=5, largest_free=600, split_free=600, streams=1,
        )  # fmt: skip


def test_names_without_end_are_counted_and_not_kept() -> None:
    fold = RingFold(1)
    rows = [{"kind": Kind.SNAPSHOT, "name": name, "device": 0} for name in range(1, MAX_SNAPSHOTS + 8)]
    fold.take(len(rows), events(rows))
    assert len(told_of(fold)) == MAX_SNAPSHOTS
    assert fold.tables().left_out_snapshots == 7
