"""How fast the folds go through events, on one core, what memory they take, and what merging and judging cost.

    python benchmarks/folds.py [--events 20000000] [--batch 65536] [--parquet] [--ranks 64,256,1024]

Three streams of synthetic events of 8 processes, fed in batches as they come from rings:

    training  steps of 10,000 blocks from 2,000 sites: activations that live from forward to backward, temporaries
              in between, every step at the same addresses, one site that keeps a block each step
    churn     100,000 blocks live per process, freed and allocated in random order: hardly a cache hit
    other     like training, but 3 of 4 events are operators that touch nothing
    accesses  like training, but each block is made by an operator that reads the block before and writes this one, as
              where inefficient blocks are looked for: 2 of 3 events are operators and accesses

Each is followed twice: without the lives of blocks, and with them, which are written as parts of blocks/.

With --parquet the training stream is written as zstd parts first, and `blocks.fold` reads it back with pyarrow on
the same single core: what `analyze` of a run costs up to the tables. With --ranks so many folds are fed 200 steps of
2,000 sites each (one of them leaks on every rank, one on rank 3 alone, half of the others hand their blocks from step
to step), then the tables of all are merged and judged, by the search for leaks alone and by leaks, fragmentation,
peers, peak and ledger as they run behind each other.

The rate is events per second of CPU time of one core, the wall clock's beside it: the two differ when the machine has
other work. Making the events is not part of the time. Peak RSS is that of a process that does nothing else, with the
libraries and the events in flight; "idle" is the same before the first event, "half" after half of the events.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope._native import keep_freed_memory
from msmemscope.aggregate.life_parts import LifeParts
from msmemscope.analysis import blocks
from msmemscope.analysis.analyzer import Tables
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.leaks import find_leaks
from msmemscope.analysis.registry import get_analyzer
from msmemscope.analysis.usage import UsageIndex
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.tables.process import Process, Whose
from msmemscope.tables.run import Frame
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool

PROCESSES = 8
SITES = 2_000
USAGE_SAMPLES = 200
GIB = 1 << 30

Columns = dict[str, Any]


def empty(n: int) -> Columns:
    columns: Columns = {name: np.zeros(n, EVENT_COLUMNS[name]) for name in COLUMNS}
    columns["total"][:] = 8 * GIB
    columns["device_type"][:] = DeviceType.CUDA
    columns["pool"][:] = Pool.CUDA
    columns["tid"][:] = 4711
    return columns


def training_step(chance: np.random.Generator) -> Columns:
    """The events of one step, forward and backward; every block but the last is freed within it."""
    layers, kept_per_layer, temporaries = 100, 40, 60
    kinds: list[int] = []
    numbers: list[int] = []
    kept: list[int] = []
    number = 0
    for _ in range(layers):
        for _ in range(kept_per_layer):
            kinds.append(Kind.MALLOC)
            numbers.append(number)
            kept.append(number)
            number += 1
        for _ in range(temporaries):
            kinds += [Kind.MALLOC, Kind.FREE]
            numbers += [number, number]
            number += 1
    kinds += [Kind.FREE] * len(kept) + [Kind.MALLOC]
    numbers += [*reversed(kept), number]

    columns = empty(len(kinds))
    of_block = np.array(numbers)
    addresses = np.uint64(0x7F00_0000_0000) + chance.permutation(number + 1).astype(np.uint64) * np.uint64(2048)
    columns["kind"][:] = kinds
    columns["ptr"][:] = addresses[of_block]
    columns["size"][:] = np.where(columns["kind"] == Kind.MALLOC, 512 * (1 + of_block % 1000), 0)
    columns["stack_py"][:] = chance.integers(1, 2**63, SITES, dtype=np.uint64)[of_block % SITES]
    return columns


def training(events: int, batch: int, others: int = 0) -> Iterator[tuple[int, Columns]]:
    """Yields (process, columns), one step of every process in turn, with `others` operators after each memory event."""
    step_of = training_step(np.random.default_rng(1))
    if others:
        step_of = {name: np.repeat(column, others + 1) for name, column in step_of.items()}
        step_of["kind"][np.arange(len(step_of["kind"])) % (others + 1) != 0] = Kind.OP_START
    length = len(step_of["kind"])
    ts = np.arange(length, dtype=np.uint64) * np.uint64(1000)
    done = step = 0
    while done < events:
        step_of["ptr"][-1 - others] = 0x7E00_0000_0000 + step * 4096  # what is kept is another block in every step
        step_of["ts"] = ts + np.uint64(step * length * 1000)
        step_of["step"][:] = step
        for process in range(PROCESSES):
            for begin in range(0, length, batch):
                part = {name: column[begin : begin + batch] for name, column in step_of.items()}
                yield process, part
                done += len(part["kind"])
        step += 1


def churn(events: int, batch: int) -> Iterator[tuple[int, Columns]]:
    """FREE and MALLOC in turn of random blocks out of 100,000 live ones per process."""
    live = 100_000
    chance = np.random.default_rng(2)
    addresses = np.uint64(0x7F00_0000_0000) + chance.permutation(live).astype(np.uint64) * np.uint64(512)
    columns = empty(live)
    columns["kind"][:] = Kind.MALLOC
    columns["ptr"][:] = addresses
    columns["size"][:] = 512
    columns["stack_py"][:] = 1 + np.arange(live) % SITES
    for process in range(PROCESSES):
        yield process, columns
    done = PROCESSES * live
    step = 0
    while done < events:
        step += 1
        columns = empty(batch)
        columns["ptr"][:] = np.repeat(chance.choice(addresses, batch // 2, replace=False), 2)
        columns["kind"][0::2], columns["kind"][1::2] = Kind.FREE, Kind.MALLOC
        columns["size"][1::2] = 512
        columns["stack_py"][:] = 1 + np.arange(batch) % SITES
        columns["step"][:] = step
        for process in range(PROCESSES):
            yield process, columns
        done += PROCESSES * batch


def accesses(events: int, batch: int) -> Iterator[tuple[int, Columns]]:
    """OP_START, ACCESS of the block before, MALLOC, ACCESS of the new one, OP_END in place of each MALLOC."""
    step_of = training_step(np.random.default_rng(1))
    made = step_of["kind"] == Kind.MALLOC
    times = np.where(made, 5, 1)
    whole = {name: np.repeat(column, times) for name, column in step_of.items()}
    first = np.cumsum(times) - times  # row of what became of each event
    first = first[made]
    for offset, kind in ((0, Kind.OP_START), (1, Kind.ACCESS), (3, Kind.ACCESS), (4, Kind.OP_END)):
        whole["kind"][first + offset] = kind
    whole["ptr"][first + 1] = np.concatenate([whole["ptr"][first[:1] + 2], whole["ptr"][first[:-1] + 2]])
    whole["aux"][first + 1], whole["aux"][first + 3] = 1, 2
    whole["used"][:] = 0
    for offset in (0, 4):
        whole["ptr"][first + offset] = whole["size"][first + offset] = whole["pool"][first + offset] = 0
    length = len(whole["kind"])
    ts = np.arange(length, dtype=np.uint64) * np.uint64(1000)
    last = np.flatnonzero(whole["kind"] == Kind.MALLOC)[-1]
    done = step = 0
    while done < events:
        whole["ptr"][last : last + 2] = 0x7E00_0000_0000 + step * 4096
        whole["ts"] = ts + np.uint64(step * length * 1000)
        whole["step"][:] = step
        for process in range(PROCESSES):
            for begin in range(0, length, batch):
                part = {name: column[begin : begin + batch] for name, column in whole.items()}
                yield process, part
                done += len(part["kind"])
        step += 1


STREAMS = {
    "accesses": accesses,
    "training": training,
    "churn": churn,
    "other": lambda events, batch: training(events, batch, others=3),
}


def processes(count: int = PROCESSES) -> list[Process]:
    return [Process(n + 1, n, n % 8, count, n // 8, 0, n + 1, 1, 0, "", "train.py", "", n, 0) for n in range(count)]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


class Stopwatch:
    """Adds up CPU and wall-clock seconds of the blocks it is entered for."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self.cpu -= time.process_time()
        self.wall -= time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time()
        self.wall += time.perf_counter()


def report(
    name: str, tracked: blocks.Tracked, events: int, spent: Stopwatch, tables: Stopwatch, idle: int, half: int
) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows = sum(len(one.rows["site"]) for one in tracked.sums.values())
    print(
        f"{name:<9}{events / 1e6:6.1f} M events {events / spent.cpu / 1e6:6.2f} M/s "
        f"(wall {events / spent.wall / 1e6:.2f})  "
        f"tables {tables.cpu * 1e3:4.0f} ms   "
        f"peak RSS {peak / GIB:.2f} GiB (idle {idle / GIB:.2f}, half {half / GIB:.2f})   "
        f"{len(tracked.sites['process']):,} sites, {rows:,} rows of sums, "
        f"{int(tracked.sites['live_blocks'].sum()):,} live blocks, {len(tracked.steps['step']):,} step rows",
        flush=True,
    )


def bench_stream(name: str, events: int, batch: int, parts: LifeParts | None = None) -> None:
    """parts: lives are followed and written, too."""
    folds = {one.ring: RingFold(one.ring, lives=parts is not None) for one in processes()}
    idle = half = resident()
    spent, writing, tables = Stopwatch(), Stopwatch(), Stopwatch()
    done = 0
    for process, columns in STREAMS[name](events, batch):
        n = len(columns["kind"])
        fold = folds[process + 1]
        with spent:
            fold.take(n, columns)
        if parts is not None:
            with writing:
                parts.look(fold, folds)
        if done < events / 2 <= done + n:
            half = resident()
        done += n
    with tables:
        tracked = blocks.merged((one.tables() for one in folds.values()), processes())
    report(name, tracked, done, spent, tables, idle, half)
    if parts is not None:
        print(f"{'':<9}lives of them: writing {1e9 * writing.cpu / done:.0f} ns an event", flush=True)


def rank_steps(rank: int, steps: int) -> Columns:
    """The events of one rank: each site makes a block in each step."""
    columns = empty(2 * SITES)
    site = np.repeat(np.arange(SITES), 2)
    columns["kind"][:] = np.tile([Kind.MALLOC, Kind.FREE], SITES)
    columns["ptr"][:] = 1 << 30 | site << 12
    columns["size"][:] = np.where(columns["kind"] == Kind.MALLOC, 4096 * (1 + site % 100), 0)
    columns["stack_py"][:] = 1000 + site
    handed = (site % 2 == 1) & (columns["kind"] == Kind.FREE)  # freed before the next is made, a step later
    order = np.argsort(np.where(handed, 2 * site - 1, np.arange(2 * SITES)), kind="stable")
    order[1::2], order[0::2] = order[1::2].copy(), order[0::2].copy()
    one = {name: column[order] for name, column in columns.items()}
    leaks = (one["stack_py"] == 1000) | ((one["stack_py"] == 1002) & (rank == 3))
    keep = ~(leaks & (one["kind"] == Kind.FREE))
    one = {name: column[keep] for name, column in one.items()}
    n = len(one["kind"])
    whole = {name: np.tile(column, steps) for name, column in one.items()}
    whole["step"][:] = np.repeat(np.arange(steps), n)
    kept = leaks[keep]
    whole["ptr"] += np.where(np.tile(kept, steps), whole["step"].astype(np.uint64) << np.uint64(32), np.uint64(0))
    whole["ts"][:] = np.arange(n * steps)
    sizes = 4096 * (1 + (whole["stack_py"].astype(np.int64) - 1000) % 100)
    before = sizes[:n][handed[order][keep]].sum()  # what is freed in the first step and was never made
    whole["used"][:] = before + np.cumsum(np.where(whole["kind"] == Kind.MALLOC, sizes, -sizes))  # the pool's own count
    return whole


def bench_ranks(count: int, steps: int = 200) -> None:
    folds = [RingFold(one.ring) for one in processes(count)]
    spent, merging, judging = Stopwatch(), Stopwatch(), Stopwatch()
    events = 0
    kinds = {rank: rank_steps(rank, steps) for rank in (0, 3)}
    for rank, fold in enumerate(folds):
        columns = kinds[3 if rank == 3 else 0]
        events += len(columns["kind"])
        with spent:
            fold.take(len(columns["kind"]), columns)
    del kinds, columns
    held = resident()
    with merging:
        tracked = blocks.merged((one.tables() for one in folds), processes(count))
    with judging:
        found = find_leaks(tracked, lambda _: ())
    tables = tables_of_ranks(folds, tracked)
    names = ("leaks", "fragmentation", "peers", "peak", "ledger")
    analyses = {name: Stopwatch() for name in names}
    earlier: list[Finding] = []
    for name in names:
        analyzer = get_analyzer(name)
        with analyses[name]:
            earlier += analyzer.judge(replace(tables, earlier=tuple(earlier)), analyzer.options())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    claims = [f"{one.kind} on {len(one.ranks)} ranks" for one in found]
    print(
        f"{count:>5} ranks {events / 1e6:6.1f} M events {events / spent.cpu / 1e6:6.2f} M/s   "
        f"merge {merging.cpu:5.2f} s   judge {judging.cpu:5.2f} s   "
        f"RSS of the folds {held / GIB:.2f} GiB, peak {peak / GIB:.2f} GiB   {claims}",
        flush=True,
    )
    seconds = ", ".join(f"{name} {watch.cpu:.2f} s" for name, watch in analyses.items())
    told = Counter(one.kind for one in earlier)
    print(f"      analyses, of one core: {seconds}   {dict(told)}", flush=True)


def tables_of_ranks(folds: list[RingFold], tracked: blocks.Tracked) -> Tables:
    """With a sample of each card for each step, and a line of its own for each stack."""
    frames = {id: (Frame("/src/train.py", "train", id % 10_000, "python"),) for id in range(1, 4096)}
    by_ring = {fold.ring: fold for fold in folds}
    rings = np.array(list(by_ring), np.uint64)
    rows = len(rings) * USAGE_SAMPLES
    usage = pa.table(
        {
            "ring": np.repeat(rings, USAGE_SAMPLES),
            "ts": np.tile(np.arange(USAGE_SAMPLES, dtype=np.uint64) * 1000, len(rings)),
            "device": pa.array(["cuda:0"] * rows),
            **{name: np.full(rows, size * GIB) for name, size in (("used", 20), ("total", 64), ("process_used", 18))},
        }
    )
    return Tables(
        tracked,
        lambda id: frames.get(id, ()),
        str,
        lambda ring: by_ring[ring].held() if ring in by_ring else None,
        lambda: UsageIndex(SimpleNamespace(usage=lambda: usage)),  # type: ignore[arg-type]
        dict,
    )


class ParquetRun:
    """What track() needs of a run, over parts made by write_parts."""

    def __init__(self, folder: Path) -> None:
        self.processes = processes()
        self._parts = sorted(folder.glob("*.parquet"))

    def events(self, *, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for part in self._parts:
            yield from pq.ParquetFile(part).iter_batches(65_536, columns=columns, use_threads=False)


def write_parts(folder: Path, events: int, batch: int) -> None:
    writers: dict[int, pq.ParquetWriter] = {}
    for process, columns in training(events, batch):
        n = len(columns["kind"])
        ring = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([process + 1], pa.uint64()))
        table = pa.Table.from_arrays([*map(pa.array, columns.values()), ring], names=[*columns, "ring"])
        if process not in writers:
            writers[process] = pq.ParquetWriter(folder / f"{process}.parquet", table.schema, compression="zstd")
        writers[process].write_table(table)
    for writer in writers.values():
        writer.close()


def bench_parquet(folder: Path) -> None:
    pa.set_cpu_count(1)
    idle = resident()
    spent = Stopwatch()
    with spent:
        tracked = blocks.track(ParquetRun(folder))  # type: ignore[arg-type]
    report("parquet", tracked, tracked.events, spent, Stopwatch(), idle, idle)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--batch", type=int, default=65_536, help="events per batch")
    parser.add_argument("--parquet", action="store_true", help="also write and read parts")
    parser.add_argument("--ranks", default="", help="numbers of ranks, separated by commas")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only is None:
        # Peak RSS never falls, so every stream has a process of its own.
        again = [sys.executable, __file__, f"--events={options.events}", f"--batch={options.batch}"]
        for name in STREAMS:
            subprocess.run([*again, f"--only={name}"], check=True)
            subprocess.run([*again, f"--only=lives:{name}"], check=True)
        if options.parquet:
            with tempfile.TemporaryDirectory() as folder:
                write_parts(Path(folder), options.events, options.batch)
                subprocess.run([*again, f"--only={folder}"], check=True)
        for count in filter(None, options.ranks.split(",")):
            subprocess.run([*again, f"--only=ranks:{count}"], check=True)
        return 0
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    keep_freed_memory()  # as the aggregator does
    if options.only in STREAMS:
        bench_stream(options.only, options.events, options.batch)
    elif options.only.startswith("lives:"):
        pa.set_cpu_count(1)
        with tempfile.TemporaryDirectory() as folder:
            parts = LifeParts(Path(folder), lambda ring: Whose(ring, ring - 1, 100, 0, 0))
            bench_stream(options.only.removeprefix("lives:"), options.events, options.batch, parts)
    elif options.only.startswith("ranks:"):
        bench_ranks(int(options.only.removeprefix("ranks:")))
    else:
        bench_parquet(Path(options.only))
    return 0


if __name__ == "__main__":
    sys.exit(main())
