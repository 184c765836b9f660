"""What readers of foreign files hand over: processes, and the events of each in order.

Columns are those of vocabulary.EVENT_COLUMNS, of its types. The step of each event and the STEP events are added when
the steps of all processes are known (steps.py). Events wait on disk meanwhile: they are read twice, once for what tells
steps and once to be written, and more of them need no more memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.imports.external_sort import Columns, Sorter
from msmemscope.vocabulary import EVENT_COLUMNS, NO_DEVICE, UNKNOWN

Definitions = dict[str, dict[str, bytes]]

NO_FRAMES = dict.fromkeys(("id", "file", "function", "line", "kind"), b"")
NO_STACKS = dict.fromkeys(("id", "count", "kind", "frames"), b"")
FREED_BY = "freed_by"
"""A column that readers may add, which is not written: of a release the id of its call stack, or 0."""
_NOTHING = {"used": UNKNOWN, "total": UNKNOWN, "device": NO_DEVICE}
_PROCESS = "process"


@dataclass
class Process:
    """One process. number: in `Events`. first_ts: ns, of its first event, of a clock to which `wall_offset_ns` is added
    for wall time. left_out: entries that could not be used. has_times: whether the file told them. doubts: source ->
    what it does not tell, or tells in two ways."""

    number: int
    path: Path
    first_ts: int = 0
    rank: int | None = None
    pid: int = 0
    wall_offset_ns: int = 0
    left_out: int = 0
    has_times: bool = True
    doubts: dict[str, str] = field(default_factory=dict)


class Events:
    """The events of all processes, on disk. Within a process they are in the order of time, then of `id`."""

    def __init__(self, directory: Path) -> None:
        """directory: where they wait, in a file without a name."""
        self._sorter = Sorter(directory, (_PROCESS, "ts", "id"))

    def __len__(self) -> int:
        return len(self._sorter)

    def close(self) -> None:
        self._sorter.close()

    def add(self, numbers: int | npt.NDArray[np.uint32], columns: Columns) -> None:
        """numbers: of the process, or that of each event. columns: those of events but for `step`, and `id`."""
        if isinstance(numbers, int):
            numbers = np.broadcast_to(np.uint32(numbers), len(columns["ts"]))
        self._sorter.add(columns | {_PROCESS: numbers})

    def pieces(self, names: Sequence[str] = ()) -> Iterator[tuple[int, Columns]]:
        """Process after process, each in its order: its number and some of its events, of these columns or of all but
        `step`. What is read may not be written to."""
        for columns in self._sorter.in_order((*names, _PROCESS) if names else ()):
            numbers = columns[_PROCESS]
            ends = [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)] if len(numbers) else []
            start = 0
            for end in ends:
                yield int(numbers[start]), {name: column[start:end] for name, column in columns.items()}
                start = end

    def in_any_order(self, names: Sequence[str]) -> Iterator[Columns]:
        """With the column `process`."""
        yield from self._sorter.in_any_order((*names, _PROCESS))


@dataclass
class Imported:
    """One process whose events are in memory: `columns`, in their order. definitions: what ids stand for, as a batch
    has it. The others as of a Process."""

    path: Path
    columns: Columns
    definitions: Definitions
    left_out: int = 0
    has_times: bool = True
    doubts: dict[str, str] = field(default_factory=dict)

    def moved_to(self, events: Events, number: int, rank: int) -> Process:
        """Gives the events away. number: of a process whose events are not there yet."""
        columns, self.columns = self.columns, {}
        first_ts, count = int(columns["ts"][0]), len(columns["ts"])
        del columns["step"]
        events.add(number, columns | {"id": np.arange(count)})
        return Process(
            number,
            self.path,
            first_ts=first_ts,
            rank=rank,
            left_out=self.left_out,
            has_times=self.has_times,
            doubts=self.doubts,
        )


def rows(n: int, **values: Any) -> Columns:
    """n events; a column that is not given is 0, or unknown."""
    made = {name: np.full(n, _NOTHING.get(name, 0), dtype) for name, dtype in EVENT_COLUMNS.items()}
    for name, value in values.items():
        made[name][:] = value
    return made


def joined(pieces: list[Columns]) -> Columns:
    """One behind the other."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in EVENT_COLUMNS}


def taken(columns: Columns, order: npt.NDArray[Any]) -> Columns:
    """These rows, in this order."""
    return {name: column[order] for name, column in columns.items()}


class Texts:
    """String ids of texts that a reader adds itself, and their definitions."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def id(self, text: str) -> int:
        """As record.h makes ids of texts; 0 for the empty one."""
        if not text:
            return 0
        if text not in self._texts:
            self._texts[text] = text_id(text.encode("utf-8", "replace")[:4096])
        return self._texts[text]

    def definitions(self) -> Definitions:
        """Them alone."""
        nothing = {"id": b"", "bytes": b"", "text": b""}
        return {"strings": self.added_to(nothing), "frames": dict(NO_FRAMES), "stacks": dict(NO_STACKS)}

    def added_to(self, strings: dict[str, bytes]) -> dict[str, bytes]:
        """The columns of strings with these behind them."""
        encoded = [text.encode("utf-8", "replace")[:4096] for text in self._texts]
        return {
            "id": strings["id"] + np.array(list(self._texts.values()), "<u8").tobytes(),
            "bytes": strings["bytes"] + np.array([len(text) for text in encoded], "<u4").tobytes(),
            "text": strings["text"] + b"".join(encoded),
        }


class Named:
    """The texts of definitions, by id."""

    def __init__(self, definitions: dict[str, dict[str, bytes]]) -> None:
        strings = definitions["strings"]
        self._ids = np.frombuffer(strings["id"], "<u8")
        self._order = np.argsort(self._ids, kind="stable")
        self._ends = np.cumsum(np.frombuffer(strings["bytes"], "<u4"), dtype=np.int64)
        self._bytes = strings["text"]

    def text(self, id: int) -> str:
        """ "" for one that is not defined."""
        at = int(np.searchsorted(self._ids, np.uint64(id), sorter=self._order))
        if at == len(self._ids) or int(self._ids[self._order[at]]) != id:
            return ""
        row = int(self._order[at])
        return self._text(int(self._ends[row - 1]) if row else 0, int(self._ends[row]))

    def each(self) -> Iterator[tuple[int, str]]:
        """Every id with its text, in the order of the definitions."""
        start = 0
        for id, end in zip(self._ids.tolist(), self._ends.tolist(), strict=True):
            yield id, self._text(start, end)
            start = end

    def _text(self, start: int, end: int) -> str:
        return self._bytes[start:end].decode("utf-8", "replace")


_MASK = (1 << 64) - 1
_STRING = 1  # Kind.STRING


def text_id(text: bytes) -> int:
    """text_id() of native/record/record.h."""
    hashed = _combine(_STRING, len(text))
    for word in _words(text):
        hashed = _combine(hashed, word)
    return hashed or 1


def _words(text: bytes) -> Iterator[int]:
    for at in range(0, len(text), 8):
        yield int.from_bytes(text[at : at + 8], "little")


def _combine(seed: int, value: int) -> int:
    x = (seed * 0x9E3779B97F4A7C15 + value + 1) & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
