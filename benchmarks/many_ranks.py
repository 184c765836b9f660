"""What a run of many ranks costs on disk and to read: every figure per event or per rank should stay as it is.

    python benchmarks/many_ranks.py [--ranks 64 256 1024] [--events 4000] [--outputs]

Every rank records the same number of events (the churn of tests/native/ring_writer.cpp: many sizes, addresses from free
lists, running counters; no stacks), and sends them in batches of 500, so that the batches of all ranks come in turns.
The tables are written by the aggregator's own store, rolled every million rows, and read as readers of a run do it:

    write        batches to parts
    one pass     every event once, as the block tracker and the table of blocks do
    by groups    every event once, 32 processes at a time, as the per-device files do
    each rank    every rank by itself: `Run.events(rank=...)` in a loop
    one rank     the first question of a drill-down: open the run and read one rank

With --outputs, also everything that is made at the end of a run. Seconds of CPU time of all threads.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from msmemscope.aggregate.store import Chunk, Store
from msmemscope.tables.run import Run
from msmemscope.tables.run_files import SCHEMA_VERSION
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool
from msmemscope.wire.messages import FRAME_BYTES, STACK_BYTES, STRING_BYTES, Batch

BATCH = 500
ROLL_ROWS = 1_000_000
NOTHING = {"strings": {**dict.fromkeys(STRING_BYTES, b""), "text": b""}, "frames": dict.fromkeys(FRAME_BYTES, b""),
           "stacks": {**dict.fromkeys(STACK_BYTES, b""), "frames": b""}}  # fmt: skip


class Rank:
    """A rank's endless stream of MALLOC and FREE."""

    def __init__(self, rank: int) -> None:
        self.rank, self.ring = rank, (rank + 1) * 0x9E3779B97F4A7C15 % 2**64
        self._chance = np.random.default_rng(rank)
        self._draw = random.Random(rank).random
        self._live: list[tuple[int, int]] = []
        self._free: dict[int, list[int]] = {}
        self._next = 0x7F00_0000_0000
        self._offset = self._used = self._at = 0
        self._ts = 10**12

    def batch(self, n: int) -> Batch:
        rows = [self._event() for _ in range(n)]
        values: dict[str, Any] = dict(
            zip(("kind", "ptr", "size", "used", "total"), zip(*rows, strict=True), strict=True)
        )
        ts = self._ts + np.cumsum(self._chance.integers(500, 20_000, n))
        self._ts = int(ts[-1])
        values |= {"ts": ts, "tid": 1000 + self.rank, "device": self.rank % 8, "pool": Pool.PTA}
        values |= {"device_type": DeviceType.NPU, "step": (self._at - n + np.arange(n)) // 1000}
        columns = {}
        for name, dtype in EVENT_COLUMNS.items():
            column = np.asarray(values.get(name, 0)).astype(dtype).reshape(-1)
            columns[name] = column.tobytes() if len(set(column.tolist())) > 1 else column[:1].tobytes()
        batch = Batch(self.ring, self._offset, 96 * n, n, 0, 0, columns, **NOTHING, holes=0, invalid=0)
        self._offset += 96 * n
        return batch

    def _event(self) -> tuple[int, int, int, int, int]:
        self._at += 1
        r = self._draw()
        if len(self._live) < 50 or (self._draw() < 0.5 and len(self._live) < 4000):
            kind, size = Kind.MALLOC, (512 << int(r * r * 14)) * (8 + int(self._draw() * 8)) // 8
            again = self._free.get(size)
            ptr = again.pop() if again else self._next
            self._next += 0 if again else size + 64
            self._live.append((ptr, size))
            self._used += size
        else:
            kind, (ptr, size) = Kind.FREE, self._live.pop(-1 - int(r**6 * len(self._live)))
            self._free.setdefault(size, []).append(ptr)
            self._used -= size
        return kind, ptr, size, self._used, -(-self._used // (2 << 20)) * (2 << 20)


def chunks(ranks: list[Rank], events: int) -> Iterator[Chunk]:
    """What the aggregator rolls."""
    chunk = Chunk()
    for _ in range(0, events, BATCH):
        for rank in ranks:
            chunk.add(rank.rank, rank.rank, 100 + rank.rank, rank.batch(BATCH))
            if chunk.rows >= ROLL_ROWS:
                yield chunk
                chunk = Chunk()
    if chunk.rows:
        yield chunk


def describe(path: Path, ranks: list[Rank]) -> None:
    entries = [
        {
            **dict.fromkeys(("group_rank", "attempt", "wall_offset_ns"), 0),
            "ring": f"{rank.ring:016x}",
            "parent_ring": f"{0:016x}",
            "rank": rank.rank,
            "local_rank": rank.rank % 8,
            "world_size": len(ranks),
            "pid": 100 + rank.rank,
            "ppid": 1,
            "host": f"host-{rank.rank // 8}",
            "program": "train.py",
            "role": "",
            "created_ns": rank.rank,
        }
        for rank in ranks
    ]
    (path / "run.json").write_text(json.dumps({"schema": SCHEMA_VERSION, "session": "f00d", "processes": entries}))


class Clock:
    """CPU seconds of what was done under a name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def time(self, name: str, work: Any) -> Any:
        begun = time.process_time()
        found = work()
        self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - begun
        return found


def rows(run: Run, **query: Any) -> int:
    return sum(batch.num_rows for batch in run.events(columns=["kind", "ts", "ptr", "size", "ring"], **query))


def measure(path: Path, count: int, events: int, outputs: bool) -> None:
    ranks = [Rank(rank) for rank in range(count)]
    store, clock, total = Store(path), Clock(), count * events
    for chunk in chunks(ranks, events):
        clock.time("write", lambda chunk=chunk: store.write(chunk))
    describe(path, ranks)
    run = Run(path)
    assert clock.time("one pass", lambda: rows(run)) == total
    run = Run(path)
    assert clock.time("by groups", lambda: sum(rows(run, rings={p.ring for p in g}) for g in run.groups())) == total
    run = Run(path)
    assert clock.time("each rank", lambda: sum(rows(run, rank=rank) for rank in run.ranks)) == total
    assert clock.time("one rank", lambda: rows(Run(path), rank=count // 2)) == events
    parts = list(path.glob("events/part-*"))
    size = sum(part.stat().st_size for part in parts)
    if outputs:
        from msmemscope.report.outputs import write_outputs

        clock.time("outputs", lambda: write_outputs(path))
    cells = [f"{count:,}", f"{total:,}", f"{len(parts)}", f"{size / total:.1f}"]
    cells += [f"{seconds:.2f} s, {seconds / total * 1e9:,.0f} ns" for name, seconds in clock.spent.items()]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--events", type=int, default=4_000, help="of each rank")
    parser.add_argument("--outputs", action="store_true", help="also make everything that is derived")
    options = parser.parse_args()
    names = ["ranks", "events", "files", "bytes/event", "write", "one pass", "by groups", "each rank", "one rank"]
    names += ["outputs"] if options.outputs else []
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
    for count in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), count, options.events, options.outputs)


if __name__ == "__main__":
    main()
