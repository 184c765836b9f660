"""A run directory from imported processes.

In: their events with steps. Out: the tables and run.json as the aggregator leaves them at the end of a run. Everything
is written beside its name and put in place when whole, so a run is there or not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.store import Chunk, Store
from msmemscope.errors import MemscopeError, UsageError
from msmemscope.imports.imported import Imported
from msmemscope.vocabulary import EVENT_COLUMNS
from msmemscope.wire.messages import IDENTITY_FIELDS, Batch
from msmemscope.wire.reports import JobReport, RingReport, ShardReport
from msmemscope.wire.stored import Stored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PART_ROWS = 1 << 21  # of one part of a process
EVENT_BYTES = 96  # in a ring: what offsets count
_NO_DEFINITIONS: dict[str, dict[str, bytes]] = {
    "strings": {"id": b"", "bytes": b"", "text": b""},
    "frames": dict.fromkeys(("id", "file", "function", "line", "kind"), b""),
    "stacks": dict.fromkeys(("id", "count", "kind", "frames"), b""),
}


@contextmanager
def new_run(path: Path) -> Iterator[Path]:
    """Yields a directory beside `path` that becomes it. UsageError when there is something already; MemscopeError when
    it cannot be written."""
    beside = path.with_name(path.name + ".importing~")
    try:
        if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is there already: name a run directory that is not, with -o")
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(mode=0o700)
    except OSError as error:
        raise MemscopeError(f"cannot write {path}: {error.strerror}; name another directory with -o") from None
    try:
        yield beside
        with suppress(FileNotFoundError):
            path.rmdir()
        os.replace(beside, path)
    except OSError as error:
        raise MemscopeError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_run(
    run: Path,
    processes: Sequence[Imported],
    *,
    version: str,
    source: Mapping[str, Any],
    world_size: int = 0,
    config: Mapping[str, Any] | None = None,
) -> None:
    """source: what run.json says of where the events come from, under `imported`; config: how it is to be looked at, as
    recorded runs say it. Memory: a part at a time, beside the events themselves."""
    paths = b"\0".join(os.fsencode(one.path.resolve()) for one in processes)
    session = hashlib.blake2b(paths, digest_size=8).hexdigest()
    store = Store(run)
    rings: dict[int, RingReport] = {}
    for number, process in enumerate(processes):
        ring = int.from_bytes(hashlib.blake2b(f"{session}/{number}".encode(), digest_size=8).digest(), "little") or 1
        rings[ring] = _write_process(store, process, ring, number, world_size)
    shutil.rmtree(run / "usage", ignore_errors=True)
    report = JobReport([ShardReport("", 1, rings)])
    names = sorted({one.path.name for one in processes})
    program = names if len(names) < 4 else [names[0], "...", names[-1]]
    starts = [one.identity["created_ns"] + one.identity["wall_offset_ns"] for one in rings.values()]
    facts = {"session": session, "agents": 0, "mode": "imported", "program": ["import", *program]}
    facts |= {"config": dict(config)} if config else {}
    coordinator = Coordinator(run, facts | {"created_wall_ns": min(starts, default=0)}, version, lambda: report)
    coordinator.drained = True
    ends = [one.stored.last_ts + one.identity["wall_offset_ns"] for one in rings.values()]
    coordinator.write(finished=True, ended_wall_ns=max(ends, default=0), imported=dict(source))
    coordinator.write_losses()


def _write_process(store: Store, process: Imported, ring: int, number: int, world_size: int) -> RingReport:
    n = len(process)
    rank = -1 if process.rank is None else process.rank
    pid = process.pid or number + 1
    created = int(process.columns["ts"][0]) if n else 0
    stored = Stored()
    for start in range(0, max(n, 1), PART_ROWS):
        batch = _batch(process, ring, start, min(start + PART_ROWS, n))
        chunk = Chunk()
        chunk.add(process.rank, created, pid, batch)
        store.write(chunk)
        stored = stored.joined(Stored.of(batch))
    identity = dict(IDENTITY_FIELDS) | {
        "rank": rank,
        "world_size": world_size if rank >= 0 else -1,
        "pid": pid,
        "program": process.path.name[:4096],
        "created_ns": created,
        "wall_offset_ns": process.wall_offset_ns,
        "closed": True,
    }
    return RingReport(identity, stored, n * EVENT_BYTES, final=True, not_seen=process.doubts)


def _batch(process: Imported, ring: int, start: int, end: int) -> Batch:
    defined = process.definitions if start == 0 else _NO_DEFINITIONS
    return Batch(
        ring=ring,
        offset=start * EVENT_BYTES,
        length=(end - start) * EVENT_BYTES,
        n=end - start,
        round=0,
        clock=0,
        cols={name: process.columns[name][start:end].astype(dtype).tobytes() for name, dtype in EVENT_COLUMNS.items()},
        strings=defined["strings"],
        frames=defined["frames"],
        stacks=defined["stacks"],
        holes=0,
        invalid=process.left_out if start == 0 else 0,
    )
