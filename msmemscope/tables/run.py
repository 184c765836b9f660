"""A run on disk, for reading: what happened, in which processes, and what the ids stand for.

In: the directory that the aggregator made (see docs/formats.md). Out: Arrow record batches, one Parquet row group
at a time, so that a run larger than memory can be walked through. Nothing here writes. What cannot be read is left
out, named in ``Run.skipped`` and counted in ``Run.unreadable_rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from msmemscope._kernel import demangled
from msmemscope.annotations import is_of
from msmemscope.errors import RunError
from msmemscope.tables.definitions import Definitions, KnownParts
from msmemscope.tables.parts import Bad, Part, check_size, open_parts
from msmemscope.tables.process import Process
from msmemscope.tables.run_files import READABLE_SCHEMAS, SCHEMA_VERSION, Anchor
from msmemscope.tables.schema import EVENT_SCHEMA, FRAME_SCHEMA, STACK_SCHEMA, STRING_SCHEMA, USAGE_SCHEMA, layout_key
from msmemscope.text import plain, plain_json
from msmemscope.vocabulary import FrameKind

UNKNOWN_TEXT = "unknown"
# A part of definitions or samples is read whole. One of ours comes of at most 256 MiB of messages.
LARGEST_TABLE_ROWS, LARGEST_TABLE_BYTES = 1 << 24, 1 << 30

# Of run.json, what readers rely on; `annotation` as annotations.py reads it.
_INFO = {
    "session": "str",
    "version": "str",
    "program": "str | tuple[object, ...]",
    "mode": "str",
    "config": "dict[str, object]",
    "hosts": "tuple[str, ...]",
    "processes": "tuple[object, ...]",
    "losses": "dict[str, object]",
    "usage": "dict[str, object]",
    "finished": "bool",
}


@dataclass(frozen=True)
class Frame:
    """One frame of a call stack. line: of a native one the offset in its object. symbol: of a native one its name as
    the object has it, of which `function` is what programmers know. is_entry: of a Python one, native code called it;
    known only where native stacks were taken too."""

    file: str
    function: str
    line: int
    kind: str  # "python" | "native"
    symbol: str = ""
    is_entry: bool = False

    @property
    def text(self) -> str:
        """`file(line): function`; a native one as backtrace_symbols does, by the name that programmers know."""
        return self._text(self.function)

    @property
    def upstream_text(self) -> str:
        """The same with the symbol as backtrace_symbols writes it."""
        return self._text(self.symbol or self.function)

    def _text(self, function: str) -> str:
        if self.kind == "native":
            return plain(f"{self.file}({function or f'+{self.line:#x}'}) [{self.line:#x}]")
        return plain(f"{self.file}({self.line}): {function}")


def stack_text(frames: Sequence[Frame]) -> str:
    """One line per frame, innermost first, as in upstream's files."""
    return "".join(f"{frame.upstream_text}\n" for frame in frames)


class Run:
    """A run directory. Raises RunError when it is not one, or one of a schema that this version does not know.

    known_parts, defined_since: for whoever records the run and reads it again and again. The first keeps what was read
    of the definitions; the second gives those that stand in no file yet (keys: strings, frames, stacks), and is asked
    once, when the first is wanted.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        known_parts: KnownParts | None = None,
        defined_since: Callable[[], Mapping[str, pa.Table]] | None = None,
    ) -> None:
        self.path = Path(path)
        self._known_parts = KnownParts() if known_parts is None else known_parts
        self._ask_defined_since = defined_since
        self.skipped: list[str] = []
        self._unreadable: dict[tuple[str, int], int] = {}  # (file, row group) -> its rows
        try:
            self._files = Anchor(self.path)
            info = plain_json(self._files.json("run.json"))
        except FileNotFoundError:
            raise RunError(f"{path}: not a run directory (it has no run.json)") from None
        except OSError as error:
            raise RunError(f"{path}: cannot be opened: {error.strerror}") from error
        if not isinstance(info, dict) or info.get("schema") not in READABLE_SCHEMAS:
            found = info.get("schema") if isinstance(info, dict) else None
            raise RunError(f"{path}: tables of schema {found!r}; this version reads {SCHEMA_VERSION}")
        for name, annotation in _INFO.items():
            if name in info and not is_of(info[name], annotation):
                raise RunError(f"{path}: run.json is damaged: {name} is no {annotation}")
        self.info: dict[str, Any] = info
        try:
            self.processes = [Process.from_json(entry) for entry in info.get("processes", ())]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path}: run.json describes a process wrongly: {error}") from error
        self._defined: dict[str, Definitions] = {}
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int, tuple[Frame, ...]] = {0: ()}

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded something."""
        return sorted({process.rank for process in self.processes if process.rank is not None})

    @property
    def unreadable_rows(self) -> int:
        """Rows that could not be read so far, in files whose footer is whole (the others do not say how many)."""
        return sum(self._unreadable.values())

    def events(
        self,
        *,
        rank: int | None = None,
        rings: Collection[int] | None = None,
        columns: Sequence[str] | None = None,
        kinds: Collection[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of events; those of one ring come in the order in which they were recorded.

        rank: only its processes; None: everything, also processes that belong to no rank. rings: only these processes.
        Whoever wants all of them takes one pass without either, or goes by `groups`: each pass over some decodes whole
        row groups. columns: of EVENT_SCHEMA, None: all. kinds: only these (vocabulary.Kind). Memory: one row group.
        """
        wanted = list(columns) if columns is not None else EVENT_SCHEMA.names
        read = list(dict.fromkeys([*wanted, *(["kind"] if kinds is not None else [])]))
        if rank is not None:
            of_rank = {process.ring for process in self.processes if process.rank == rank}
            rings = of_rank if rings is None else of_rank.intersection(rings)
        for part in self._event_parts:
            for batch in part.read(rings, read, self._skip):
                if kinds is not None:
                    batch = batch.filter(pc.is_in(batch["kind"], pa.array(sorted(map(int, kinds)), pa.uint8())))
                if batch.num_rows:
                    yield batch.select(wanted)

    def groups(self, most: int = 32) -> Iterator[list[Process]]:
        """All processes, at most so many at a time, such that the events of a group lie together in the parts."""
        processes = sorted(self.processes, key=lambda p: layout_key(p.rank, p.created_ns, p.ring))
        for start in range(0, len(processes), most):
            yield processes[start : start + most]

    def usage(self) -> pa.Table:
        """The samples of memory use that the agents took: USAGE_SCHEMA."""
        names = [*self._files.names("", "usage.parquet"), *self._files.names("usage", "part-*.parquet")]
        return pa.concat_tables([USAGE_SCHEMA.empty_table(), *map(self._samples, names)])

    def load_definitions(self) -> None:
        """Reads strings, frames and stacks now, so that `skipped` names what cannot be read of them."""
        for name, schema in (("strings", STRING_SCHEMA), ("frames", FRAME_SCHEMA), ("stacks", STACK_SCHEMA)):
            self._definitions(name, schema)

    def string(self, id: int) -> str:
        """The text of a string id, made plain (text.py): "" for 0, "unknown" for one that was never defined."""
        if id == 0:
            return ""
        found = self._definitions("strings", STRING_SCHEMA).get(id)
        return UNKNOWN_TEXT if found is None else plain(str(found["text"]))

    def stack(self, id: int) -> tuple[Frame, ...]:
        """The frames of a stack id, innermost first; () for 0 and for one that was never defined."""
        if id not in self._stacks:
            found = self._definitions("stacks", STACK_SCHEMA).get(id)
            self._stacks[id] = () if found is None else tuple(self._frame(frame) for frame in found["frames"])
        return self._stacks[id]

    def frame(self, id: int) -> Frame:
        """A frame by its id; one that was never defined is of a file and function "unknown"."""
        return self._frame(id)

    # --- below: parts and definitions ---------------------------------------------------------------------

    @cached_property
    def _event_parts(self) -> list[Part]:
        return open_parts(self._files, "events", EVENT_SCHEMA, self._skip)

    def _table(self, name: str, schema: pa.Schema) -> pa.Table:
        """A small file; empty when it cannot be read."""
        try:
            return self._read_whole(name, schema)
        except Bad as error:
            self._skip(name, error, rows=self._rows_of(name))
            return schema.empty_table()

    def _samples(self, name: str) -> pa.Table:
        """Those of a file that say of whom they are and of when."""
        table = self._table(name, USAGE_SCHEMA)
        of = [table[key] for key in ("ring", "device", "ts")]
        if not any(column.null_count for column in of):
            return table
        known = table.filter(reduce(pc.and_, (column.is_valid() for column in of)))
        rows = len(table) - len(known)
        self._skip(name, ValueError(f"{rows:,} samples without ring, device or time"), rows=rows)
        return known

    def _read_whole(self, name: str, schema: pa.Schema) -> pa.Table:
        with self._files.open_native(name) as file:
            footer = pq.read_metadata(file)
            check_size(footer, range(footer.num_row_groups), LARGEST_TABLE_ROWS, LARGEST_TABLE_BYTES)
        with self._files.open_native(name) as file:
            return pq.read_table(file, schema=schema)

    def _rows_of(self, name: str) -> int:
        """The number of rows of a file that cannot be read, 0 when not even its footer can."""
        try:
            with self._files.open_native(name) as file:
                return int(pq.read_metadata(file).num_rows)
        except Bad:
            return 0

    def _skip(self, name: str, error: Exception, row_group: int = -1, rows: int = 0) -> None:
        """Notes once what could not be read. row_group: -1 for the whole file. rows: 0 when not known."""
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._unreadable[name, row_group] = rows
        if not any(line.startswith(name + ":") for line in self.skipped):
            self.skipped.append(f"{name}: {first_line}")

    def _frame(self, id: int) -> Frame:
        if id not in self._frames:
            found = self._definitions("frames", FRAME_SCHEMA).get(id)
            if found is None:
                return Frame(UNKNOWN_TEXT, UNKNOWN_TEXT, 0, "python")
            file, symbol, line = self.string(found["file"]), self.string(found["function"]), int(found["line"])
            if found["kind"] == FrameKind.NATIVE:
                self._frames[id] = Frame(file, plain(demangled(symbol)), line, "native", symbol)
            else:
                is_entry = found["kind"] == FrameKind.PYTHON_ENTRY
                self._frames[id] = Frame(file, symbol, line, "python", is_entry=is_entry)
        return self._frames[id]

    @cached_property
    def _defined_since(self) -> Mapping[str, pa.Table]:
        return self._ask_defined_since() if self._ask_defined_since is not None else {}

    def _definitions(self, kind: str, schema: pa.Schema) -> Definitions:
        if kind not in self._defined:
            since = self._defined_since.get(
                kind, schema.empty_table()
            )  # first: what is in a part by then is there twice

            def read(name: str) -> pa.Table | None:
                try:
                    table = self._read_whole(name, schema)
                    if any(_has_empty(column) for column in table.columns):
                        raise ValueError("a definition has an empty cell")
                    return table
                except Bad as error:
                    self._skip(name, error, rows=self._rows_of(name))
                    return None

            self._known_parts.add(kind, self._files.names(kind, "part-*.parquet"), read)
            self._defined[kind] = Definitions(kind, since, self._known_parts, read)
        return self._defined[kind]


def _has_empty(column: pa.ChunkedArray) -> bool:
    """Also within its lists."""
    return bool(column.null_count) or (
        pa.types.is_list(column.type) and any(chunk.flatten().null_count for chunk in column.chunks)
    )
