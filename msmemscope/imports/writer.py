"""A run directory from imported processes.

In: their events with steps, process after process, and what ids stand for. Out: the tables and run.json as the
aggregator leaves them at the end of a run. Everything is written beside its name and put in place when whole, so a run
is there or not. A part is written when there are PART_ROWS rows for it, be they of one process or of a thousand.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.store import Chunk, Store
from msmemscope.errors import MemscopeError, UsageError
from msmemscope.imports.external_sort import Columns
from msmemscope.imports.imported import NO_FRAMES, NO_STACKS, Definitions, Process
from msmemscope.vocabulary import EVENT_COLUMNS
from msmemscope.wire.messages import IDENTITY_FIELDS, Batch
from msmemscope.wire.reports import JobReport, RingReport, ShardReport
from msmemscope.wire.stored import Stored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PART_ROWS = 1 << 20  # of one part
EVENT_BYTES = 96  # in a ring: what offsets count
_DEFINED_BYTES = 4 << 20  # of texts and numbers that wait for a part of their own
_NO_DEFINITIONS = {
    "strings": {"id": b"", "bytes": b"", "text": b""},
    "frames": dict(NO_FRAMES),
    "stacks": dict(NO_STACKS),
}


@contextmanager
def new_run(path: Path) -> Iterator[Path]:
    """Yields a directory beside `path` that becomes it. UsageError when there is something already; MemscopeError when
    it cannot be written."""
    whole = Path(os.path.realpath(path))  # "." and ".." have no name
    beside = whole.with_name(whole.name + ".importing~") if whole.name else whole
    lock = -1
    try:
        if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is there already: name a run directory that is not, with -o")
        whole.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = _locked(beside)
    except BlockingIOError:
        raise UsageError(f"{path} is being made by another import: name another directory with -o") from None
    except OSError as error:
        raise MemscopeError(f"cannot write {path}: {error.strerror}; name another directory with -o") from None
    try:
        yield beside
        with suppress(FileNotFoundError):
            whole.rmdir()
        os.replace(beside, whole)
    except OSError as error:
        raise MemscopeError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        os.close(lock)


def _locked(directory: Path) -> int:
    """An empty directory, and the lock on it: what an import left that was killed has none. BlockingIOError: another
    one works in it."""
    for is_new in (False, True):
        with suppress(FileNotFoundError):
            if is_new:
                directory.mkdir(mode=0o700)
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_new:
                    return lock
                shutil.rmtree(directory, ignore_errors=True)
            except OSError:
                os.close(lock)
                raise
            os.close(lock)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))


class DefinitionWriter:
    """Writes what ids stand for, as it becomes known."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Defining] = []
        self._bytes = 0

    def add(self, definitions: Definitions) -> None:
        self._waiting.append(_Defining(**definitions))
        self._bytes += sum(len(column) for columns in definitions.values() for column in columns.values())
        if self._bytes >= _DEFINED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what waits: before the events that refer to it."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self._store.add_definitions(waiting)


@dataclass(frozen=True)
class _Defining:
    strings: dict[str, bytes]
    frames: dict[str, bytes]
    stacks: dict[str, bytes]


def write_run(
    run: Path,
    store: Store,
    processes: Sequence[Process],
    pieces: Iterable[tuple[int, Columns]],
    *,
    version: str,
    source: Mapping[str, Any],
    world_size: int = 0,
    config: Mapping[str, Any] | None = None,
) -> None:
    """pieces: events with their steps, process after process, with the number of the process. What ids stand for is
    written. source: what run.json says of where the events come from, under `imported`; config: how it is to be looked
    at, as recorded runs say it. Memory: a part at a time."""
    paths = b"\0".join(os.fsencode(one.path.resolve()) for one in processes)
    session = hashlib.blake2b(paths, digest_size=8).hexdigest()
    rings = [_Ring(one, at, session, world_size) for at, one in enumerate(processes)]
    by_number = {one.process.number: one for one in rings}
    chunk = Chunk()
    for number, columns in pieces:
        ring = by_number[number]
        chunk.add(ring.process.rank, ring.process.first_ts, ring.pid, ring.batch(columns))
        if chunk.rows >= PART_ROWS:
            store.write(chunk)
            chunk = Chunk()
    store.write(chunk)
    shutil.rmtree(run / "usage", ignore_errors=True)
    report = JobReport([ShardReport("", 1, {one.id: one.report() for one in rings})])
    names = sorted({one.path.name for one in processes})
    program = names if len(names) < 4 else [names[0], "...", names[-1]]
    facts = {"session": session, "agents": 0, "mode": "imported", "program": ["import", *program]}
    facts |= {"config": dict(config)} if config else {}
    created = min((one.process.first_ts + one.process.wall_offset_ns for one in rings), default=0)
    coordinator = Coordinator(run, facts | {"created_wall_ns": created}, version, lambda: report)
    coordinator.drained = True
    ended = max((one.stored.last_ts + one.process.wall_offset_ns for one in rings), default=0)
    coordinator.write(finished=True, ended_wall_ns=ended, imported=dict(source))
    coordinator.write_losses()


class _Ring:
    """What is written of one process."""

    def __init__(self, process: Process, at: int, session: str, world_size: int) -> None:
        self.process = process
        self.pid = process.pid or at + 1
        self.id = int.from_bytes(hashlib.blake2b(f"{session}/{at}".encode(), digest_size=8).digest(), "little") or 1
        self.stored = Stored()
        self._world_size = world_size

    def batch(self, columns: Columns) -> Batch:
        """The next events."""
        rows = len(columns["ts"])
        batch = Batch(
            ring=self.id,
            offset=self.stored.rows * EVENT_BYTES,
            length=rows * EVENT_BYTES,
            n=rows,
            round=0,
            clock=0,
            cols={name: _bytes(columns[name].astype(dtype, copy=False)) for name, dtype in EVENT_COLUMNS.items()},
            **_NO_DEFINITIONS,
            holes=0,
            invalid=0 if self.stored.rows else self.process.left_out,
        )
        self.stored = self.stored.joined(Stored.of(batch))
        return batch

    def report(self) -> RingReport:
        process = self.process
        rank = -1 if process.rank is None else process.rank
        identity = dict(IDENTITY_FIELDS) | {
            "rank": rank,
            "world_size": self._world_size if rank >= 0 else -1,
            "pid": self.pid,
            "program": _program(process)[:4096],
            "created_ns": process.first_ts,
            "wall_offset_ns": process.wall_offset_ns,
            "closed": True,
        }
        return RingReport(identity, self.stored, self.stored.rows * EVENT_BYTES, final=True, not_seen=process.doubts)


def _program(process: Process) -> str:
    """The file, which stands for the program. Those of ranks differ by numbers (the rank, a time): peers are ranks that
    run one program."""
    name = process.path.name
    return name if process.rank is None else re.sub(r"\d+", "N", name)


def _bytes(column: npt.NDArray[Any]) -> bytes:
    """A column of a batch: of equal values it holds one."""
    is_one = column.strides == (0,) or (column[-1] == column[0] and (column == column[0]).all())
    return (column[:1] if is_one else column).tobytes()
