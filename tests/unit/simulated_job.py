"""A simulated job: ranks that allocate and free blocks in a training loop, and the tables a tracker would make of it.

Plain Python, deliberately unlike the native kernel: every block is an object, every table is counted out at the end.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from corpus.slow_sums import slow_rows

from msmemscope.analysis.blocks import PEAK_OF_ALL, TYPICAL_PEAK, PeakTables, SiteSums
from msmemscope.analysis.subjects import Subjects, find_subjects
from msmemscope.folds.incidents import Incident
from msmemscope.vocabulary import DeviceType, Pool

KIB, MIB = 1 << 10, 1 << 20
TRAIN = "/home/user/project/train.py"
MODEL = "/home/user/project/model.py"
SITE = "/usr/lib/python3.11/site-packages/torch/"
MODULE = SITE + "nn/modules/module.py"


@dataclass(frozen=True)
class Frame:
    file: str
    function: str
    line: int
    kind: str = "python"

    @property
    def text(self) -> str:
        return f"{self.file}({self.line}): {self.function}"


@dataclass(frozen=True)
class Process:
    ring: int
    rank: int | None
    parent_ring: int = 0
    host: str = "node0"
    created_ns: int = 0
    wall_offset_ns: int = 0
    attempt: int = 0
    pid: int = 100
    program: str = "/usr/bin/python3"
    command: str = "python3\u241ftrain.py"
    role: str = ""
    parallel: str = ""
    address_space: str = ""
    lost: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(eq=False)
class Block:
    site: tuple[Any, ...]
    size: int
    born: int


def at(line: int, file: str = TRAIN, function: str = "main") -> Frame:
    return Frame(file, function, line)


def stack(*user: Frame, inner: tuple[Frame, ...] = ()) -> tuple[Frame, ...]:
    """A stack of user frames, innermost first, under the script's module level."""
    return (*inner, *user, Frame(TRAIN, "<module>", 900))


def forward(line: int, *, layer: str = "linear", statement: int = 20, user: bool = True) -> tuple[Frame, ...]:
    """An allocation in a layer that model.py:`line` calls, under `train.py:statement`."""
    calls = (Frame(MODULE, "_call_impl", 1780), Frame(MODULE, "_wrapped_call_impl", 1769))
    inner = (
        Frame(SITE + "nn/functional.py", layer, 77),
        Frame(SITE + f"nn/modules/{layer}.py", "forward", 125),
        *calls,
    )
    between = (
        (Frame(MODEL, "forward", line), *calls)
        if user
        else (Frame(SITE + "nn/modules/container.py", "forward", 250), *calls)
    )
    return (*inner, *between, at(statement), Frame(TRAIN, "<module>", 900))


STEP_STACK = (Frame(SITE + "optim/optimizer.py", "wrapper", 480), at(33), Frame(TRAIN, "<module>", 900))


class Worker:
    """One process: its blocks and what its sites held at the end of each step."""

    def __init__(self, job: Job, number: int, process: Process) -> None:
        self.job, self.number, self.process = job, number, process
        self.step = 0
        self.lives: dict[Block, int] = {}  # every block, with the step in which it was freed, -1 while it lives
        self.live: set[Block] = set()
        # Of closed steps, freed in the open one: the survivors are those of the last boundary.
        self.late: list[Block] = []
        self.levels: list[dict[tuple[Any, ...], tuple[int, int]]] = []
        # By pool of a device: what it holds, and the most of the open step and of each closed one.
        self.now: dict[tuple[Any, ...], int] = defaultdict(int)
        self.most: dict[tuple[Any, ...], int] = {}
        self.peaks: list[dict[tuple[Any, ...], int]] = []
        # What sites held when a pool was at its highest: step, bytes, site -> bytes and blocks.
        self.open_peak: dict[tuple[Any, ...], tuple[int, int, Any]] = {}
        self.highest: dict[tuple[Any, ...], tuple[int, int, Any]] = {}
        self.typical: dict[tuple[Any, ...], tuple[int, int, Any]] = {}
        self.step_start: list[int] = [0]
        self.peak = self.low = 0
        self.rows: list[tuple[int, ...]] = []

    def alloc(
        self,
        frames: tuple[Frame, ...],
        size: int,
        *,
        device: int = -1,
        device_type: int = DeviceType.CPU,
        pool: int = Pool.HOST,
    ) -> Block:
        block = Block((self.number, int(device_type), device, int(pool), self.job.stack_id(frames)), size, self.step)
        self.live.add(block)
        self.lives[block] = -1
        place = block.site[:4]
        self.now[place] += size
        self.most[place] = max(self.now[place], self.most.get(place, 0))
        for peaks in (self.open_peak, self.highest):
            if self.now[place] > peaks.get(place, (0, 0, None))[1]:
                peaks[place] = self._held_in(place)
        entry = self.job.sites.setdefault(
            block.site, {"first_step": self.step, "first_ts": next(self.job.clock), "allocs": 0, "frees": 0}
        )
        entry["last_step"] = self.step
        entry["allocs"] += 1
        entry["order"] = next(self.job.clock)
        return block

    def free(self, block: Block | None) -> None:
        if block is not None:
            self.live.remove(block)
            self.now[block.site[:4]] -= block.size
            self.lives[block] = self.step
            if block.born < self.step:
                self.late.append(block)
            self.job.sites[block.site]["frees"] += 1

    def next_step(self) -> None:
        """Ends an iteration. The first one and all before it is step 0, and no event carries the number 1."""
        self._close()
        if self.step == 0:
            self._close()
            self.step = 1
        self.late.clear()
        self.step += 1

    def _close(self) -> None:
        self.levels.append(self._level())
        self.peaks.append(self.most)
        self.most = dict(self.now)
        for place, (_, size, held) in self.open_peak.items():
            if self.step >= 2 and size > self.typical.get(place, (0, -1, None))[1]:
                self.typical[place] = (self.step, size, held)
        self.open_peak = {place: self._held_in(place) for place in self.now}

    def _held_in(self, place: tuple[Any, ...]) -> tuple[int, int, dict[tuple[Any, ...], tuple[int, int]]]:
        held = {site: pair for site, pair in self._level().items() if site[:4] == place}
        return self.step, self.now[place], held

    def _level(self) -> dict[tuple[Any, ...], tuple[int, int]]:
        level: dict[tuple[Any, ...], tuple[int, int]] = defaultdict(lambda: (0, 0))
        for block in self.live:
            size, count = level[block.site]
            level[block.site] = (size + block.size, count + 1)
        return dict(level)


@dataclass
class Job:
    """Processes, stacks and sites; `tracked()` gives the tables."""

    seed: int = 0
    stacks: dict[tuple[Frame, ...], int] = field(default_factory=dict)
    sites: dict[tuple[Any, ...], dict[str, int]] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    step_stack: tuple[Frame, ...] = STEP_STACK

    def __post_init__(self) -> None:
        self.clock: Iterator[int] = itertools.count(1)
        self.rng = np.random.default_rng(self.seed)

    def stack_id(self, frames: tuple[Frame, ...]) -> int:
        return self.stacks.setdefault(frames, len(self.stacks) + 1) if frames else 0

    def stack(self, number: int) -> tuple[Frame, ...]:
        return next((frames for frames, known in self.stacks.items() if known == number), ())

    def process(self, rank: int | None = 0, parent: Worker | None = None, **more: Any) -> Worker:
        number = len(self.workers)
        process = Process(number + 1, rank, 0 if parent is None else parent.process.ring, **more)
        self.workers.append(Worker(self, number, process))
        return self.workers[-1]

    def tracked(self) -> FakeTracked:
        numbers = {site: number for number, site in enumerate(self.sites)}
        names = ("process", "device_type", "device", "pool", "stack_py")
        sites: dict[str, Any] = {name: [site[i] for site in numbers] for i, name in enumerate(names)}
        for name in ("first_step", "last_step", "first_ts", "allocs", "frees", "order"):
            sites[name] = [self.sites[site][name] for site in numbers]
        sites["stack_c"] = [0] * len(numbers)
        steps = []
        for worker in self.workers:
            for step, level in enumerate(worker.levels):
                totals: dict[tuple[Any, ...], int] = defaultdict(int)
                for site, (size, _) in level.items():
                    totals[site[:4]] += size
                peaks = worker.peaks[step] if worker.peaks else totals  # a test may tell nothing but levels
                steps += [(*place, step, totals[place], -1, True, peaks[place], -1) for place in peaks]
        return FakeTracked(
            processes=tuple(worker.process for worker in self.workers),
            sites=_columns(sites),
            steps=_table(
                (
                    *("process", "device_type", "device", "pool", "step", "end_bytes", "end_reserved", "complete"),
                    *("peak_bytes", "peak_reserved"),
                ),
                steps,
            ),
            step_stacks={worker.number: self.stack_id(self.step_stack) for worker in self.workers},
            last_complete_step={worker.number: worker.step - 1 for worker in self.workers},
            boundaries={w.number: w.step for w in self.workers if w.step and not w.process.parent_ring},
            sums={worker.number: self._sums(worker, numbers) for worker in self.workers},
            peaks={worker.number: self._peaks(worker, numbers) for worker in self.workers},
        )

    def _peaks(self, worker: Worker, numbers: dict[tuple[Any, ...], int]) -> PeakTables:
        mine = [site for site in numbers if site[0] == worker.number]
        pools, sites = [], []
        for which, peaks in ((PEAK_OF_ALL, worker.highest), (TYPICAL_PEAK, worker.typical)):
            for place, (step, size, held) in peaks.items():
                pools.append((*place[1:], which, which, step, size))
                sites += [(mine.index(site), which, *pair) for site, pair in held.items()]
        return PeakTables(
            _table(("device_type", "device", "pool", "peak", "sites", "step", "bytes"), pools),
            _table(("site", "peak", "bytes", "blocks"), sites),
        )

    def _sums(self, worker: Worker, numbers: dict[tuple[Any, ...], int]) -> SiteSums:
        mine = [site for site in numbers if site[0] == worker.number]
        lives = [(mine.index(block.site), block.born, died, block.size) for block, died in worker.lives.items()]
        first = min((block.born for block in worker.lives), default=0)
        rows, ages = slow_rows(lives, worker.step - 1, first)
        return SiteSums({**rows, "cells": np.ones_like(rows["cell"])}, ages, worker.step - 1, first, 1)


@dataclass
class FakeTracked:
    """The fields of blocks.Tracked that the analyses read."""

    processes: tuple[Process, ...]
    sites: dict[str, Any]
    steps: dict[str, Any]
    step_stacks: dict[int, int]
    last_complete_step: dict[int, int]
    boundaries: dict[int, int]
    sums: dict[int, SiteSums]
    windows: dict[int, SiteSums] = field(default_factory=dict)
    peaks: dict[int, PeakTables] = field(default_factory=dict)
    owners: dict[int, Any] = field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()

    @property
    def is_judged_by_time(self) -> bool:
        return False

    @property
    def subjects(self) -> Subjects:
        return find_subjects(self.processes, self.boundaries)  # type: ignore[arg-type]


def _table(names: tuple[str, ...], rows: list[Any]) -> dict[str, Any]:
    return _columns({name: [row[i] for row in rows] for i, name in enumerate(names)})


def _columns(columns: dict[str, list[Any]]) -> dict[str, Any]:
    types = {
        "stack_py": np.uint64,
        "stack_c": np.uint64,
        "process": np.uint32,
        "site": np.uint32,
        "step": np.uint32,
        "birth_step": np.uint32,
        "device": np.int16,
        "device_type": np.uint8,
        "pool": np.uint8,
        "complete": bool,
    }
    return {name: np.array(values, dtype=types.get(name, np.int64)) for name, values in columns.items()}


def train(
    job: Job,
    ranks: int = 1,
    steps: int = 24,
    *,
    api: bool = True,
    teardown: bool = True,
    graph: bool = False,
    plant: Any = None,
    layers: int = 4,
    churn: int = MIB,
    end: Any = None,
) -> Job:
    """A training loop on every rank: parameters, batch, forward, loss, backward, AdamW.

    api: the step ends after the iteration (msmemscope.step()), not inside it (the optimizer's hook). teardown: all is
    freed after the last step, as at the end of main(). graph: the loss is kept with its graph (train.py:22). plant:
    called as plant(worker, iteration) after the backward pass: the pattern under test. end: plant(worker) at the end.
    """
    workers = [job.process(rank) for rank in range(ranks)] if not job.workers else job.workers
    for worker in workers:
        for layer in range(layers):
            worker.alloc(stack(at(10 + layer, MODEL, "__init__"), at(12)), churn)
        states: list[Block] = []
        grads: list[Block] = []
        last: list[Block] = []
        for iteration in range(steps):
            length = int(job.rng.integers(1, 9))
            batch = worker.alloc(stack(at(70, TRAIN, "batches"), at(19)), 4 * KIB)
            saved = [
                worker.alloc(forward(40 + layer), churn // 8 * length if not graph else churn)
                for layer in range(layers)
            ]
            small = [worker.alloc(forward(40, layer="normalization"), 2 * KIB)]
            logits = worker.alloc(forward(60), 64 * KIB * (1 if graph else length))
            logp = worker.alloc(
                stack(at(22), inner=(Frame(SITE + "nn/functional.py", "cross_entropy", 3450),)), 64 * KIB
            )
            loss = worker.alloc(stack(at(22), inner=(Frame(SITE + "nn/functional.py", "cross_entropy", 3451),)), 4)
            for block in last:
                worker.free(block)
            for block in grads:
                worker.free(block)
            grads = [worker.alloc(stack(at(30)), churn) for _ in range(layers)]
            if graph:
                last = [logits]
            else:
                for block in (*saved, *small, logp):
                    worker.free(block)
                last = [logits, loss, batch]
            if not states:
                states = [
                    worker.alloc(stack(at(33), inner=(Frame(SITE + "optim/adamw.py", "_init_group", 150),)), churn)
                    for _ in range(2 * layers)
                ]
            if not api:
                worker.next_step()
            if plant is not None:
                plant(worker, iteration)
            if api:
                worker.next_step()
        if end is not None:
            end(worker)
        if teardown:
            for block in list(worker.live):
                worker.free(block)
    return job
