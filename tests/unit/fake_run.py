"""An in-memory run with the reading side of msmemscope.tables.Run, for tests of what is made from a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool

SECOND = 1_000_000_000
WALL_OFFSET = 1_800_000_000 * SECOND


@dataclass(frozen=True)
class Frame:
    file: str
    function: str
    line: int
    kind: str = "python"


@dataclass(frozen=True)
class Process:
    ring: int
    rank: int | None = 0
    local_rank: int = 0
    world_size: int = 1
    group_rank: int = 0
    attempt: int = 0
    pid: int = 100
    ppid: int = 1
    parent_ring: int = 0
    host: str = "host-a"
    program: str = "train.py"
    role: str = ""
    created_ns: int = SECOND
    wall_offset_ns: int = WALL_OFFSET
    closed: bool = True
    lost: dict[str, int] = field(default_factory=dict)

    @property
    def is_main(self) -> bool:
        return self.parent_ring == 0


class FakeRun:
    """Events are added one by one with `add`; batches are `batch_rows` long."""

    def __init__(self, processes: Sequence[Process], path: Path = Path("run"), batch_rows: int = 7) -> None:
        self.processes = list(processes)
        self.path = path
        self.info: dict[str, Any] = {}
        self.skipped: list[str] = []
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

    def string(self, key: int) -> str:
        return self.strings.get(key, "" if key == 0 else "unknown")

    def stack(self, key: int) -> tuple[Frame, ...]:
        return self.stacks.get(key, ())

    def events(self, *, rank: int | None = None, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for process in self.processes:
            if rank is not None and process.rank != rank:
                continue
            events = self._events[process.ring]
            for start in range(0, len(events), self._batch_rows):
                part = events[start : start + self._batch_rows]
                arrays = {
                    name: pa.array(np.array([event[name] for event in part], dtype=kind))
                    for name, kind in EVENT_COLUMNS.items()
                }
                arrays["ring"] = pa.array([process.ring] * len(part), pa.uint64()).dictionary_encode()
                yield pa.RecordBatch.from_pydict({name: arrays[name] for name in columns or arrays})


_HOST = {"device_type": int(DeviceType.CPU), "device": 0, "pool": int(Pool.HOST)}
