"""Steps that are mstx ranges end with their range; all others where the next begins."""

from __future__ import annotations

import random

import numpy as np
from fake_run import FakeRun, process

from msmemscope.analysis.alive import alive_at_last_step
from msmemscope.analysis.blocks import fold, track
from msmemscope.analysis.gaps import gap_table
from msmemscope.analysis.step_ends import COLUMNS, StepEnds
from msmemscope.report.analysed import analyse
from msmemscope.vocabulary import DeviceType, Kind, Pool, StepSource

PTA = {"device_type": DeviceType.NPU, "device": 0, "pool": Pool.PTA}
MIB = 1 << 20


def begin(run: FakeRun, ts: int, step: int, source: StepSource = StepSource.MSTX) -> None:
    run.add(Kind.STEP, ts, step=step, attr=step, aux=source)
    run.add(Kind.RANGE_START, ts + 1, step=step, attr=step, aux=1)


def end(run: FakeRun, ts: int, step: int, *, is_step: bool = True) -> None:
    run.add(Kind.RANGE_END, ts, step=step, attr=step, aux=int(is_step))


def training(steps: int, source: StepSource = StepSource.MSTX, run: FakeRun | None = None) -> FakeRun:
    """Each step keeps 1 MiB. Between two ranges 4 MiB come and go; at the end of the program all is freed."""
    run = run or FakeRun([process(1)])
    stack = run.frames()
    for step in range(1, steps + 1):
        at = 100 * step
        begin(run, at, step, source)
        run.malloc(at + 10, step << 24, MIB, step=step, stack_py=stack, **PTA)
        run.add(Kind.RANGE_START, at + 20, step=step, attr=99)
        end(run, at + 30, step, is_step=False)  # a range in it
        end(run, at + 40, step)
        run.malloc(at + 50, 0xF00, 4 * MIB, step=step, **PTA)
        run.free(at + 60, 0xF00, step=step, **PTA)
    for step in range(1, steps + 1):
        run.free(10_000 + step, step << 24, step=steps, **PTA)
    return run


def test_the_last_range_that_ended_is_a_complete_step() -> None:
    """What the program frees afterwards is not of it; what lies between two ranges counts to the next."""
    run = training(3)
    tracked = track(run)
    names = ("step", "complete", "start_bytes", "end_bytes", "peak_bytes", "end_ts")
    rows = list(zip(*(tracked.steps[name].tolist() for name in names), strict=True))
    assert rows == [
        (1, True, 0, MIB, MIB, 140),
        (2, True, MIB, 2 * MIB, 5 * MIB, 240),
        (3, True, 2 * MIB, 3 * MIB, 6 * MIB, 340),
        (4, False, 3 * MIB, 0, 7 * MIB, 10_003),
    ]
    assert tracked.last_complete_step == {0: 3}
    assert tracked.anomalies["kind"] == []  # events that carry the number of the range before are not late
    live, _ = alive_at_last_step(tracked, fold(run).held)
    assert live["size"].tolist() == [MIB] * 3
    assert analyse(run).summary.last_step == 3


def test_what_lies_between_two_ranges_is_no_level_of_the_next_step() -> None:
    """4 MiB come and go there, which is no fluctuation within a step: upstream begins anew with every range."""
    steps = track(training(4)).steps
    rows = list(zip(*(steps[name].tolist() for name in ("step", "min_bytes", "most_bytes")), strict=True))
    assert rows[:4] == [(step, step * MIB, step * MIB) for step in range(1, 5)]
    (gaps,) = gap_table(steps)
    assert gaps.smallest is not None
    assert gaps.smallest.ratio == 1.0


def test_a_range_that_goes_on_is_open() -> None:
    run = training(3)
    begin(run, 20_000, 4)
    run.malloc(20_010, 0x100, MIB, step=4, **PTA)
    assert track(run).last_complete_step == {0: 3}
    end(run, 20_020, 4)
    assert track(run).last_complete_step == {0: 4}


def test_ranges_do_not_end_the_steps_of_another_source() -> None:
    """The program calls msmemscope.step() and has ranges named `step start` too."""
    run = training(3, StepSource.API)
    tracked = track(run)
    assert tracked.last_complete_step == {0: 2}
    ends = StepEnds()
    for batch in run.events(columns=COLUMNS):
        assert not ends.outside({name: batch.column(name).to_numpy() for name in COLUMNS}).any()


def test_the_gap_of_a_step_is_of_its_own_events_alone() -> None:
    """16.67 % as upstream says: the step begins with nothing, and never falls back to it. A step in which nothing
    happens has no ratio; an address that is given out again makes no low in between."""
    run = FakeRun([process(1)])
    for step in (1, 2, 3, 4, 5):
        run.add(Kind.STEP, 100 * step, step=step, attr=step, aux=StepSource.API)
        if step in (2, 4):
            run.malloc(100 * step + 10, 0x1000, 100, step=step, **PTA)
            run.malloc(100 * step + 20, 0x2000, 500, step=step, **PTA)
            run.free(100 * step + 30, 0x2000, step=step, **PTA)
    steps = track(run).steps
    (gaps,) = gap_table(steps)
    assert gaps.smallest == gaps.largest
    assert gaps.smallest is not None
    assert (round(100 * gaps.smallest.ratio, 2), gaps.smallest.min_bytes, gaps.smallest.max_bytes) == (16.67, 100, 600)
    assert gaps.smallest.step == 2
    assert gaps.empty_steps == 1
    assert steps["step"].tolist() == [2, 3, 4, 5]
    assert steps["min_bytes"].tolist() == [100, 100, 100, 100]
    assert steps["most_bytes"].tolist() == [600, 0, 600, 0]


def test_any_cut_into_batches_says_the_same() -> None:
    rng = random.Random(3)
    columns = {
        "kind": np.array(rng.choices([Kind.STEP, Kind.RANGE_END, Kind.MALLOC], k=400), np.uint8),
        "aux": np.array(rng.choices([0, 1], k=400), np.uint32),
        "step": np.array(rng.choices([3, 4], k=400), np.uint32),
    }
    range_step, is_outside, expected = -1, False, []
    for kind, aux, step in zip(*(columns[name].tolist() for name in COLUMNS), strict=True):
        if kind == Kind.STEP:
            range_step, is_outside = step if aux == StepSource.MSTX else -1, False
        expected.append(is_outside)
        if kind == Kind.RANGE_END and aux == 1 and step == range_step:
            is_outside = True
    assert 20 < sum(expected) < 380
    for size in (400, 1, 7):
        ends = StepEnds()
        parts = [{name: column[at : at + size] for name, column in columns.items()} for at in range(0, 400, size)]
        assert np.concatenate([ends.outside(part) for part in parts]).tolist() == expected
