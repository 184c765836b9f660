"""What was judged of a run, and growth of memory beside recorded blocks."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fake_run import SECOND, FakeRun, process

from msmemscope.aggregate.shard import Shard
from msmemscope.analysis.coverage import Coverage, judged_part
from msmemscope.folds.host_use import MOST_SAMPLES, SAMPLED, HostUse, host_series
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.report.cluster import write_cluster
from msmemscope.report.console import plain_text
from msmemscope.tables.schema import USAGE_SCHEMA
from msmemscope.vocabulary import DeviceType, Kind, Pool, StepSource
from msmemscope.wire import messages

MIB = 1 << 20
BASE = 300 * MIB


def job(
    rss: Any,
    *,
    kept: int = 0,
    shared: Any = None,
    mapped: Any = None,
    steps: int = 40,
    ranks: int = 1,
    host: bool = True,
    idle_s: int = 0,
) -> FakeRun:
    """A second a step. rss, shared, mapped: of a process at the end of a step, as functions of it (mapped None: a
    kernel or a run that does not tell). kept: bytes of a new block that each step keeps. idle_s: how long the processes
    lived on without steps."""
    run = FakeRun(
        [
            process(n + 1, rank=n, world_size=ranks, pid=100 + n, ended_ns=(2 + steps + idle_s) * SECOND)
            for n in range(ranks)
        ],
        batch_rows=500,
    )
    place = {} if host else {"device": 0, "device_type": int(DeviceType.NPU), "pool": int(Pool.PTA)}
    for ring in range(1, ranks + 1):
        for step in range(1, steps + 2):
            now = (1 + step) * SECOND
            run.add(Kind.STEP, now, ring=ring, step=step, aux=StepSource.API)
            run.malloc(now + 1, 0x100, 4096, ring=ring, step=step, **place)
            run.free(now + 2, 0x100, ring=ring, step=step, **place)
            if kept:
                run.malloc(now + 3, step << 30, kept, ring=ring, step=step, **place)
            held = {"shared": 0 if shared is None else int(shared(step))}
            held |= {} if mapped is None else {"mapped": int(mapped(step))}
            run.sample(now + SECOND // 2, "cpu", ring=ring, used=1, total=2, rss=BASE + int(rss(step)), **held)
    return run


def verdict(made: Analysis) -> str:
    (last,) = [line for line in plain_text(made).splitlines() if line.startswith("msMemScope: ")]
    return last


def coverage_of(made: Analysis) -> tuple[Coverage, ...]:
    return next(one.tables.coverage for one in made.judged if one.analyzer.name == "coverage")


def test_growth_beside_recorded_blocks_is_said() -> None:
    made = analyse(job(lambda step: 1.1 * MIB * step))
    said = "RSS grows 1.1 MiB per step; recorded blocks explain 0 %: numpy, C++ or Python heap"
    assert verdict(made).startswith(f"msMemScope: no leak found in steps 2-40, 95 % of its time; {said}. ")
    lines = plain_text(made).splitlines()
    (note,) = [line for line in lines if line.startswith(f"Note: Rank 0: {said}. ")]
    assert "from_numpy" in note
    (one,) = coverage_of(made)
    assert one.rss_growth == pytest.approx(1.1 * MIB, rel=0.01)
    assert (one.explained, one.cause, one.first_step, one.last_step) == (0.0, "heap", 2, 40)


def test_what_leaks_in_blocks_is_explained() -> None:
    made = analyse(job(lambda step: MIB * step, kept=MIB))
    (one,) = coverage_of(made)
    assert one.explained == pytest.approx(1, abs=0.05)
    assert made.summary.leaks
    assert "RSS" not in plain_text(made)


def test_the_share_is_that_of_the_blocks() -> None:
    """A quarter in a list of tensors, the rest elsewhere: both are said."""
    made = analyse(job(lambda step: 4 * MIB * step, kept=MIB))
    assert made.summary.leaks
    assert verdict(made).count("recorded blocks explain 25 %") == 1
    assert "recorded blocks explain 75 %" not in plain_text(analyse(job(lambda step: 4 * MIB * step, kept=3 * MIB)))


def test_shared_memory_is_called_so() -> None:
    made = analyse(job(lambda step: MIB * step, shared=lambda step: MIB * step))
    assert "explain 0 %: shared memory" in verdict(made)
    assert "x.clone()" in plain_text(made)
    made = analyse(job(lambda step: 2 * MIB * step, shared=lambda step: MIB * step))
    assert "explain 0 %: shared memory, and numpy, C++ or Python heap" in verdict(made)
    made = analyse(job(lambda step: 8 * MIB * step, shared=lambda step: MIB * step))
    assert "explain 0 %: numpy, C++ or Python heap" in verdict(made)


def test_mapped_files_are_no_growth() -> None:
    """Reading a data set through mmap makes its pages resident; the kernel drops them as it likes."""
    made = analyse(job(lambda step: 2 * MIB * step, mapped=lambda step: 2 * MIB * step))
    assert "RSS" not in plain_text(made)
    (one,) = coverage_of(made)
    assert (one.rss_growth, one.mapped_growth) == (pytest.approx(2 * MIB), pytest.approx(2 * MIB))
    assert (one.grown_bytes, one.explained, one.cause) == (0, None, "")
    made = analyse(job(lambda step: 3 * MIB * step, mapped=lambda step: 2 * MIB * step))
    assert "RSS without mapped files grows 1.0 MiB per step; recorded blocks explain 0 %: numpy" in verdict(made)
    made = analyse(job(lambda step: MIB * step, mapped=lambda step: 0))
    assert "RSS grows 1.0 MiB per step" in verdict(made)


def test_where_no_tensor_of_the_host_was_recorded_it_may_be_one() -> None:
    assert "CPU tensors, of which none were recorded" in verdict(analyse(job(lambda step: MIB * step, host=False)))


NOISE = np.random.default_rng(3).uniform(0, 60 * MIB, 2000)


@pytest.mark.parametrize(
    "rss",
    [
        lambda step: 0,
        lambda step: MIB * min(step, 15),  # a warm-up
        lambda step: MIB * min(3 * step, 90),  # level for the last quarter
        lambda step: 0.3 * MIB * step,  # 12 MiB in all
        lambda step: 60 * MIB * (step % 2),
        lambda step: 40 * MIB * (step > 25),  # one jump
        lambda step: NOISE[step],
        lambda step: NOISE[step] + 0.5 * MIB * step,  # less than what it swings by
        lambda step: 5 * MIB * (step % 10),  # collected now and then
        lambda step: -2 * MIB * step,
    ],
)
def test_nothing_is_said_of(rss: Any) -> None:
    assert "RSS" not in plain_text(analyse(job(rss)))


@pytest.mark.parametrize("tau", [5, 8, 12])
def test_a_warm_up_that_is_ending_is_no_growth(tau: int) -> None:
    """200 MiB, of which the second half of the run still gains some."""
    assert coverage_of(analyse(job(lambda step: BASE + 200 * MIB * (1 - math.exp(-step / tau)))))[0].cause == ""
    leaking = job(lambda step: BASE + step * MIB + 200 * MIB * (1 - math.exp(-step / tau)), steps=120)
    assert coverage_of(analyse(leaking))[0].cause == "heap"


def test_little_per_step_is_much_in_a_long_run() -> None:
    small = 0.05 * MIB
    assert "RSS" not in verdict(analyse(job(lambda step: small * step, steps=400)))
    assert "RSS grows 51.2 KiB per step" in verdict(analyse(job(lambda step: small * step, steps=1500)))


def test_few_samples_say_nothing() -> None:
    run = job(lambda step: 4 * MIB * step)
    run.samples = run.samples[::9]
    (one,) = coverage_of(analyse(run))
    assert (one.samples, one.rss_growth, one.cause) == (5, None, "")


def test_ranks_that_grow_alike_are_said_once() -> None:
    made = analyse(job(lambda step: MIB * step, ranks=3))
    lines = [line for line in plain_text(made).splitlines() if line.startswith("Note: ")]
    assert [line.partition(";")[0] for line in lines] == ["Note: Ranks 0-2: RSS grows 1.0 MiB per step"]
    assert "found in steps 2-40 of ranks 0-2, 95 % of their time; ranks 0-2: RSS grows" in verdict(made)
    assert "RSS grows" in plain_text(made, rank=1)


def test_a_worker_that_grows_is_named() -> None:
    run = job(lambda step: 0)
    run.processes.append(process(2, rank=0, pid=200, parent_ring=1))
    run._events[2] = []
    run.malloc(3 * SECOND, 0x10, 64, ring=2, step=2)
    for step in range(1, 41):
        run.sample((2 + step) * SECOND, "cpu", ring=2, used=1, total=2, rss=BASE + MIB * step)
    (one,) = coverage_of(analyse(run))
    assert (one.pid, one.in_worker) == (200, True)
    assert "RSS of a worker grows 1.0 MiB per step" in verdict(analyse(run))


def test_a_process_without_steps_is_looked_at_by_time() -> None:
    def server(kept: int) -> FakeRun:
        run = FakeRun([process(1, rank=None, command="python\u241fserve.py")], batch_rows=500)
        for second in range(1, 200):
            run.malloc(second * SECOND, second << 30, kept + 16)
            run.sample(second * SECOND + SECOND // 2, "cpu", used=1, total=2, rss=BASE + MIB * second)
        return run

    grows = "RSS grows 60 MiB per minute; recorded blocks explain 0 %: numpy, C++ or Python heap"
    assert grows in plain_text(analyse(server(0)))
    assert "recorded blocks explain" not in plain_text(analyse(server(MIB)))


def stepless(rss: Any, seconds: int) -> FakeRun:
    """rss: MiB at a second of its life."""
    run = FakeRun([process(1, rank=None, created_ns=SECOND)], batch_rows=500)
    for second in range(1, seconds + 1):
        run.malloc((1 + second) * SECOND, second << 30, 16)
        run.sample((1 + second) * SECOND + SECOND // 2, "cpu", used=1, total=2, rss=int(MIB * rss(second)))
    return run


def start_up(seed: int) -> Any:
    """Imports, the slower the busier the machine, then weights from a disk: a random rate for a random time each."""
    chance = np.random.default_rng(seed)
    imports, slow = float(chance.uniform(150, 500)), float(chance.uniform(5, 150))
    begin, loads, rate = slow * chance.uniform(1, 1.3), chance.uniform(60, 240), float(chance.uniform(1, 40))
    return lambda s: imports * min(s / slow, 1) + rate * min(max(s - begin, 0), loads), int(begin + loads)


@pytest.mark.parametrize("first", [0, 25])
def test_a_start_up_of_minutes_is_no_growth(first: int) -> None:
    """Looked at while it goes on, and behind it. One that is slow beside what it imported is told (1 of 60)."""
    told = set()
    for seed in range(first, first + 25):
        rss, end = start_up(seed)
        for moment in (70, 120, end - 1, 2 * end):
            (one,) = coverage_of(analyse(stepless(rss, moment)))
            told |= {seed} if one.cause else set()
    assert len(told) <= 1


@pytest.mark.parametrize(("base", "rate"), [(300, 16.5), (300, 60), (1200, 200)])
def test_growth_behind_a_start_up_is_told_from_the_second_minute_on(base: int, rate: float) -> None:
    for moment in (90, 200, 500):
        (one,) = coverage_of(analyse(stepless(lambda s: base * min(s / 5, 1) + rate * s / 60, moment)))
        assert one.cause, moment if moment * rate > 1500 else None


def test_what_grows_as_fast_as_it_began_is_told_from_ten_minutes_on() -> None:
    for moment, is_told in ((500, False), (610, True)):
        (one,) = coverage_of(analyse(stepless(lambda s: 2.0 * s, moment)))
        assert bool(one.cause) == is_told


def test_a_clock_that_jumps_costs_no_memory() -> None:
    """Three years of seconds lie between two events, as in files whose times somebody changed."""
    run = FakeRun([process(1, rank=None)], batch_rows=500)
    for second in (1, 10**8):
        run.malloc(second * SECOND, second, 4096)
        run.sample(second * SECOND, "cpu", used=1, total=2, rss=BASE)
    tracemalloc.start()
    try:
        made = analyse(run)
        assert tracemalloc.get_traced_memory()[1] < 100 * MIB
    finally:
        tracemalloc.stop()
    assert coverage_of(made)[0].per == "minute"


def test_time_without_steps_is_told() -> None:
    assert "no leak found in steps 2-40, 32 % of its time." in verdict(analyse(job(lambda step: 0, idle_s=80)))


def test_ranks_without_steps_are_told() -> None:
    run = job(lambda step: 0, ranks=2)
    run._events[2] = [event for event in run._events[2] if event["kind"] != Kind.STEP][:3]
    for event in run._events[2]:
        event["step"] = 0
    coverage = coverage_of(analyse(run))
    assert judged_part(coverage) == "steps 2-40 of rank 0 (none of rank 1), 95 % of its time"
    assert judged_part(coverage[1:]) == judged_part(()) == ""


def test_summary_json_holds_the_figures(tmp_path: Path) -> None:
    made = analyse(job(lambda step: MIB * step))
    write_cluster(tmp_path, made.tracked, made.summary)
    (one,) = json.loads((tmp_path / "cluster" / "summary.json").read_text())["coverage"]
    assert set(one) == set(Coverage.__dataclass_fields__)
    assert (one["rank"], one["per"], one["cause"]) == (0, "step", "heap")


# --- samples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 400, MOST_SAMPLES, MOST_SAMPLES + 1, 20_000])
def test_thinned_as_they_come_or_at_once(n: int) -> None:
    chance = np.random.default_rng(n)
    ts = np.sort(chance.integers(0, n * SECOND // 10, n))
    rows = [
        {"ts": int(t), "ring": ring, "device": device, "rss": 4096 + int(t) % 977}
        | {name: None if ring == 2 else int(t) % most for name, most in (("shared", 5), ("mapped", 11))}
        for t in ts
        for ring, device in ((1, "cpu"), (2, "cpu"), (1, "npu:0"))
    ]
    use = HostUse()
    for row in rows:
        if row["device"] == "cpu":
            use.take(row["ring"], *(row[name] for name in ("ts", *SAMPLED)))
    chance.shuffle(rows)
    live, stored = use.series(), host_series(pa.Table.from_pylist(rows, USAGE_SCHEMA))
    assert set(live) == set(stored) == {1, 2}
    for ring in live:
        assert len(live[ring].ts) <= MOST_SAMPLES
        assert len(live[ring].ts) > min(n, MOST_SAMPLES) // 4
        assert live[ring].ts[-1] == ts[-1]
        for name in ("ts", *SAMPLED):
            assert getattr(live[ring], name).tolist() == getattr(stored[ring], name).tolist()


def test_the_verdict_so_far_knows_samples_that_stand_in_no_part(tmp_path: Path) -> None:
    run = job(lambda step: MIB * step)
    shard = Shard(tmp_path, "s", folding=None)
    identity: dict[str, Any] = {"rank": 0, "lost": {}}
    shard.answer(messages.pack("ring", "s", ring=1, identity=identity, start=0, final=False))
    rows = [[1, 100, s["ts"], "cpu", 1, 2, s["rss"], s["rss"], s["shared"], None] for s in run.samples]
    shard.answer(messages.pack("usage", "s", layout=messages.USAGE_LAYOUT, ts=1, interval_ms=100, cards="", rows=rows))
    run.samples = []
    assert "RSS" not in verdict(analyse(run))
    assert "RSS grows 1.0 MiB per step" in verdict(analyse(run, host_use=shard.host_use.series()))


def test_nothing_is_said_where_leaks_are_not_looked_for() -> None:
    assert "RSS" not in plain_text(analyse(job(lambda step: MIB * step), {"analysis": ("decompose",)}))


def test_it_runs_on_request() -> None:
    run = job(lambda step: MIB * step)
    assert not analyse(run, only=["coverage"], options={"coverage": {"min_bytes": 1 << 30}}).summary.findings
    assert verdict(analyse(run, {"analysis": []}, only=["coverage"])).startswith(
        "msMemScope: RSS grows 1.0 MiB per step"
    )


def test_what_moved_between_two_looks_is_shared_out() -> None:
    """Steps of 25 ms, looks every 100 ms: the last look is behind the last step."""
    run = FakeRun([process(1)], batch_rows=500)
    tick = SECOND // 40
    for step in range(1, 42):
        run.add(Kind.STEP, SECOND + step * tick, step=step, aux=StepSource.API)
        run.malloc(SECOND + step * tick + 1, 0x100, 4096, step=step)
        run.free(SECOND + step * tick + 2, 0x100, step=step)
    for look in range(0, 50, 4):
        run.sample(SECOND + look * tick, "cpu", used=1, total=2, rss=BASE + look * MIB // 2)
    (one,) = coverage_of(analyse(run))
    assert one.rss_growth == pytest.approx(MIB / 2, rel=0.01)
    assert (one.grown_bytes or 0) > 16 * MIB
