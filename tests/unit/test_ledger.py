"""The ledger: cards of which every byte is planted, and what must be said where something is not known or wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_run import SECOND, FakeRun, frame, process

from msmemscope.analysis.analyzer import Tables, tables_of
from msmemscope.analysis.blocks import fold
from msmemscope.analysis.card_ledger import PoolLevel
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.host_ledger import host_ledger
from msmemscope.analysis.ledger import DOES_NOT_ADD_UP, KIND, UNEXPLAINED, LedgerOptions, find_ledgers, judge
from msmemscope.analysis.ledger_entries import Entry, Ledger, LedgerError, Mismatch, require_sums, wrong_sums
from msmemscope.analysis.usage import UsageIndex
from msmemscope.folds.host_use import UNKNOWN, HostSeries, host_series
from msmemscope.vocabulary import DeviceType, Kind, Pool

MIB, GIB = 1 << 20, 1 << 30
MODULES = {"HCCL": 3, "RUNTIME": 7, "APP": 33}
HUGE = 1 << 17
LAST = 9


def job(ranks: int = 1, *, others: int = 4 * GIB, hidden: int = 300 * MIB, says_process: bool = True) -> FakeRun:
    """A card of 64 GiB for each rank. The driver gave 200 MiB for HCCL, 1 MiB + 1 byte in small pages and 10 MiB less
    one byte in huge pages for RUNTIME, and three segments of 20 MiB for the pool, of which blocks cover 19 + 2 + 0 MiB;
    64 MiB of its own for the program. `hidden` bytes of the process nobody saw. Step 5 has 5 MiB more in blocks."""
    run = FakeRun(
        [process(n + 1, rank=n, world_size=ranks, pid=100 + n, local_rank=n) for n in range(ranks)], batch_rows=99
    )
    stack = run.frames(frame("/src/train.py", "main", 12))
    weight = run.text("weight")
    for rank in range(ranks):
        at: dict[str, Any] = {"ring": rank + 1, "device": rank, "device_type": DeviceType.NPU}
        hal = {**at, "pool": Pool.HAL}
        pta = {**at, "pool": Pool.PTA, "stack_py": stack, "total": 60 * MIB}
        ts = SECOND
        run.malloc(ts, 0x1000000, 200 * MIB, attr=MODULES["HCCL"] << 56 | HUGE, **hal)
        run.malloc(ts + 1, 0x20000000, MIB + 1, attr=MODULES["RUNTIME"] << 56, **hal)
        run.malloc(ts + 2, 0x21000000, 10 * MIB - 1, attr=MODULES["RUNTIME"] << 56 | HUGE, **hal)
        run.malloc(ts + 3, 0x22000000, 64 * MIB, attr=MODULES["APP"] << 56 | HUGE, **hal)
        for n in range(3):
            run.malloc(ts + 4 + n, 0x30000000 + n * 20 * MIB, 20 * MIB, attr=MODULES["APP"] << 56 | HUGE, **hal)
        run.malloc(ts + 10, 0x30000000, 19 * MIB, **pta)
        run.add(Kind.LABEL_ADDR, ts + 11, ptr=0x30000000, name=weight, aux=3, **at, pool=Pool.PTA)
        run.malloc(ts + 12, 0x30000000 + 20 * MIB, 2 * MIB, **pta)
        for step in range(2, LAST + 2):
            ts += SECOND
            run.add(Kind.STEP, ts, ring=rank + 1, step=step, attr=step)
            if step == 5:
                run.malloc(ts + 1, 0x30000000 + 40 * MIB, 5 * MIB, step=step, **pta)
            if step == 6:
                run.free(ts + 1, 0x30000000 + 40 * MIB, step=step, **{**pta, "stack_py": 0})
        own = 200 * MIB + (MIB + 4096) + 10 * MIB + 64 * MIB + 60 * MIB + hidden
        held = own if says_process else None
        used = own + others
        run.sample(2 * SECOND + 20, f"npu:{rank}", ring=rank + 1, used=used, total=64 * GIB, process_used=held)
        run.sample(
            SECOND + 20,
            "cpu",
            ring=rank + 1,
            used=9 * GIB,
            total=32 * GIB,
            rss=2 * GIB,
            shared=100 * MIB,
            mapped=300 * MIB,
        )
    return run


def tables(run: FakeRun) -> Tables:
    folded = fold(run)  # type: ignore[arg-type]
    known = tables_of(run, folded.tracked(run.processes), folded.held, lambda: {"host-a/cpu": 32 * GIB})  # type: ignore[arg-type]
    host = host_series(run.usage())
    return replace(known, read_usage=lambda: UsageIndex(run), read_host=lambda: host)  # type: ignore[arg-type]


def told(run: FakeRun, **options: Any) -> list[Finding]:
    return judge(tables(run), LedgerOptions(**options))


def card(ledgers: list[Ledger], device: str = "npu:0") -> dict[str, int | None]:
    (one,) = [one for one in ledgers if one.device == device]
    require_sums(one)
    return {"/".join(entry.path): entry.bytes for entry in one.entries}


def test_every_byte_of_the_card_has_its_name_at_the_last_step() -> None:
    found = card(find_ledgers(tables(job())))
    assert found == {
        "card": 4 * GIB + 635 * MIB + 4096,
        "card/other processes": 4 * GIB,
        "card/process": 635 * MIB + 4096,
        "card/process/CANN@HCCL": 200 * MIB,
        "card/process/CANN@APP": 64 * MIB,
        "card/process/CANN@RUNTIME": 11 * MIB + 4096,  # in whole pages
        "card/process/PTA": 60 * MIB,
        "card/process/PTA/allocated": 21 * MIB,
        "card/process/PTA/allocated/weight": 19 * MIB,
        "card/process/PTA/allocated/unattributed": 2 * MIB,
        "card/process/PTA/fragmented": 19 * MIB,  # 1 of the first segment, 18 of the second
        "card/process/PTA/cached": 20 * MIB,
        "card/process/residual": 300 * MIB,
    }


def test_of_an_earlier_step_only_sums_are_known_and_pages_are_the_residuals() -> None:
    found = card(find_ledgers(tables(job()), 5))
    assert found["card/process/CANN@RUNTIME"] == 11 * MIB
    assert found["card/process/residual"] == 300 * MIB + 4096
    assert (found["card/process/PTA/allocated"], found["card/process/PTA/free"]) == (26 * MIB, 34 * MIB)
    assert "card/process/PTA/cached" not in found


def test_a_step_that_nobody_has_reached_has_no_ledger() -> None:
    assert find_ledgers(tables(job()), LAST + 1) == []
    (note,) = told(job(), step=LAST + 1)
    assert note.is_note
    assert not note.more_rows
    assert note.sentence == f"no ledger: nobody came to the end of step {LAST + 1}; the last that ended is {LAST}."


def test_what_nobody_says_is_unknown_and_not_zero() -> None:
    found = card(find_ledgers(tables(job(says_process=False))))
    assert "card/process/residual" not in found
    assert found["card/process"] == 335 * MIB + 4096
    assert found["card/other processes"] == 4 * GIB + 300 * MIB  # with what was not recorded
    run = job()
    run.samples.clear()
    found = card(find_ledgers(tables(run)))
    assert (found["card"], found["card/other processes"]) == (None, None)
    (host,) = [one for one in find_ledgers(tables(run)) if one.device == "cpu"]
    assert host.entries[0] == Entry(("host",), None)


def test_a_residual_is_told_when_it_is_large_and_may_be_negative() -> None:
    (note,) = told(job())
    assert note.kind == KIND
    assert note.is_note
    found, _ = told(job(hidden=7 * GIB))
    assert (found.kind, found.ranks, found.device, found.bytes) == (UNEXPLAINED, (0,), "npu:0", 7 * GIB)
    assert found.sentence == (
        f"Rank 0: 7.0 GiB of 64 GiB on npu:0 are the process's, and nobody was seen asking for them, "
        f"at the end of step {LAST}."
    )
    found, _ = told(job(hidden=-100 * MIB), residual_share=0.001)
    assert (found.kind, found.bytes) == (UNEXPLAINED, -100 * MIB)
    assert "more was recorded than the driver says" in found.sentence


def test_what_came_since_the_sample_is_in_the_residual_and_no_finding() -> None:
    """The sample is of the iteration in which everything was allocated: it may have come before any of it."""
    run = job(hidden=-100 * MIB)
    for one in run.samples:
        one["ts"] = SECOND + 20
    (note,) = told(run, residual_share=0.001)
    assert note.kind == KIND
    (residual,) = [line for line in note.details if "residual" in line]
    assert residual.endswith("residual: 0 B to 335 MiB came since the card was sampled")
    (one,) = [one for one in find_ledgers(tables(run)) if one.device == "npu:0"]
    assert (one.since.least, one.since.most) == (0, 335 * MIB)


@pytest.mark.parametrize("has_driver", [True, False])
def test_a_residual_is_told_only_where_the_drivers_blocks_were_recorded(has_driver: bool) -> None:
    """Of a GPU whose driver nobody saw asked, most of the process is always unexplained."""
    run = FakeRun([process(rank=0)])
    gpu = {"device": 0, "device_type": DeviceType.CUDA}
    if has_driver:
        run.malloc(SECOND, 0x1000000, 64 * MIB, pool=Pool.CUDA_DRIVER, **gpu)
    run.malloc(SECOND + 1, 0x1000000, 20 * MIB, pool=Pool.CUDA, total=64 * MIB, **gpu)
    run.add(Kind.STEP, 2 * SECOND, step=1, attr=1)
    run.sample(SECOND + 20, "cuda:0", used=9 * GIB, total=64 * GIB, process_used=8 * GIB)
    for step in (2, 3):
        run.add(Kind.STEP, (step + 1) * SECOND, step=step, attr=step)
    assert [one.kind for one in told(run)] == ([UNEXPLAINED, KIND] if has_driver else [KIND])
    (earlier,) = [one for one in find_ledgers(tables(run), 1) if one.device == "cuda:0"]
    assert earlier.has_driver is has_driver  # by sums alone


def test_the_fullest_card_is_told_and_every_ledger_has_its_rows() -> None:
    run = job(4)
    for one in run.samples:
        if one["device"] == "npu:2":
            one["used"] += GIB
        if one["device"] == "npu:1":
            one["process_used"] += 4096
    (note,) = told(run)
    assert note.sentence == f"npu:2 of rank 2, the fullest of 4, at the end of step {LAST}: 5.6 GiB used of 64 GiB."
    assert note.details[0] == "   5.6 GiB  card (4.6 GiB to 5.6 GiB)"
    # What differs by less than is shown has one figure.
    assert [line for line in note.details if line.endswith("  process")] == ["   635 MiB    process"]
    rows = [row.cells for row in note.rows]
    assert {(row["rank"], row["device"]) for row in rows} == {
        (rank, device) for rank in range(4) for device in (f"npu:{rank}", "cpu")
    }
    host = {row["part"]: row["bytes"] for row in rows if (row["rank"], row["device"]) == (1, "cpu")}
    parts = {"host/shared memory": 100 * MIB, "host/mapped files": 300 * MIB, "host/residual": 2 * GIB - 400 * MIB}
    assert host == {"host": 2 * GIB, **parts}


def test_a_ledger_that_does_not_add_up_is_an_error_here_and_shown_to_users() -> None:
    known = tables(job())
    damaged = known.tracked.owners[0].sums
    damaged["end_bytes"] = damaged["end_bytes"].copy()
    damaged["end_bytes"][(damaged["pool"] == Pool.PTA) & (damaged["step"] == LAST)] += 7
    (one,) = [one for one in find_ledgers(known) if one.device == "npu:0"]
    with pytest.raises(LedgerError, match=r"owners of PTA: \+14 bytes"):
        require_sums(one)
    found = next(one for one in judge(known, LedgerOptions()) if one.kind == DOES_NOT_ADD_UP)
    assert found.sentence == "Rank 0: owners of PTA differ by +14 bytes on npu:0."


def test_the_first_sample_of_a_device_is_known_whenever_it_was_taken() -> None:
    run = FakeRun([process()])
    run.sample(7 * SECOND, "npu:0", used=2 * GIB, total=64 * GIB)
    run.sample(5 * SECOND, "npu:0", used=GIB, total=64 * GIB)
    index = UsageIndex(run)  # type: ignore[arg-type]
    assert index.first(1, "npu:0").used == GIB
    assert index.first(1, "npu:1").used is None


def test_parts_must_add_up_to_their_sum() -> None:
    entries = [Entry(("card",), 10), Entry(("card", "a"), 4), Entry(("card", "b"), 5)]
    assert wrong_sums(entries) == [Mismatch("parts of card", -1)]
    assert wrong_sums([*entries, Entry(("card", "c"), None)]) == []  # one that nobody knows may be the rest


@pytest.mark.parametrize("options", [{"step": -2}, {"residual_share": 2.0}])
def test_options_have_limits(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="takes a"):
        LedgerOptions(**options)


def test_a_process_without_steps_has_its_ledger_now() -> None:
    run = FakeRun([process(rank=None)])
    run.malloc(SECOND, 0x1000, 40 * MIB)
    run.sample(SECOND + 5, "cpu", rss=100 * MIB, used=GIB, total=4 * GIB)
    (one,) = find_ledgers(tables(run))
    require_sums(one)
    assert (one.step, one.find("host"), one.find("host", "tensors"), one.residual) == (
        -1,
        100 * MIB,
        40 * MIB,
        60 * MIB,
    )


@pytest.mark.parametrize(
    ("shared", "mapped", "rss", "rest", "remark"),
    [
        (10, 20, 100, 35, ""),
        (10, 20, 65, None, ""),
        (10, 20, 64, -1, "tensors that were never touched are not resident"),
        (UNKNOWN, 20, 100, 45, "with shared memory, of which the kernel does not tell"),
        (10, UNKNOWN, 100, 55, "with mapped files, of which the kernel does not tell"),
        (UNKNOWN, UNKNOWN, 100, 65, "with shared memory and mapped files, of which the kernel does not tell"),
    ],
)
def test_host_memory_that_nothing_explains_says_what_may_be_in_it(
    shared: int, mapped: int, rss: int, rest: int | None, remark: str
) -> None:
    pools = {Pool.HOST: PoolLevel(Pool.HOST, 30, -1), Pool.HAL: PoolLevel(Pool.HAL, 5, -1)}
    # A look before the step's end counts, one behind it does not.
    samples = HostSeries(*(np.array([1, value, 3], np.int64) for value in (50, rss, shared, mapped)))
    samples = replace(samples, ts=np.array([10, 50, 60], np.int64))
    made = host_ledger(0, 3, 59, pools, samples, 1000)
    found = {one.path[1:]: (one.bytes, one.remark) for one in made.entries}
    assert found[()] == (rss, "")
    assert found["tensors",] == (30, "")
    assert found["pinned",] == (5, "")
    assert [found.get((name,), (0,))[0] for name in ("shared memory", "mapped files")] == [
        None if size == UNKNOWN else size for size in (shared, mapped)
    ]
    assert found.get(("residual",)) == (None if rest is None else (rest, remark))


def test_host_memory_of_which_nobody_took_a_look_is_unknown() -> None:
    pools = {Pool.HOST: PoolLevel(Pool.HOST, 30, -1)}
    made = host_ledger(0, 3, 59, pools, None, None)
    assert [(one.path, one.bytes) for one in made.entries] == [(("host",), None), (("host", "tensors"), 30)]
