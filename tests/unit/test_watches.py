"""Watched blocks: a change that nobody declared is found between the two looks that saw it; a declared one is not."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_run import FakeRun, frame, process
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope.analysis.blocks import fold, track
from msmemscope.analysis.watch import CORRUPTION, WATCH_ENDED
from msmemscope.export.watch_dump import write_watch_dumps
from msmemscope.folds.messages import pack, unpack
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.folds.watches import LOOSE
from msmemscope.options.settings import Config, Watch
from msmemscope.report.analysed import analyse
from msmemscope.report.console import plain_text
from msmemscope.tables.run import Run
from msmemscope.vocabulary import (
    EVENT_COLUMNS,
    DeviceType,
    Kind,
    Pool,
    WatchBeside,
    WatchEnd,
    WatchMoment,
)

NPU = {"device_type": DeviceType.NPU, "device": 0}
BLOCK, SIZE = 0x10000, 4096
WRITE, READ = 2, 1


class Program:
    """One rank that watches a block of 4 KiB on NPU 0, which lies behind one of 512 bytes."""

    def __init__(self) -> None:
        self.run = FakeRun([process(1)])
        self.now = 1000
        self.sum = 1
        self.names: dict[str, int] = {}
        self.below = self.run.frames(frame("/src/train.py", "make", 5))
        self.own = self.run.frames(frame("/src/train.py", "make", 6))
        self.lines = {
            line: self.run.frames(
                frame("/usr/lib/python3/site-packages/torch/x.py", "f", 1), frame("/src/train.py", "go", line)
            )
            for line in range(10, 20)
        }
        self.run.malloc(900, BLOCK - 512, 512, stack_py=self.below, **NPU, pool=Pool.PTA)
        self.run.malloc(901, BLOCK, SIZE, stack_py=self.own, **NPU, pool=Pool.PTA)

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = self.run.text(text)
        return self.names[text]

    def event(self, kind: Kind, **fields: int) -> None:
        self.now += 10
        self.run.add(kind, self.now, **({**NPU} | fields))

    def watch(self, name: str = "weights", place: int = 0, ptr: int = BLOCK, size: int = SIZE) -> None:
        self.event(
            Kind.WATCH, ptr=ptr, size=size, attr=self.sum, aux=WatchMoment.BEGAN + 8 * place, used=0, total=0,
            name=self.name(name), stack_py=self.lines[10],
        )  # fmt: skip

    def end(self, why: WatchEnd, place: int = 0) -> None:
        self.event(Kind.WATCH, ptr=BLOCK, size=SIZE, aux=WatchMoment.ENDED + 8 * place, total=why, used=-1)

    def look(self, name: int, line: int, moment: WatchMoment, changed: tuple[int, int] | None, **more: int) -> None:
        place = more.pop("place", 0)
        beside = more.pop("beside", WatchBeside.OPERATOR)
        if changed:
            self.sum += 1
        used, total = changed or (-1, -1)
        self.event(
            Kind.WATCH,
            **{"ptr": BLOCK, "size": SIZE} | more,
            name=name,
            attr=self.sum,
            used=used,
            total=total,
            stack_py=self.lines[line],
            aux=moment + 8 * place + 256 * beside + 1024 * 1,
        )

    def operator(
        self,
        name: str,
        line: int,
        *,
        writes: tuple[int, int] | None = None,
        before: tuple[int, int] | None = None,
        inside: tuple[int, int] | None = None,
        **more: int,
    ) -> None:
        """`writes`: address and bytes that it declares. before, inside: first byte and bytes that change."""
        known = self.name(name)
        flags = more.pop("flags", 0)
        self.event(Kind.ACCESS, ptr=0x900000, size=64, aux=READ, name=known, **more)
        if writes:
            self.event(Kind.ACCESS, ptr=writes[0], size=writes[1], aux=WRITE, name=known, flags=flags, **more)
        self.look(known, line, WatchMoment.BEFORE, before, **more)
        self.look(known, line, WatchMoment.AFTER, inside, **more)

    def judged(self, path: Path = Path("run"), config: dict[str, Any] | None = None) -> Any:
        return analyse(self.run, config or {}, only=["watch"]).judged[0]  # type: ignore[arg-type]


def test_of_a_block_that_nothing_changed_no_change_is_told() -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.aten.add.Tensor", 11)
    text = plain_text(analyse(program.run, {}, only=["watch"]))  # type: ignore[arg-type]
    assert "Watched blocks: 1, looked at 2 times; none of them changed" in text


def test_a_write_past_its_block_is_named_with_its_operator_and_what_it_wrote() -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.aten.add.Tensor", 11)
    program.operator("torch._ops.mine.shift.default", 12, writes=(BLOCK - 512, 512), inside=(0, 16))
    program.operator("torch._ops.aten.mul.Tensor", 13)

    (found,) = program.judged().accused

    assert found.kind == CORRUPTION
    assert (found.file, found.line) == ("/src/train.py", 12)
    assert "'weights' (4.0 KiB on npu:0) changed while torch._ops.mine.shift.default ran" in found.sentence
    assert "bytes 0 to 15" in found.sentence
    assert found.ranks == (0,)
    written = {"operator": "torch._ops.mine.shift.default", "bytes": 512, "distance": 0}
    assert found.evidence["written"] == [written]
    assert found.evidence["beside"] == [{"file": "/src/train.py", "line": 5, "bytes": 512, "distance": 0}]


def test_a_change_between_two_operators_is_named_by_both() -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.aten.add.Tensor", 11, writes=(BLOCK, SIZE), inside=(0, SIZE))
    program.operator("torch._ops.aten.mul.Tensor", 12, before=(40, 12))

    (found,) = program.judged().accused

    assert (
        "between the end of torch._ops.aten.add.Tensor and the beginning of torch._ops.aten.mul.Tensor"
        in found.sentence
    )
    assert (found.evidence["first_byte"], found.evidence["last_byte"]) == (40, 51)
    assert (found.evidence["before"]["line"], found.evidence["after"]["line"]) == (11, 12)
    (of_rank,) = found.evidence["per_rank"].values()
    assert (of_rank["first_byte"], of_rank["last_byte"], of_rank["times"]) == (40, 51, 1)
    assert found.details == (
        "before: the end of torch._ops.aten.add.Tensor, at train.py:11 (thread 100)",
        "after: the beginning of torch._ops.aten.mul.Tensor, at train.py:12 (thread 100)",
        "beside it: a block of 512 B from train.py:5 that ends 40 bytes before the changed ones",
    )
    assert found.row is not None
    assert found.row.cells["before_line"] == 11


def test_declared_changes_are_none() -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.aten.add_.Tensor", 11, writes=(BLOCK, SIZE), inside=(0, SIZE))
    program.operator("torch._ops.aten.copy_.default", 12, writes=(BLOCK + 100, 8), inside=(100, 8))

    judged = program.judged()

    assert judged.findings == ()
    assert judged.analyzer.figures(judged) == {
        "watched_blocks": 1,
        "looks": 4,
        "declared_changes": 2,
        "undeclared_changes": 0,
    }
    assert "Watched blocks: 1, looked at 4 times; each of 2 changes was declared by an operator" in plain_text(
        analyse(program.run, {}, only=["watch"])  # type: ignore[arg-type]
    )


def test_the_write_of_an_operator_excuses_no_later_one() -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.aten.add_.Tensor", 11, writes=(BLOCK, SIZE), inside=(0, SIZE))
    program.operator("torch._ops.mine.shift.default", 12, inside=(8, 8))

    (found,) = program.judged().accused
    assert found.line == 12


def test_a_write_elsewhere_in_the_block_excuses_nothing() -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.mine.shift.default", 12, writes=(BLOCK, 64), inside=(64, 8))
    (found,) = program.judged().accused
    assert found.evidence["written"][0]["distance"] == 0  # what it writes ends where the change begins


def test_an_operator_of_another_thread_that_is_under_way_may_have_written() -> None:
    program = Program()
    program.watch()
    name = program.name("torch._ops.aten.add_.Tensor")
    program.event(Kind.ACCESS, ptr=BLOCK, size=SIZE, aux=WRITE, name=name, tid=7)
    program.look(name, 11, WatchMoment.BEFORE, None, tid=7)
    program.operator("torch._ops.aten.mul.Tensor", 12, inside=(0, 8), tid=8)
    program.look(name, 11, WatchMoment.AFTER, (8, 8), tid=7)
    assert program.judged().accused == ()

    program.operator("torch._ops.aten.mul.Tensor", 13, inside=(0, 8), tid=8)
    assert [one.line for one in program.judged().accused] == [13]


def test_a_collective_may_write_when_it_has_ended_until_it_is_seen_to_have() -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.c10d.allreduce_.default", 11, writes=(BLOCK, SIZE), flags=LOOSE)
    program.operator("torch._ops.aten.mul.Tensor", 12, before=(0, 64), inside=(64, 64))
    assert program.judged().accused == ()
    program.operator("torch._ops.aten.mul.Tensor", 13)
    program.operator("torch._ops.aten.mul.Tensor", 14, inside=(0, 8))
    assert [one.line for one in program.judged().accused] == [14]


def test_a_spread_tensor_is_written_up_to_the_end_of_its_storage() -> None:
    program = Program()
    program.watch()
    known = program.name("torch._ops.aten.fill_.Scalar")
    spread = {"used": BLOCK, "total": SIZE, "flags": LOOSE}
    program.event(Kind.ACCESS, ptr=BLOCK + 4, size=64, aux=WRITE, name=known, **spread)
    program.look(known, 11, WatchMoment.BEFORE, None)
    program.look(known, 11, WatchMoment.AFTER, (4, SIZE - 8))
    assert program.judged().accused == ()


def test_kernels_belong_to_the_operator_that_is_under_way() -> None:
    program = Program()
    program.watch()
    name, kernel = program.name("torch._ops.aten.add_.Tensor"), program.name("Add")
    program.event(Kind.ACCESS, ptr=BLOCK, size=SIZE, aux=WRITE, name=name)
    program.look(name, 11, WatchMoment.BEFORE, None)
    program.look(kernel, 11, WatchMoment.AFTER, (0, 8), beside=WatchBeside.KERNEL)
    program.look(kernel, 11, WatchMoment.AFTER, (8, 8), beside=WatchBeside.KERNEL)
    program.look(name, 11, WatchMoment.AFTER, None)
    assert program.judged().accused == ()
    program.look(kernel, 11, WatchMoment.AFTER, (0, 8), beside=WatchBeside.KERNEL)
    (found,) = program.judged().accused
    assert "between the end of torch._ops.aten.add_.Tensor and the end of Add" in found.sentence


def test_two_blocks_are_told_apart() -> None:
    program = Program()
    program.watch("first", 0)
    program.watch("second", 1, BLOCK + SIZE)
    name = program.name("torch._ops.aten.add_.Tensor")
    program.event(Kind.ACCESS, ptr=BLOCK + SIZE, size=SIZE, aux=WRITE, name=name)
    for moment in (WatchMoment.BEFORE, WatchMoment.AFTER):
        changed = (0, 8) if moment == WatchMoment.AFTER else None
        program.look(name, 11, moment, changed)
        program.look(name, 11, moment, changed, place=1, ptr=BLOCK + SIZE)
    assert [one.evidence["watch"] for one in program.judged().accused] == ["first"]


def test_the_same_mistake_in_many_steps_and_ranks_is_one_finding() -> None:
    program = Program()
    program.watch()
    for step in range(5):
        program.operator("torch._ops.mine.shift.default", 12, inside=(0, 16), step=step)
    program.run.processes.append(process(2, rank=1, world_size=2))
    program.run.processes[0] = replace(program.run.processes[0], world_size=2)
    program.run._events[2] = [dict(event) for event in program.run._events[1]]
    (found,) = program.judged().accused
    assert found.ranks == (0, 1)
    assert found.evidence["times"] == 10
    assert "10 times in 5 steps from 0 to 4" in found.sentence


@pytest.mark.parametrize("end", list(WatchEnd))
def test_a_watch_that_ends_by_itself_is_told(end: WatchEnd) -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.aten.add.Tensor", 11)
    program.end(end)
    program.operator("torch._ops.aten.add.Tensor", 12, inside=(0, 8))  # of nobody's block
    findings = program.judged().findings
    told = end in (WatchEnd.FREED, WatchEnd.REUSED, WatchEnd.UNREADABLE, WatchEnd.UNSELECTED)
    assert [one.kind for one in findings] == [WATCH_ENDED] * told


def busy(seed: int) -> Program:
    chance = np.random.default_rng(seed)
    program = Program()
    program.watch()
    for _ in range(int(chance.integers(1, 30))):
        spans = [(int(at), int(size)) for at, size in chance.integers(1, 512, (3, 2))]
        program.operator(
            f"op{chance.integers(3)}",
            int(chance.integers(10, 20)),
            writes=(BLOCK + spans[0][0], spans[0][1]) if chance.random() < 0.5 else None,
            before=spans[1] if chance.random() < 0.2 else None,
            inside=spans[2] if chance.random() < 0.4 else None,
            tid=int(chance.integers(1, 3)),
            flags=int(LOOSE) if chance.random() < 0.2 else 0,
        )
        if chance.random() < 0.1:
            program.end(WatchEnd.REMOVED)
            program.watch()
    return program


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 120), max_size=8))
def test_any_cut_into_batches_says_the_same_and_so_does_a_message(seed: int, cuts: list[int]) -> None:
    events = busy(seed).run._events[1]
    places = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]

    def fed(places: list[int]) -> RingFold:
        made = RingFold(1)
        for begin, end in pairwise(places):
            piece = events[begin:end]
            if piece:
                table = {n: np.array([e[n] for e in piece], EVENT_COLUMNS[n]).tobytes() for n in COLUMNS}
                made.take(len(piece), table)
        return made

    whole, cut = fed([0, len(events)]).tables(), fed(places).tables()
    assert whole.watches == cut.watches
    assert unpack(pack(cut)).watches == whole.watches


def test_rows_of_upstream_and_content_in_their_place(tmp_path: Path) -> None:
    program = Program()
    program.watch()
    program.operator("torch._ops.aten.add.Tensor", 11)
    path = program.run.save(tmp_path / "out" / "run_1")
    run = Run(path)

    (made,) = write_watch_dumps(run, path.parent, Config())

    assert made.parent.name == "watch_dump"
    assert made.parent.parent.name == "device_0"
    with made.open() as file:
        header, *rows = list(csv.reader(file))
    assert header == ["Tensor info", "Check data sum"]
    entry = "0_100/torch._ops.aten.add.Tensor_1-weights_0"
    assert rows == [[f"{entry}_before.bin", f"{1:016x}"], [f"{entry}_after.bin", f"{1:016x}"]]

    content = path.parent / f"watch_content_{1:016x}"
    content.mkdir()
    for moment in ("before", "after"):
        (content / f"{entry.replace('/', '.')}_{moment}.bin").write_bytes(b"bytes")
    made.unlink()
    files = write_watch_dumps(run, path.parent, Config(watch=Watch(start="a", end="b", full_content=True)))
    assert sorted(file.name for file in files) == [f"{entry.replace('/', '.')}_{m}.bin" for m in ("after", "before")]
    assert not content.exists()
    assert not made.exists()  # the bytes are there, and upstream writes no sums then


def test_a_run_without_watches_costs_and_says_nothing() -> None:
    run = FakeRun([process(1)])
    run.malloc(1000, 0x1000, 64)
    assert track(run).watches == {}
    assert fold(run).folds[1].tables().watches.watched == ()
    assert analyse(run, {}, only=["watch"]).judged[0].findings == ()  # type: ignore[arg-type]


def test_a_start_that_never_ran_is_told_like_no_clean_result() -> None:
    run = FakeRun([process(1)])
    run.malloc(1000, 0x1000, 64)
    config = Config(watch=Watch(start="torch._ops.aten.nosuch.default", end="torch._ops.aten.add.Tensor"))
    text = plain_text(analyse(run, config))  # type: ignore[arg-type]
    assert "Watched blocks: none: torch._ops.aten.nosuch.default, at which --watch begins, did not run" in text
