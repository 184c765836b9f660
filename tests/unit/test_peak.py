"""What was alive at the peak: jobs whose every block is known."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from fake_run import FakeRun, frame, process

from msmemscope.analysis.analyzer import tables_of
from msmemscope.analysis.blocks import fold
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.owners import UNATTRIBUTED
from msmemscope.analysis.peak import AGE, EARLIER, LINE, OWNER, REST, THIS_STEP, WARM_UP, PeakOptions, judge
from msmemscope.vocabulary import DeviceType, Kind, Pool

MIB = 1 << 20
NPU = {"device_type": DeviceType.NPU, "pool": Pool.PTA}
MAIN = frame("/src/train.py", "<module>", 90)


def job(ranks: int, *, extra: dict[int, int] | None = None, steps: int = 6, lines: int = 3) -> FakeRun:
    """Weights at line 10 (100 MiB), a buffer from step 2 on at line 15 (8 MiB, labelled), activations of each step at
    lines 20 and behind (10, 20, ... MiB); in step 4 a rank of `extra` gathers so many MiB at line 88."""
    run = FakeRun(
        [process(rank + 1, rank=rank, world_size=ranks, pid=100 + rank, local_rank=rank) for rank in range(ranks)],
        batch_rows=500,
    )
    at = {n: run.frames(frame("/src/train.py", "train", n), MAIN) for n in (10, 15, 88, *range(20, 20 + lines))}
    label = run.text("cache")
    for rank in range(ranks):
        where = {**NPU, "device": rank, "ring": rank + 1}
        ts = 1000
        run.malloc(ts, 0x1000, 100 * MIB, stack_py=at[10], **where)
        for step in range(2, 2 + steps):
            ts += 100
            run.add(Kind.STEP, ts, ring=rank + 1, step=step, attr=step)
            if step == 2:
                run.malloc(ts + 1, 0x2000, 8 * MIB, step=step, stack_py=at[15], **where)
                run.add(Kind.LABEL_ADDR, ts + 2, ptr=0x2000, name=label, aux=5, step=step, ring=rank + 1,
                        device=rank, device_type=DeviceType.NPU, pool=Pool.PTA)  # fmt: skip
            for n in range(lines):
                run.malloc(ts + 3 + n, 0x10000 * (n + 1), 10 * (n + 1) * MIB, step=step, stack_py=at[20 + n], **where)
            if step == 4 and (more := (extra or {}).get(rank)):
                run.malloc(ts + 50, 0x900000, more * MIB, step=step, stack_py=at[88], **where)
                run.free(ts + 51, 0x900000, step=step, **where)
            for n in range(lines):
                run.free(ts + 60 + n, 0x10000 * (n + 1), step=step, **where)
        run.add(Kind.STEP, ts + 90, ring=rank + 1, step=2 + steps, attr=2 + steps)
        run.free(ts + 91, 0x1000, step=2 + steps, **where)
    return run


def told(run: FakeRun, **options: Any) -> Finding:
    folded = fold(run)  # type: ignore[arg-type]
    tables = tables_of(run, folded.tracked(run.processes), folded.held, dict)  # type: ignore[arg-type]
    (one,) = judge(tables, PeakOptions(**options))
    return one


def rows(one: Finding) -> dict[tuple[str, str], dict[str, Any]]:
    """By ranks and table, of what: its row."""
    found: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for row in one.rows:
        cells = row.cells
        what = cells["line"] if cells["by"] == LINE and not cells["what"] else cells["what"]
        found[str(cells["ranks"]), str(cells["by"])][what] = cells
    return found


def test_lines_owners_and_ages_each_add_up_to_the_peak() -> None:
    one = told(job(1, extra={0: 300}))
    table = rows(one)
    lines = {what: (cells["bytes"] // MIB, cells["blocks"]) for what, cells in table["0", LINE].items()}
    assert lines == {88: (300, 1), 10: (100, 1), 22: (30, 1), 21: (20, 1), 20: (10, 1), 15: (8, 1)}
    owners = {what: cells["bytes"] // MIB for what, cells in table["0", OWNER].items()}
    assert owners == {"PTA": 460, "PTA@cache": 8}
    ages = {what: cells["bytes"] // MIB for what, cells in table["0", AGE].items()}
    assert ages == {THIS_STEP: 360, EARLIER: 8, WARM_UP: 100}
    for part in table.values():
        assert sum(cells["bytes"] for cells in part.values()) == 468 * MIB
        assert {(cells["pool_bytes"], cells["step"], cells["device"]) for cells in part.values()} == {
            (468 * MIB, 4, "npu:0")
        }
    assert one.is_note
    assert one.sentence == (
        "Rank 0 held most at its peak in step 4: 468 MiB in PTA on npu:0; allocated in: 360 MiB of this step, 8.0 MiB "
        "of earlier steps, 100 MiB of the first iteration and before."
    )
    assert one.details[0].split() == ["300", "MiB", "64.1", "%", "train.py:88", "in", "1", "block"]


def test_what_nobody_has_named_is_unattributed_as_in_every_other_report() -> None:
    run = FakeRun([process(1, rank=0)], batch_rows=500)
    host = {"device_type": DeviceType.CPU, "device": 0, "pool": Pool.HOST, "ring": 1}
    stack = run.frames(MAIN)
    run.malloc(1000, 0x1000, 3 * MIB, stack_py=stack, **host)
    run.malloc(1001, 0x900000, MIB, stack_py=stack, **host)
    run.add(Kind.LABEL_ADDR, 1002, ptr=0x900000, name=run.text("cache"), aux=5, step=0, **host)
    run.add(Kind.STEP, 1100, ring=1, step=2, attr=2)
    one = told(run)
    (table,) = [part for (_, by), part in rows(one).items() if by == OWNER]
    assert {what: cells["bytes"] // MIB for what, cells in table.items()} == {UNATTRIBUTED: 3, "cache": 1}
    assert any(line.split() == ["3.0", "MiB", "75.0", "%", UNATTRIBUTED] for line in one.details)


def test_what_has_no_row_of_its_own_is_the_rest() -> None:
    table = rows(told(job(1, lines=30), lines=4))
    lines = table["0", LINE]
    assert [key for key in lines if key != REST] == [49, 48, 47, 46]
    assert sum(cells["bytes"] for cells in lines.values()) == (108 + 10 * 465) * MIB
    assert lines[REST]["blocks"] == 28


def test_ranks_that_are_alike_share_rows_and_one_that_is_not_has_its_own() -> None:
    one = told(job(8, extra={3: 300}))
    table = rows(one)
    assert {ranks for ranks, _ in table} == {"3", "0-2,4-7"}
    assert table["3", LINE][88]["bytes"] == 300 * MIB
    shared = table["0-2,4-7", LINE][10]
    assert (shared["pool_bytes"], shared["least_bytes"], shared["bytes"]) == (168 * MIB, 168 * MIB, 100 * MIB)
    assert one.sentence.startswith("Rank 3 held most at its peak in step 4: 468 MiB in PTA on npu:3;")
    assert "1 other pool: cluster/peak.csv" in one.sentence


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_of_ranks_that_are_alike_the_figures_are_those_of_the_one_that_holds_most(share: float) -> None:
    run = job(2, extra={0: 300, 1: int(300 * share)})
    one = told(run)
    table = rows(one)
    assert {ranks for ranks, _ in table} == ({"0-1"} if share > 0.95 else {"0", "1"})
    for ranks, least in (("0-1", 168 + 297),) if share > 0.95 else (("0", 468), ("1", 168 + 150)):
        cells = table[ranks, LINE][88]
        assert cells["least_bytes"] == least * MIB
        assert cells["pool_bytes"] == (least if ranks == "1" else 468) * MIB
    assert ("465 MiB and more on each" in one.sentence) == (share > 0.95)


def test_nothing_recorded_is_nothing_said() -> None:
    run = FakeRun([process()])
    folded = fold(run)  # type: ignore[arg-type]
    tables = tables_of(run, folded.tracked(run.processes), folded.held, dict)  # type: ignore[arg-type]
    assert judge(tables, PeakOptions()) == []


def test_a_limit_of_no_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="lines takes a number from 1 on"):
        PeakOptions(lines=0)
