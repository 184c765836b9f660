"""Rows that are sorted on disk, against numpy's sort of all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from watched import SmallDisk

from msmemscope.errors import MemscopeError
from msmemscope.imports import external_sort
from msmemscope.imports.external_sort import Columns, Sorter

ROWS = 2000


@pytest.fixture(params=[(100, 16, 3), (1 << 18, 1 << 15, 32)], ids=["many runs", "one chunk"], autouse=True)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(("CHUNK_ROWS", "BLOCK_ROWS", "FAN_IN"), request.param, strict=True):
        monkeypatch.setattr(external_sort, name, value)


def pieces_of(columns: Columns, seed: int) -> Iterator[Columns]:
    chance, at = np.random.default_rng(seed), 0
    while at < len(columns["ts"]):
        end = at + int(chance.integers(0, 60))
        yield {name: column[at:end] for name, column in columns.items()}
        at = end


@pytest.mark.parametrize("order", ["random", "nearly sorted", "sorted", "backwards", "all equal"])
@pytest.mark.parametrize("names", [(), ("payload",), ("id", "payload")])
def test_rows_come_as_a_stable_sort_of_all_of_them_gives_them(
    tmp_path: Path, order: str, names: tuple[str, ...]
) -> None:
    chance = np.random.default_rng(3)
    ts = {
        "random": chance.integers(0, 50, ROWS),
        "nearly sorted": np.arange(ROWS) // 7 + chance.integers(0, 40, ROWS),
        "sorted": np.arange(ROWS),
        "backwards": np.arange(ROWS)[::-1],
        "all equal": np.zeros(ROWS),
    }[order].astype(np.uint64)
    payload = chance.integers(0, 1 << 63, ROWS).astype(np.uint64)
    columns = {"ts": ts, "id": chance.integers(-3, 5, ROWS), "payload": payload, "pid": np.full(ROWS, 7, np.uint32)}
    wanted = np.lexsort((columns["id"], ts))
    with Sorter(tmp_path, ("ts", "id")) as rows:
        for piece in pieces_of(columns, 1):
            rows.add(piece)
        for _ in range(2):  # as often as they are asked for
            found = list(rows.in_order(names))
            assert max(len(one[(names or ("id",))[0]]) for one in found) <= external_sort.BLOCK_ROWS
            for name in names or columns:
                assert np.array_equal(np.concatenate([one[name] for one in found]), columns[name][wanted]), name
        anyhow = np.concatenate([one["payload"] for one in rows.in_any_order(("payload",))])
        assert sorted(anyhow.tolist()) == sorted(payload.tolist())
    assert not list(tmp_path.iterdir())  # the file has no name


def test_extreme_numbers_are_kept(tmp_path: Path) -> None:
    ts = np.array([0, (1 << 64) - 1, 1 << 63, 5], np.uint64)
    ids = np.array([-(1 << 63), (1 << 63) - 1, 0, -1], np.int64)
    with Sorter(tmp_path, ("ts",)) as rows:
        rows.add({"ts": ts, "id": ids})
        (found,) = rows.in_order()
    assert found["ts"].tolist() == sorted(ts.tolist())
    assert found["id"].tolist() == [-(1 << 63), -1, 0, (1 << 63) - 1]


def test_nothing_in_gives_nothing(tmp_path: Path) -> None:
    with Sorter(tmp_path, ("ts",)) as rows:
        rows.add({"ts": np.zeros(0, np.uint64)})
        assert (len(rows), list(rows.in_order())) == (0, [])


def fill(place: Path) -> None:
    """4 MiB, written when they are a chunk, or else when they are asked for; some of the disk is left all the same."""
    with Sorter(place, ("ts",)) as rows:
        try:
            rows.add({"ts": np.random.default_rng(1).integers(0, 1 << 60, (4 << 20) // 8)})
            next(rows.in_order())
        finally:
            assert shutil.disk_usage(place).free > 1 << 20


def test_a_small_disk_has_room_for_few_rows_and_a_full_one_is_told_before_it_is_full(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 4)
    try:
        with Sorter(disk.path, ("ts",)) as rows:
            few = np.random.default_rng(1).integers(0, 9, 99)
            rows.add({"ts": few})
            assert [n for found in rows.in_order() for n in found["ts"].tolist()] == sorted(few.tolist())
        with pytest.raises(MemscopeError, match="the disk is full"):
            fill(disk.path)
    finally:
        disk.close()
