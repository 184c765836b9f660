"""Whose the memory was over the steps: rows of two ranks against a plain count of the same events."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from fake_run import FakeRun, frame, process

from msmemscope.analysis import decompose_steps
from msmemscope.analysis.analyzer import tables_of
from msmemscope.analysis.blocks import Folded, fold
from msmemscope.analysis.decompose import DecomposeOptions, judge
from msmemscope.analysis.findings import Finding
from msmemscope.vocabulary import DeviceType, Kind, Pool

MIB = 1 << 20
NAMES = ("", "encoder", "kv_cache")
Levels = dict[tuple[int, int], tuple[dict[str, int], dict[str, int]]]
"""(ring, step) -> bytes by name at its end, and at the highest level of the pool in it."""


class Program:
    """Two ranks with NPUs of their own that allocate and free under labels, at random, for `steps` steps."""

    def __init__(self, steps: int, seed: int = 7) -> None:
        self.run = FakeRun([process(ring, rank=ring - 1, world_size=2, pid=100 + ring) for ring in (1, 2)])
        self.truth: Levels = {}
        for ring in (1, 2):
            self._play(ring, steps, random.Random(seed + ring))

    def _play(self, ring: int, steps: int, chance: random.Random) -> None:
        stack, now = self.run.frames(frame("/src/train.py", "main", 3)), 1000
        npu = {"device_type": DeviceType.NPU, "device": ring, "pool": Pool.PTA, "ring": ring, "stack_py": stack}
        live: dict[int, tuple[str, int]] = {}
        held: dict[str, int] = defaultdict(int)
        ptr = 0
        step = 0
        for iteration in range(steps):
            top = dict(held)
            for _ in range(6):
                now += 10
                if live and chance.random() < 0.45:
                    at = chance.choice(sorted(live))
                    name, size = live.pop(at)
                    held[name] -= size
                    self.run.free(now, at, size, step=step, **npu)
                    continue
                name, size = chance.choice(NAMES), chance.randrange(1, 9) * MIB
                ptr += 1 << 30
                labels = {"ring": ring, "step": step, "name": self.run.text(name), "aux": 5}
                if name:
                    self.run.add(Kind.LABEL_PUSH, now - 2, **labels)
                self.run.malloc(now, ptr, size, step=step, **npu)
                if name:
                    self.run.add(Kind.LABEL_POP, now + 2, **labels)
                live[ptr] = name, size
                held[name] += size
                if sum(held.values()) > sum(top.values()):
                    top = dict(held)
            self.truth[ring, step] = dict(held), top
            # The first iteration, with what came before it, is step 0, and there is no step 1.
            step = iteration + 2
            self.run.add(Kind.STEP, now + 5, ring=ring, step=step, attr=step)

    def note(self, **options: Any) -> Finding:
        folded: Folded = fold(self.run)  # type: ignore[arg-type]
        tracked = folded.tracked(self.run.processes)
        (note,) = judge(tables_of(self.run, tracked, folded.held, dict), DecomposeOptions(**options))  # type: ignore[arg-type]
        return note

    def rows(self, file: str) -> list[dict[str, Any]]:
        return [dict(row.cells) for row in self.note().more_rows if row.file == file]


def test_the_console_tells_the_step_that_is_asked_for() -> None:
    program = Program(9)
    total = sum(sum(program.truth[ring, 5][0].values()) for ring in (1, 2))
    note = program.note(step=5)
    assert note.sentence.startswith(
        f"whose the memory is, at the end of step 5, in each pool: PTA {total // MIB} MiB, "
    )
    assert note.details[0].split() == [str(total // MIB), "MiB", "100.0", "%", "PTA"]
    assert program.note().sentence.startswith("whose the memory is, at the peak of each pool: PTA ")
    assert program.note(step=99).sentence.endswith("; of step 99 nothing is known")


def told(rows: list[dict[str, Any]], level: int = 1) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        if row["level"] == level:
            yield row["scope"], row.get("rank"), row["step"], row["owner"], row["end_bytes"], row["peak_bytes"]


def expected(truth: Levels) -> Iterator[tuple[Any, ...]]:
    text = {"": "PTA@unattributed", **{name: f"PTA@{name}" for name in NAMES[1:]}}
    for (ring, step), (end, top) in truth.items():
        for name in {*end, *top}:
            if end.get(name, 0) or top.get(name, 0):
                yield "process", ring - 1, step, text[name], end.get(name, 0), top.get(name, 0)


def test_every_step_of_every_rank_is_told_as_it_was() -> None:
    program = Program(steps=20)
    rows = program.rows("decompose_steps")
    found = [row for row in told(rows) if row[0] == "process" and row[2] != 1]
    assert sorted(found) == sorted(expected(program.truth))


def test_the_job_is_the_sum_of_its_ranks_and_every_tree_adds_up() -> None:
    rows = Program(steps=20).rows("decompose_steps")
    total: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for _, _, step, owner, end, peak in told([row for row in rows if row["scope"] == "process"]):
        total[step, owner][0] += end
        total[step, owner][1] += peak
    job = {(step, owner): [end, peak] for scope, _, step, owner, end, peak in told(rows) if scope == "job"}
    assert job == total
    for row in rows:
        of_tree = [
            one
            for one in rows
            if one["level"] == 1 and all(one.get(name) == row.get(name) for name in ("scope", "rank", "step"))
        ]
        assert row["pool_end_bytes"] == sum(one["end_bytes"] for one in of_tree)
        assert row["pool_peak_bytes"] == sum(one["peak_bytes"] for one in of_tree)


def test_a_long_run_has_evenly_spaced_steps_with_the_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompose_steps, "MOST_ROWS", 150)
    program = Program(steps=60)
    rows = program.rows("decompose_steps")
    assert len(rows) <= 150
    steps = sorted({row["step"] for row in rows})
    level = {step: sum(sum(program.truth[ring, step][1].values()) for ring in (1, 2)) for _, step in program.truth}
    assert (steps[0], steps[-1]) == (0, max(level))
    assert max(level, key=lambda step: level[step]) in steps
    assert 8 <= len(steps) < 30
    assert {row["scope"] for row in rows} == {"process", "job"}


def test_of_many_processes_the_job_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompose_steps, "MOST_ROWS", 60)
    rows = Program(steps=60).rows("decompose_steps")
    assert {row["scope"] for row in rows} == {"job"}
    assert 8 <= len({row["step"] for row in rows}) <= 16


def test_changes_of_owners_are_counted() -> None:
    """Three blocks of nobody are named in steps 2, 3 and 4, on another rank in steps 3, 4 and 5: the first name is
    theirs from the beginning, the second is a change."""
    run = FakeRun([process(1, world_size=2), process(2, rank=1, world_size=2)])
    first, second = run.text("weight"), run.text("frozen")
    for ring in (1, 2):
        place = {"device_type": DeviceType.NPU, "device": ring - 1, "pool": Pool.PTA}
        for number in range(3):
            run.malloc(100 + number, (number + 1) << 30, MIB, ring=ring, **place)
            run.add(Kind.LABEL_ADDR, 200 + number, ring=ring, ptr=(number + 1) << 30, name=first, aux=5)
        for number in range(3):
            step = number + 1 + ring
            run.add(Kind.STEP, 1000 * step, ring=ring, step=step, attr=step)
            run.add(Kind.LABEL_ADDR, 1000 * step + 1, ring=ring, ptr=(number + 1) << 30, name=second, aux=5, step=step)
    program = Program.__new__(Program)
    program.run = run
    rows = program.rows("decompose_changes")
    assert {(row["before"], row["owner"]) for row in rows} == {("weight", "frozen")}
    assert [(row["scope"], row["first_step"], row["last_step"], row["blocks"]) for row in rows] == [
        ("process", 2, 4, 3),
        ("process", 3, 5, 3),
        ("job", 2, 5, 6),
    ]
