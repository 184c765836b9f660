"""An import does not depend on how its files are cut into pieces, nor on how many of them fit into memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from msmemscope.errors import InputError, UsageError
from msmemscope.imports import external_sort, upstream_events, upstream_files, writer
from msmemscope.imports.job import Request, import_job
from msmemscope.tables.run import Run
from msmemscope.vocabulary import EVENT_COLUMNS, Kind

HEADER = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python)"
START = 1_795_000_000_000_000_000
SMALL = (
    (external_sort, "CHUNK_ROWS", 90),
    (external_sort, "BLOCK_ROWS", 16),
    (external_sort, "FAN_IN", 3),
    (upstream_files, "PIECE_ROWS", 25),
    (upstream_files, "_PIECE_BYTES", 2000),
    (upstream_events, "_CHECKED_AT_ONCE", 64),
    (writer, "PART_ROWS", 300),
    (writer, "_DEFINED_BYTES", 2000),
)


def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


class Cards:
    """The rows of one process, in a file for each of its two cards. Those of no device stand in both."""

    def __init__(self, pid: int, chance: random.Random) -> None:
        self.rows: dict[int, list[str]] = {0: [], 1: []}
        self._pid, self._chance = pid, chance
        self._now, self._number = START + pid, 0

    def add(self, card: int | None, event: str, kind: str, rest: str, name: str = "N/A") -> None:
        self._now += self._chance.choice((0, 1, 1000))
        head = f"{self._number},{event},{kind},{name},{self._now},{self._pid},{self._pid + self._number % 3}"
        for one in (0, 1) if card is None else (card,):
            self.rows[one].append(f"{head},{'N/A' if card is None else card},{rest}")
        self._number += 1


def job(directory: Path, processes: int = 3, steps: int = 30) -> None:
    """Files whose rows are nearly in order."""
    chance = random.Random(7)
    for rank in range(processes):
        cards = Cards(100 + rank, chance)
        for step in range(steps):
            for block in range(6):
                card, address = block % 2, 0x1000 * (block + 1)
                attr = f'0x{address:x},"{{allocation_id:1,addr:0x{address:x},size:512,used:512,total:1024}}"'
                cards.add(card, "MSTX", "Range_start", "N/A,,", f"range {step}")
                cards.add(card, "MALLOC", "PTA", f"{attr},/src/train.py({block}): f")
                cards.add(card, "FREE", "PTA", f"{attr},")
                cards.add(card, "MSTX", "Range_end", "N/A,,", "")
            attr = f'0x{0x100000 * (step + 1):x},"{{allocation_id:9,size:4096,used:1,total:2,owner:CANN@HCCL}}"'
            cards.add(1, "MALLOC", "HAL", f"{attr},/src/train.py(58): hoard")
            cards.add(None, "SYSTEM", "STEP", "N/A,,", str(step))
        home = directory / f"rank{rank}" / f"msmemscope_{100 + rank}_1_ascend"
        home.mkdir(parents=True)
        for card, lines in cards.rows.items():
            for at in range(0, len(lines) - 8, 5):
                lines[at], lines[at + 7] = lines[at + 7], lines[at]
            (home / f"memscope_dump_{card}.csv").write_text("\n".join([HEADER, *lines]) + "\n")


def tables_of(run: Path) -> dict[str, Any]:
    """All that stands in a run, without how it is cut into parts."""
    found: dict[str, Any] = {"info": Run(run).info}
    for process in Run(run).processes:
        batches = list(Run(run).events(rings=[process.ring]))
        for name in EVENT_COLUMNS:
            found[f"{process.rank} {name}"] = np.concatenate([batch[name].to_numpy() for batch in batches]).tolist()
    for kind in ("strings", "frames", "stacks"):
        rows = {repr(row) for path in run.glob(f"{kind}/*.parquet") for row in pq.read_table(path).to_pylist()}
        found[kind] = sorted(rows)
    return found


@pytest.mark.parametrize(
    "wishes", [{}, {"steps_by": "rhythm"}, {"steps_by": "range"}, {"steps_at": ("+1e-5", "+2e-5")}]
)
def test_a_run_is_the_same_however_few_rows_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, Any]
) -> None:
    job(tmp_path / "job")
    import_job(Request((tmp_path / "job",), tmp_path / "whole", **wishes))
    whole = tables_of(tmp_path / "whole")
    in_small_pieces(monkeypatch)
    import_job(Request((tmp_path / "job",), tmp_path / "pieces", **wishes))
    assert tables_of(tmp_path / "pieces") == whole
    assert len(list((tmp_path / "pieces" / "events").iterdir())) > len(list((tmp_path / "whole" / "events").iterdir()))
    assert not list(tmp_path.glob("*~"))


@pytest.mark.parametrize("small", [False, True])
def test_events_are_in_the_order_of_time_and_rows_of_no_device_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if small:
        in_small_pieces(monkeypatch)
    job(tmp_path / "job", processes=2, steps=20)
    import_job(Request((tmp_path / "job",), tmp_path / "run"))
    run = Run(tmp_path / "run")
    for process in run.processes:
        batches = list(run.events(rings=[process.ring]))
        kind, ts, attr, step = (
            np.concatenate([batch[name].to_numpy() for batch in batches]) for name in ("kind", "ts", "attr", "step")
        )
        assert (np.diff(ts.astype(np.int64)) >= 0).all()
        assert np.count_nonzero(kind == Kind.MARK) == 20
        assert np.count_nonzero(kind == Kind.MALLOC) == 20 * 7
        starts, ends = attr[kind == Kind.RANGE_START], attr[kind == Kind.RANGE_END]
        assert sorted(starts.tolist()) == sorted(ends.tolist())
        assert step[kind == Kind.STEP].tolist() == list(range(2, 22))


@pytest.mark.parametrize("small", [False, True])
def test_two_files_with_one_id_are_refused_though_their_rows_lie_far_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if small:
        in_small_pieces(monkeypatch)
    for number, ids in enumerate((range(0, 400, 2), range(1, 400, 2), [777, 300])):
        rows = [f'{id},MALLOC,PTA,N/A,{START + id},7,7,{number},0x{id:x}0,"{{size:1}}",' for id in ids]
        (tmp_path / f"memscope_dump_{number}.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    with pytest.raises(InputError, match=r"_0\.csv and .*_2\.csv both have the row with ID 300 of process 7"):
        import_job(Request((tmp_path,), tmp_path / "run"))


def test_damaged_rows_of_a_file_count_once_however_many_processes_it_has(tmp_path: Path) -> None:
    rows = [f'{id},MALLOC,PTA,N/A,{START + id},{id % 5 + 1},7,0,0x{id:x}0,"{{size:1}}",' for id in range(50)]
    path = tmp_path / "memscope_dump_1.csv"
    path.write_text("\n".join([HEADER, *rows[:20], "x,MALLOC,PTA,N/A,1,7,7,0,0x1,,", *rows[20:]]) + "\n")
    import_job(Request((path,), tmp_path / "run"))
    run = Run(tmp_path / "run")
    assert run.info["losses"]["invalid_records"] == 1
    assert ["row 21" in process.not_seen["rows"] for process in run.processes] == [True] * 5


def test_one_part_holds_many_processes(tmp_path: Path) -> None:
    rows = [f'{id},MALLOC,PTA,N/A,{START + id},{id % 200 + 1},7,0,0x{id:x}0,"{{size:1}}",' for id in range(2000)]
    (tmp_path / "memscope_dump_1.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    import_job(Request((tmp_path,), tmp_path / "run"))
    assert len(list((tmp_path / "run" / "events").iterdir())) == 1
    run = Run(tmp_path / "run")
    assert len(run.processes) == 200
    assert sum(batch.num_rows for batch in run.events(rings=[run.processes[9].ring])) == 10


def marks(tmp_path: Path, wishes: tuple[str, ...]) -> list[str]:
    for rank, begin in enumerate((0, 25)):  # the second process begins within the third step
        rows = [
            f'{id},MALLOC,PTA,N/A,{START + id * 1_000_000},{rank + 1},7,0,0x{id:x}0,"{{size:1}}",'
            for id in range(begin, 100)
        ]
        home = tmp_path / f"rank{rank}"
        home.mkdir(exist_ok=True)
        (home / "memscope_dump_1.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return import_job(Request((tmp_path / "rank0", tmp_path / "rank1"), tmp_path / "run", steps_at=wishes))


def test_a_process_that_begins_later_has_the_step_numbers_of_the_others(tmp_path: Path) -> None:
    assert marks(tmp_path, ("+0.01", "+0.02", "+0.03", "+0.04")) == ["steps begin at the 4 times of --steps-at"]
    run = Run(tmp_path / "run")
    begins = []
    for process in run.processes:
        rows = [row for batch in run.events(rings=[process.ring], kinds=[Kind.STEP]) for row in batch.to_pylist()]
        begins.append({row["step"]: row["ts"] - START for row in rows})
    assert begins == [{1: 10**7, 2: 2 * 10**7, 3: 3 * 10**7, 4: 4 * 10**7}, {3: 3 * 10**7, 4: 4 * 10**7}]


def test_times_that_begin_no_step_are_told(tmp_path: Path) -> None:
    notes = marks(tmp_path, (str(START // 1000 - 5), "+0", "+0.05", "+0.0991", "+3", "+4", "+5"))
    assert notes == [
        f"2 times of --steps-at begin no step: {START // 1000 - 5}, +0 lie at or before the first event",
        "4 times of --steps-at begin no step: +0.0991, +3, +4, ... lie behind the last event",
        "steps begin at the 7 times of --steps-at",
    ]


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (("+0.02", "+0.01"), r"go up, each once: \+0\.01 is before \+0\.02"),
        (("+0.02", "+0.02"), r"go up, each once: \+0\.02 is the one before it again"),
        (("+0.02", str(START // 1000 + 20_000)), "is the one before it again"),
        (("+9", "+10"), "none of the times"),
        (("+nan",), "--steps-at takes"),
        (("+inf",), "--steps-at takes"),
    ],
)
def test_times_in_no_order_are_refused(tmp_path: Path, times: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        marks(tmp_path, times)
    assert not (tmp_path / "run").exists()
