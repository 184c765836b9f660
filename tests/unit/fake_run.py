"""An in-memory run with the reading side of msmemscope.tables.run.Run, for tests of what is made from a run."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.tables.parts import RINGS_KEY
from msmemscope.tables.process import Process
from msmemscope.tables.run import SCHEMA_VERSION, Frame
from msmemscope.tables.schema import EVENT_SCHEMA, FRAME_SCHEMA, STACK_SCHEMA, STRING_SCHEMA, USAGE_SCHEMA, layout_key
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool

SECOND = 1_000_000_000
WALL_OFFSET = 1_800_000_000 * SECOND


def process(ring: int = 1, **fields: Any) -> Process:
    """A rank's own process, closed in good order."""
    facts: dict[str, Any] = {
        "rank": 0,
        "local_rank": 0,
        "world_size": 1,
        "group_rank": 0,
        "attempt": 0,
        "pid": 100,
        "ppid": 1,
        "parent_ring": 0,
        "host": "host-a",
        "program": "train.py",
        "role": "",
        "created_ns": SECOND,
        "wall_offset_ns": WALL_OFFSET,
        "closed": True,
    }
    return Process(ring=ring, **(facts | fields))


def frame(file: str, function: str, line: int, kind: str = "python") -> Frame:
    return Frame(file, function, line, kind)


class FakeRun:
    """Events are added one by one with `add`; batches are `batch_rows` long."""

    def __init__(self, processes: Sequence[Process], path: Path = Path("run"), batch_rows: int = 7) -> None:
        self.processes = list(processes)
        self.path = path
        self.info: dict[str, Any] = {}
        self.skipped: list[str] = []
        self.unreadable_rows = 0
        self.samples: list[dict[str, Any]] = []  # of memory use; see sample()
        self.strings: dict[int, str] = {}
        self.stacks: dict[int, tuple[Frame, ...]] = {}
        self._events: dict[int, list[dict[str, int]]] = {p.ring: [] for p in processes}
        self._batch_rows = batch_rows

    @property
    def ranks(self) -> list[int]:
        return sorted({p.rank for p in self.processes if p.rank is not None})

    def text(self, text: str) -> int:
        self.strings[len(self.strings) + 1] = text
        return len(self.strings)

    def frames(self, *frames: Frame) -> int:
        self.stacks[len(self.stacks) + 1] = frames
        return len(self.stacks)

    def add(self, kind: Kind, ts: int, ring: int = 1, **fields: int) -> None:
        event = dict.fromkeys(EVENT_COLUMNS, 0) | {"used": -1, "total": -1, "device": -1, "tid": 100}
        event |= {"kind": int(kind), "ts": ts} | {name: int(value) for name, value in fields.items()}
        self._events[ring].append(event)

    def malloc(self, ts: int, ptr: int, size: int, **fields: int) -> None:
        self.add(Kind.MALLOC, ts, ptr=ptr, size=size, **(_HOST | fields))

    def free(self, ts: int, ptr: int, size: int = 0, **fields: int) -> None:
        self.add(Kind.FREE, ts, ptr=ptr, size=size, **(_HOST | fields))

    def sort(self, ring: int = 1) -> None:
        """Puts the events of a ring in the order of their times."""
        self._events[ring].sort(key=lambda event: event["ts"])

    def usage(self) -> pa.Table:
        return pa.Table.from_pylist(self.samples, USAGE_SCHEMA)

    def sample(self, ts: int, device: str, ring: int = 1, **figures: int | None) -> None:
        """figures: used, total, process_used, rss."""
        self.samples.append({"ts": ts, "device": device, "ring": ring, **figures})

    def string(self, key: int) -> str:
        return self.strings.get(key, "" if key == 0 else "unknown")

    def stack(self, key: int) -> tuple[Frame, ...]:
        return self.stacks.get(key, ())

    def groups(self, most: int = 32) -> Iterator[list[Process]]:
        processes = sorted(self.processes, key=lambda p: layout_key(p.rank, p.created_ns, p.ring))
        for start in range(0, len(processes), most):
            yield processes[start : start + most]

    def events(
        self,
        *,
        rank: int | None = None,
        rings: Collection[int] | None = None,
        columns: Sequence[str] | None = None,
        kinds: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        for process in self.processes:
            if (rank is not None and process.rank != rank) or (rings is not None and process.ring not in rings):
                continue
            events = self._events[process.ring]
            for start in range(0, len(events), self._batch_rows):
                part = [
                    event for event in events[start : start + self._batch_rows] if not kinds or event["kind"] in kinds
                ]
                arrays = {
                    name: pa.array(np.array([event[name] for event in part], dtype=kind))
                    for name, kind in EVENT_COLUMNS.items()
                }
                arrays["ring"] = pa.array([process.ring] * len(part), pa.uint64()).dictionary_encode()
                yield pa.RecordBatch.from_pydict({name: arrays[name] for name in columns or arrays})

    def load_definitions(self) -> None:
        """They are here already."""

    def save(self, path: Path) -> Path:
        """The same run as the aggregator leaves it on disk."""
        for name in ("events", "strings", "frames", "stacks"):
            (path / name).mkdir(parents=True)
        for process in self.processes:
            events = self._events[process.ring]
            columns = {
                name: pa.array([event[name] for event in events], EVENT_SCHEMA.field(name).type)
                for name in EVENT_COLUMNS
            }
            columns["pid"] = pa.array([process.pid] * len(events), pa.int32())
            columns["ring"] = pa.array([process.ring] * len(events), pa.uint64())
            held = {"first_row": 0, "ranges": [[0, 96 * len(events)]], "rows": len(events), "first_ts": 0, "last_ts": 0}
            extent = {f"{process.ring:016x}": held | {"holes": 0, "invalid": 0}}
            table = pa.table(columns, schema=EVENT_SCHEMA).replace_schema_metadata({RINGS_KEY: json.dumps(extent)})
            pq.write_table(table, path / "events" / f"part-{process.ring:06d}.parquet")
        strings, frames = dict(self.strings), {}
        for key, stack in self.stacks.items():
            for number, one in enumerate(stack):
                texts = []
                for text in (one.file, one.function):
                    texts.append(10_000 + len(strings))
                    strings[texts[-1]] = text
                frames[1_000 * key + number] = (*texts, one.line, int(one.kind == "native"))
        stacks = [
            {"id": k, "kind": 0, "frames": [1_000 * k + n for n in range(len(s))]} for k, s in self.stacks.items()
        ]
        names = ("file", "function", "line", "kind")
        for name, rows, schema in (
            ("strings", [{"id": key, "text": text} for key, text in strings.items()], STRING_SCHEMA),
            ("frames", [{"id": k} | dict(zip(names, f, strict=True)) for k, f in frames.items()], FRAME_SCHEMA),
            ("stacks", stacks, STACK_SCHEMA),
        ):
            pq.write_table(pa.Table.from_pylist(rows, schema), path / name / "part-000000.parquet")
        entries = [
            asdict(p) | {"ring": f"{p.ring:016x}", "parent_ring": f"{p.parent_ring:016x}"} for p in self.processes
        ]
        pq.write_table(self.usage(), path / "usage.parquet")
        info = {"schema": SCHEMA_VERSION, "session": "f00d", "version": "27.0.0", "finished": True, "exit_status": 0}
        (path / "run.json").write_text(json.dumps(info | {"processes": entries} | self.info))
        return path


def leaky_job(path: Path = Path("run"), *, ranks: int = 4, steps: int = 24, leaking: bool = True) -> FakeRun:
    """A training job: every rank keeps 4096 bytes per step from train.py:58, rank 2 also 1 MiB from train.py:61."""
    run = FakeRun(
        [process(rank + 1, rank=rank, world_size=ranks, pid=100 + rank, local_rank=rank) for rank in range(ranks)],
        path,
        batch_rows=500,
    )
    main = frame("/src/train.py", "<module>", 90)
    loop = run.frames(frame("/src/train.py", "train", 70), main)
    scratch = run.frames(frame("/src/train.py", "forward", 20), frame("/src/train.py", "train", 55), main)
    loss = run.frames(frame("/src/train.py", "train", 58), main)
    hoard = run.frames(frame("/src/train.py", "hoard", 61), frame("/src/train.py", "train", 60), main)
    for rank in range(ranks):
        ring, now = rank + 1, 1000
        run.malloc(now, 0x100, 1 << 20, ring=ring, stack_py=scratch)
        for iteration in range(steps):
            step = iteration + 1 if iteration else 0  # as msmemscope.step() counts: see native/hook/steps.h
            base = (iteration + 1) << 24
            run.malloc(now + 1, base, 65536, ring=ring, step=step, stack_py=scratch)
            run.malloc(now + 2, base + 0x100000, 4096, ring=ring, step=step, stack_py=loss)
            if not leaking:
                run.free(now + 3, base + 0x100000, ring=ring, step=step)
            elif rank == 2:
                run.malloc(now + 3, base + 0x200000, 1 << 20, ring=ring, step=step, stack_py=hoard)
            run.free(now + 4, base, ring=ring, step=step)
            run.add(Kind.STEP, now + 5, ring=ring, step=iteration + 2, attr=iteration + 2, stack_py=loop)
            now += 1000
    return run


_HOST = {"device_type": int(DeviceType.CPU), "device": 0, "pool": int(Pool.HOST)}
