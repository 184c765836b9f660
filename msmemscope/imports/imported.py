"""What a reader of foreign files hands over: the events of one process, in order.

Columns are those of vocabulary.EVENT_COLUMNS, of its types. The step of each event and the STEP events are added when
the steps of all processes are known (steps.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.vocabulary import EVENT_COLUMNS, NO_DEVICE, UNKNOWN

Columns = dict[str, npt.NDArray[Any]]
_NOTHING = {"used": UNKNOWN, "total": UNKNOWN, "device": NO_DEVICE}


@dataclass
class Imported:
    """One process. ts: ns, of a clock to which `wall_offset_ns` is added for wall time. definitions: strings, frames
    and stacks as a batch has them. left_out: entries that could not be used. has_times: whether
    the file told them. doubts: source -> what it does not tell,
    or tells in two ways."""

    path: Path
    columns: Columns
    definitions: dict[str, dict[str, bytes]]
    rank: int | None = None
    pid: int = 0
    wall_offset_ns: int = 0
    left_out: int = 0
    has_times: bool = True
    doubts: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["kind"])


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
        return self._bytes[int(self._ends[row - 1]) if row else 0 : int(self._ends[row])].decode("utf-8", "replace")


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
