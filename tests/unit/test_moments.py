"""What survived between two marks of a program: blocks whose fate is known, and a plain count of random ones."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from fake_run import SECOND, FakeRun, frame, process

from msmemscope._kernel import text_id
from msmemscope.analysis.analyzer import tables_of
from msmemscope.analysis.audit import GAVE_BACK, SURVIVED, AuditOptions, judge
from msmemscope.analysis.blocks import fold
from msmemscope.analysis.findings import Finding
from msmemscope.folds import moments
from msmemscope.folds.messages import pack, unpack
from msmemscope.folds.moments import Span
from msmemscope.folds.ring_fold import RingFold
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool

MIB = 1 << 20
PTA = {"device_type": DeviceType.NPU, "device": 2, "pool": Pool.PTA}
HAL = {"device_type": DeviceType.NPU, "device": 2, "pool": Pool.HAL}
PINNED = {"device_type": DeviceType.CPU, "device": 0, "pool": Pool.HAL, "flags": Flag.PINNED}


class Engine:
    """Ranks of one card each. Each thing it does takes a second."""

    def __init__(self, ranks: int = 1) -> None:
        self.run = FakeRun([process(n + 1, rank=n, world_size=ranks, pid=100 + n) for n in range(ranks)])
        main = frame("/src/serve.py", "<module>", 90)
        self.lines = {
            line: self.run.frames(frame("/src/serve.py", name, line), main)
            for line, name in ((10, "load"), (20, "cache"), (30, "forgotten"), (40, "offload"))
        }
        self.now = 0

    def malloc(self, ptr: int, size: int, line: int, ring: int = 1, **place: int) -> None:
        self.now += SECOND
        self.run.malloc(self.now, ptr, size, ring=ring, stack_py=self.lines[line], **(PTA | place))

    def free(self, ptr: int, ring: int = 1, **place: int) -> None:
        self.now += SECOND
        self.run.free(self.now, ptr, ring=ring, **(PTA | place))

    def mark(self, name: str, ring: int = 1, aux: int = 1, after: int = SECOND) -> None:
        self.now += after
        key = text_id(name)
        self.run.strings[key] = name
        self.run.add(Kind.MARK, self.now, ring=ring, name=key, aux=aux)

    def event(self, kind: Kind, ring: int = 1, **fields: int) -> None:
        self.now += SECOND
        self.run.add(kind, self.now, ring=ring, **fields)

    def spans(self) -> tuple[Span, ...]:
        found = fold(self.run).tracked(self.run.processes).moments  # type: ignore[arg-type]
        return found[0].spans if found else ()

    def findings(self, **options: Any) -> list[Finding]:
        folded = fold(self.run)  # type: ignore[arg-type]
        tracked = folded.tracked(self.run.processes)
        return judge(tables_of(self.run, tracked, folded.held, dict), AuditOptions(**options))  # type: ignore[arg-type]


def sums(span: Span, name: str) -> int:
    return int(span.rows[name].sum())


def test_what_was_alive_before_and_is_alive_after_survived_and_what_came_between_was_made() -> None:
    engine = Engine()
    engine.malloc(0x1000, 100 * MIB, 20)
    engine.malloc(0x2000, 80 * MIB, 30)
    engine.mark("sleep")
    engine.free(0x1000)
    engine.malloc(0x1000, 7 * MIB, 10)  # at the address of one that is gone
    engine.mark("wake_up")
    (span,) = engine.spans()
    assert [sums(span, name) // MIB for name in ("before_bytes", "kept_bytes", "made_bytes")] == [180, 80, 7]
    (found,) = engine.findings()
    assert (found.kind, found.ranks, found.bytes, found.place, found.device) == (
        SURVIVED,
        (0,),
        80 * MIB,
        "serve.py:30",
        "npu:2",
    )
    assert "--audit.keep" not in found.advice  # nobody has named it
    assert "Rank 0: 80 MiB of 180 MiB survived from sleep to wake_up on npu:2" in found.sentence
    rows = {(row.cells["line"], row.cells["kept_bytes"], row.cells["made_bytes"]) for row in found.more_rows}
    assert rows == {(20, 0, 0), (30, 80 * MIB, 0), (10, 0, 7 * MIB)}


def test_what_got_another_owner_between_the_marks_is_of_what_its_line_had() -> None:
    engine = Engine()
    engine.malloc(0x2000, 80 * MIB, 30)
    engine.mark("sleep")
    engine.event(Kind.LABEL_ADDR, ptr=0x2000, name=engine.run.text("kv"), aux=5, **PTA)
    engine.mark("wake_up")
    (found,) = engine.findings()
    assert "80 MiB of 80 MiB survived on npu:2" in "\n".join(found.details)
    assert "0 B" not in "\n".join(found.details)


def test_a_block_that_changes_its_owner_between_the_marks_has_one_row() -> None:
    """What survives is its last owner's; what does not, its owner's at the first mark."""
    engine = Engine()
    for ptr, size in ((0x10000000, 80), (0x20000000, 30), (0x30000000, 20)):
        engine.malloc(ptr, size * MIB, 30)
        engine.event(Kind.LABEL_ADDR, ptr=ptr, name=engine.run.text("mine"), aux=5, **PTA)
    engine.malloc(0x40000000, 10 * MIB, 30)  # nobody's until later
    engine.mark("sleep")
    engine.event(Kind.LABEL_ADDR, ptr=0x10000000, name=engine.run.text("yours"), aux=5, **PTA)
    engine.event(Kind.LABEL_ADDR, ptr=0x20000000, name=engine.run.text("yours"), aux=5, **PTA)
    engine.event(Kind.LABEL_ADDR, ptr=0x40000000, name=engine.run.text("ours"), aux=5, **PTA)
    engine.free(0x20000000)
    engine.mark("wake_up")
    (found,) = engine.findings()
    rows = {
        row.cells["owner"]: (row.cells["before_bytes"], row.cells["kept_bytes"], row.cells["made_bytes"])
        for row in found.more_rows
    }
    assert rows == {
        "PTA@yours": (80 * MIB, 80 * MIB, 0),
        "PTA@mine": (50 * MIB, 20 * MIB, 0),
        "PTA@ours": (10 * MIB, 10 * MIB, 0),
    }


def test_of_a_program_of_the_host_alone_no_card_is_told() -> None:
    engine = Engine()
    host = {"device_type": DeviceType.CPU, "device": 0, "pool": Pool.HOST}
    engine.malloc(0x1000, 100 * MIB, 20, **host)
    engine.mark("sleep")
    engine.malloc(0x2000, 3 * MIB, 30, **host)
    engine.mark("wake_up")
    (found,) = engine.findings()
    assert found.is_note
    assert found.sentence == (
        "Rank 0: no card had memory at sleep or wake_up; on the host 100 MiB of 100 MiB survived."
    )


def test_less_than_the_limit_is_a_note() -> None:
    engine = Engine()
    engine.malloc(0x2000, 64 * MIB - 1, 30)
    engine.mark("sleep")
    engine.mark("wake_up")
    assert [one.kind for one in engine.findings()] == [GAVE_BACK]
    assert [one.kind for one in engine.findings(min_bytes=64 * MIB - 1)] == [SURVIVED]


def test_memory_that_the_driver_has_back_did_not_survive_though_the_pools_block_is_there() -> None:
    """As vLLM sleeps: the pool keeps its addresses, the handles behind them are released."""
    engine = Engine()
    for number, line in enumerate((10, 20)):
        start, handle = (number + 1) << 30, 0x70 + number
        engine.malloc(handle, 128 * MIB, line, flags=Flag.HANDLE, **HAL)
        engine.event(Kind.MAP, ptr=start, size=128 * MIB, attr=handle, **HAL)
        engine.malloc(start, 100 * MIB, line)
    engine.mark("sleep")
    engine.event(Kind.UNMAP, ptr=1 << 30, **HAL)
    engine.free(0x70, flags=Flag.HANDLE, **HAL)
    engine.malloc(0x9000, 100 * MIB, 40, **PINNED)
    engine.mark("wake_up")
    (found,) = engine.findings()
    assert (found.kind, found.bytes, found.line) == (SURVIVED, 100 * MIB, 20)
    figures = found.evidence["per_rank"]["0"]
    assert (figures["before_bytes"], figures["host_made_bytes"]) == (200 * MIB, 100 * MIB)
    assert "100 MiB lay on the host instead" in found.sentence


def test_what_is_meant_to_stay_is_shown_and_not_told() -> None:
    engine = Engine()
    label = {"ring": 1, "name": engine.run.text("weight"), "aux": 5}
    engine.run.add(Kind.LABEL_PUSH, 1, **label)
    engine.malloc(0x1000, 200 * MIB, 10)
    engine.run.add(Kind.LABEL_POP, engine.now + 1, **label)
    engine.malloc(0x2000, 3 * MIB, 20)
    engine.mark("sleep")
    engine.mark("wake_up")
    (told,) = engine.findings()
    assert (told.kind, told.owner) == (SURVIVED, "PTA@weight")
    assert told.advice.endswith("If it is meant to stay: --audit.keep weight.")
    (note,) = engine.findings(keep="weight")
    assert (note.kind, note.bytes) == (GAVE_BACK, 3 * MIB)
    assert note.evidence["per_rank"]["0"]["meant_bytes"] == 200 * MIB
    assert {row.cells["owner"]: row.cells["meant"] for row in note.more_rows} == {"PTA@weight": 1, "PTA": 0}


def test_ranks_are_one_finding_about_the_worst_of_their_times() -> None:
    engine = Engine(ranks=3)
    for ring in (1, 2, 3):
        for time in range(2):
            base = (time + 1) << 32
            engine.malloc(base, (100 + ring) * MIB, 30, ring=ring)
            engine.mark("sleep", ring=ring)
            if ring == 3 or time == 0:
                engine.free(base, ring=ring)
            engine.mark("wake_up", ring=ring)
            engine.mark("wake_up", ring=ring)  # in parts: the first counts
    bad, note = engine.findings()
    assert (bad.ranks, bad.bytes, note.kind, note.ranks) == ((0, 1), 203 * MIB, GAVE_BACK, (2,))
    assert [bad.evidence["per_rank"][rank]["times"] for rank in ("0", "1")] == [2, 2]
    assert "the worst of 2 times" in bad.sentence


@pytest.mark.parametrize(("aux", "name", "spans"), [(0, "sleep", 1), (0, "my_sleep", 0), (1, "my_sleep", 1)])
def test_marks_of_mstx_count_by_their_name_and_those_of_the_api_always(aux: int, name: str, spans: int) -> None:
    engine = Engine()
    engine.malloc(0x1000, MIB, 10)
    engine.mark(name, aux=aux)
    engine.mark("wake_up", aux=aux)
    assert len(engine.spans()) == spans
    assert len(engine.findings(between=f"{name},wake_up")) == spans


def test_marks_without_end_are_bounded_and_counted() -> None:
    engine = Engine()
    engine.malloc(0x1000, MIB, 10)
    for _ in range(50):
        engine.mark("sleep")
        engine.mark("sleep", after=10)
        engine.mark("wake_up")
    found = fold(engine.run).tracked(engine.run.processes).moments[0]  # type: ignore[arg-type]
    assert (len(found.spans), found.left_out) == (moments.MAX_SPANS, 50)
    assert found.earlier == 50 + 49 - moments.MAX_SPANS


def test_many_lines_add_up_though_only_the_largest_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "MAX_ROWS", 4)
    engine = Engine()
    for number in range(20):
        stack = engine.run.frames(frame("/src/many.py", "f", number + 1))
        engine.run.malloc(engine.now + number, (number + 1) << 30, (number + 1) * MIB, stack_py=stack, **PTA)
    engine.now += SECOND
    engine.mark("sleep")
    engine.free(20 << 30)
    engine.mark("wake_up")
    (span,) = engine.spans()
    assert len(span.rows["pool"]) == 5
    assert sums(span, "before_bytes") == 210 * MIB
    assert sums(span, "kept_bytes") == 190 * MIB
    assert sums(span, "kept_blocks") == 19


@pytest.mark.parametrize("seed", range(6))
def test_random_blocks_are_counted_as_a_plain_program_counts_them_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    engine = Engine()
    live: dict[int, tuple[int, int, int]] = {}  # ptr -> line, size, number
    number = 0
    marks: dict[str, tuple[int, int, dict[int, int]]] = {}  # name -> time, newest, bytes by line
    expected = []
    for _ in range(120):
        chosen = chance.random()
        if chosen < 0.45:
            number += 1
            ptr, line, size = number << 30, chance.choice((10, 20, 30)), chance.randrange(1, 1000)
            live[ptr] = line, size, number
            engine.malloc(ptr, size, line)
        elif chosen < 0.8 and live:
            ptr = chance.choice(sorted(live))
            del live[ptr]
            engine.free(ptr)
        else:
            name = chance.choice(("sleep", "wake_up", "other"))
            engine.mark(name)
            before = marks.get(name)
            for first, (ts, newest, had) in marks.items():
                if first == name or (before is not None and before[0] >= ts):
                    continue
                by_line: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
                for line, size in had.items():
                    by_line[line][0] += size
                for line, size, made in live.values():
                    by_line[line][1 if made <= newest else 2] += size
                expected.append((first, name, sorted((line, *row) for line, row in by_line.items() if any(row))))
            marks.pop(name, None)
            level: dict[int, int] = defaultdict(int)
            for line, size, _ in live.values():
                level[line] += size
            marks[name] = engine.now, number, level
    line_of = {stack: line for line, stack in engine.lines.items()}
    found = []
    for span in engine.spans():
        columns = (span.rows[name].tolist() for name in ("stack_py", "before_bytes", "kept_bytes", "made_bytes"))
        rows = [(line_of[stack], *row) for stack, *row in zip(*columns, strict=True) if any(row)]
        names = engine.run.strings[span.first_name], engine.run.strings[span.name]
        found.append((*names, sorted(rows)))
    assert found == expected[-moments.MAX_SPANS :]


def test_spans_travel() -> None:
    engine = Engine()
    engine.malloc(0x1000, MIB, 10)
    engine.mark("sleep")
    engine.mark("wake_up")
    ring = RingFold(1)
    for batch in engine.run.events():
        columns = {
            name: np.ascontiguousarray(batch.column(name).to_numpy()) for name in batch.schema.names if name != "ring"
        }
        ring.take(batch.num_rows, columns)
    tables = ring.tables()
    again = unpack(pack(tables)).moments
    assert [(one.first_name, one.name, one.ts) for one in again.spans] == [
        (one.first_name, one.name, one.ts) for one in tables.moments.spans
    ]
    assert {name: column.tolist() for name, column in again.spans[0].rows.items()} == {
        name: column.tolist() for name, column in tables.moments.spans[0].rows.items()
    }


@pytest.mark.parametrize("text", ["sleep", "sleep,", "a,b,c", "a,a", ""])
def test_what_is_no_pair_of_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="between takes two names"):
        AuditOptions(between=text)


def test_a_limit_is_a_byte_or_more() -> None:
    assert AuditOptions(min_bytes=1).min_bytes == 1
    with pytest.raises(ValueError, match="min_bytes takes 1 byte or more"):
        AuditOptions(min_bytes=0)


def test_ever_new_names_cost_as_much_as_a_few() -> None:
    """Each look costs what is alive; eight names may be looked at in a second, whatever they are called."""
    engine = Engine()
    engine.malloc(0x1000, MIB, 20)
    for number in range(100):
        engine.mark(f"step {number}", after=SECOND // 50)
    found = fold(engine.run).tracked(engine.run.processes).moments[0]  # type: ignore[arg-type]
    # Two seconds: the first eight, then a new one each time that the oldest of them is a second old.
    assert found.left_out >= 100 - 3 * moments.MAX_NAMES
    assert len(found.spans) + found.earlier <= 3 * moments.MAX_NAMES**2


def test_a_time_that_is_damaged_ends_nothing() -> None:
    engine = Engine()
    engine.malloc(0x1000, MIB, 20)
    now, engine.now = engine.now, (1 << 63) - 1
    engine.mark("sleep", after=0)
    engine.now = now
    engine.mark("sleep")
    engine.mark("wake_up")
    found = fold(engine.run).tracked(engine.run.processes).moments[0]  # type: ignore[arg-type]
    assert (len(found.spans), found.left_out) == (1, 0)
