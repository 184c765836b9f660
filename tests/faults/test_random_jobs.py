"""Random jobs over ranks, threads and pools, all the way to the tables, against a reference in plain Python.

tests/unit compares each fold with a model of its own (test_block_tracker, test_site_sums, test_owners) and merges and
cuts in every order (test_folds). Here the whole way is asked: what stands in the tables of steps and of blocks, in the
sums of call stacks and in the verdict, when the events have gone through rings, batches, journal, parts and folds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope.query.opened import OpenedRun
from msmemscope.report.block_table import write_blocks
from msmemscope.selftest.loops import place
from msmemscope.selftest.play import Played, played
from msmemscope.selftest.script import SOURCES, Block, Process, Script

RANKS, THREADS, LINES = 3, 3, 5
POOLS = ("PTA", "HOST")
SIZES = (512, 4096, 65_536, 1_000_000)
LABELS = ("", "weights", "kv")


@dataclass(frozen=True)
class Op:
    """One thing that a thread of a rank does. which: among its live blocks, where one is needed."""

    what: str
    rank: int
    thread: int
    which: int
    line: int
    pool: int
    size: int
    label: str
    writes: bool


OPS = st.builds(
    Op,
    what=st.sampled_from(("alloc", "alloc", "alloc", "free", "free", "access", "access", "step")),
    rank=st.integers(0, RANKS - 1),
    thread=st.integers(1, THREADS),
    which=st.integers(0, 1_000),
    line=st.integers(1, LINES),
    pool=st.integers(0, len(POOLS) - 1),
    size=st.sampled_from(SIZES),
    label=st.sampled_from(LABELS),
    writes=st.booleans(),
)


@dataclass
class Life:
    """A block as the reference knows it: nothing is ever forgotten."""

    id: int
    pool: str
    size: int
    line: int
    label: str
    thread: int
    malloc_step: int
    block: Block
    free_step: int | None = None
    accesses: list[tuple[int, bool]] = field(default_factory=list)


@dataclass
class Reference:
    """One rank: every block, and the level of each pool behind each of its events."""

    rank: Process
    lives: list[Life] = field(default_factory=list)
    steps: list[int] = field(default_factory=lambda: [0])
    levels: dict[str, list[tuple[int, str, int, int]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def step(self) -> int:
        return self.steps[-1]

    @property
    def live(self) -> list[Life]:
        return [one for one in self.lives if one.free_step is None]

    def held(self, pool: str) -> int:
        return sum(one.size for one in self.live if one.pool == pool)

    def do(self, op: Op) -> None:
        with self.rank.thread(op.thread):
            if op.what == "alloc":
                self._alloc(op)
            elif op.what == "step":
                self.rank.step()
                # The first boundary ends step 0 and the empty step 1.
                self.steps += [1, 2] if self.step == 0 else [self.step + 1]
            elif self.live:
                self._touch(self.live[op.which % len(self.live)], op)

    def _alloc(self, op: Op) -> None:
        pool = POOLS[op.pool]
        at = place(f"train.py:{op.line} work")
        make = self.rank.alloc if pool == "PTA" else self.rank.on_host
        if op.label:
            with self.rank.label(op.label):
                block = make(op.size, at)
        else:
            block = make(op.size, at)
        self.lives.append(Life(len(self.lives) + 1, pool, op.size, op.line, op.label, op.thread, self.step, block))
        self.levels[pool].append((self.step, "alloc", op.size, self.held(pool)))

    def _touch(self, life: Life, op: Op) -> None:
        if op.what == "free":
            self.rank.free(life.block)
            life.free_step = self.step
            self.levels[life.pool].append((self.step, "free", life.size, self.held(life.pool)))
        else:
            life.accesses.append((self.rank.now, op.writes))
            self.rank.access(life.block, write=op.writes)

    # --- what the tables must say ---------------------------------------------------------------------------------

    def step_rows(self) -> Iterator[tuple[Any, ...]]:
        for pool, events in self.levels.items():
            level = 0
            for step in [one for one in self.steps if one >= events[0][0]]:
                mine = [one for one in events if one[0] == step]
                start, level = level, mine[-1][3] if mine else level
                sums = [sum(one[2] for one in mine if one[1] == kind) for kind in ("alloc", "free")]
                counts = [sum(one[1] == kind for one in mine) for kind in ("alloc", "free")]
                peak = max([start, *(one[3] for one in mine)])
                yield (self.rank.rank, pool, step, start, level, peak, *counts, *sums, step != self.step)

    def block_rows(self) -> Iterator[tuple[Any, ...]]:
        for one in self.lives:
            times = [ts for ts, _ in one.accesses]
            writes = sum(wrote for _, wrote in one.accesses)
            idle = max((b - a for a, b in pairwise(times)), default=None)
            where = f"{SOURCES}train.py:{one.line}"
            yield (self.rank.rank, one.id, one.pool, one.size, where, one.malloc_step, one.free_step, one.thread,
                   len(times), len(times) - writes, writes, times[0] if times else None, times[-1] if times else None,
                   idle)  # fmt: skip


STEP_COLUMNS = ("rank", "pool", "step", "start_bytes", "end_bytes", "peak_bytes", "allocs", "frees", "alloc_bytes")
STEP_COLUMNS += ("freed_bytes", "complete")
BLOCK_COLUMNS = ("rank", "allocation_id", "pool", "size", "place", "malloc_step", "free_step", "tid", "accesses")
BLOCK_COLUMNS += ("reads", "writes", "first_access_ts", "last_access_ts", "longest_idle_ns")


def rows(table: Any, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True), key=str)


def sites_at_the_end(made: Played) -> dict[tuple[int, str], int]:
    """Live bytes by rank and line, as the fold's sums of call stacks have them."""
    found: dict[tuple[int, str], int] = defaultdict(int)
    held, _ = next(one for one in made.stored.judged).tables.alive
    ranks = made.stored.tracked.ranks
    for number, stack, size in zip(held["process"], held["stack_py"], held["size"], strict=True):
        frame = made.run.stack(int(stack))[0]
        found[int(ranks[number]), f"{frame.file}:{frame.line}"] += int(size)
    return found


@settings(max_examples=20, deadline=None)
@given(st.lists(OPS, min_size=1, max_size=150))
def test_tables_are_those_of_the_reference(ops: list[Op]) -> None:
    job = Script()
    job.config["dump_events"] = ("alloc", "free", "access")
    references = [Reference(rank) for rank in job.ranks(RANKS)]
    for op in ops:
        references[op.rank].do(op)
    for one in references:
        one.rank.mark("the end")  # each has at least an event

    with played(job) as made:
        assert made.live.summary.findings == made.stored.summary.findings
        write_blocks(made.run)
        run = OpenedRun(made.run.path)
        assert rows(run.steps(), STEP_COLUMNS) == sorted(
            (row for one in references for row in one.step_rows()), key=str
        )
        blocks = run.blocks(columns=[*BLOCK_COLUMNS, "owner", "alive_at_end"]).read_all()
        assert rows(blocks, BLOCK_COLUMNS) == sorted((row for one in references for row in one.block_rows()), key=str)

        labels = {(one.rank.rank, life.id): life.label for one in references for life in one.lives}
        for row in blocks.to_pylist():
            owner = row["owner"].split("@")
            assert {*LABELS} & {*owner} - {""} == {labels[row["rank"], row["allocation_id"]]} - {""}
            assert row["alive_at_end"] == (row["free_step"] is None)


@settings(max_examples=15, deadline=None)
@given(st.lists(OPS, min_size=1, max_size=120))
def test_what_lives_at_the_end_of_the_last_step_is_that_of_the_reference(ops: list[Op]) -> None:
    job = Script()
    references = [Reference(rank) for rank in job.ranks(RANKS)]
    for op in ops:
        references[op.rank].do(op)
    for one in references:
        one.do(Op("step", 0, 1, 0, 1, 0, 512, "", False))
    wanted: dict[tuple[int, str], int] = defaultdict(int)
    for one in references:
        for life in one.live:
            wanted[one.rank.rank, f"{SOURCES}train.py:{life.line}"] += life.size
    with played(job) as made:
        assert sites_at_the_end(made) == wanted
