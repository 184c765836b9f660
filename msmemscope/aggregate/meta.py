"""What a process says about itself in META records, as far as run.json tells it.

In: a ring's batches in order. Out: `Meta`: which cards the process could see, what its sources could not see
("lost.<source>" of the recorder), what it found to hold its leaked tensors (rank/lookup.py), where it stands in the
parallel layout (rank/coordinates.py), and how much it may map (rank/address_space.py). Other keys are left to readers
of the events.

A text is defined in the ring before its first use, nearly always just before it; so the texts of the batch at hand
and the last ones of the batch before suffice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from msmemscope.tables.run import UNKNOWN_TEXT
from msmemscope.vocabulary import Kind
from msmemscope.wire.messages import MAX_TEXT, Batch
from msmemscope.wire.reports import MOST_HOLDERS

VISIBLE_DEVICES = "visible_devices"
PARALLEL = "parallel"
ADDRESS_SPACE = "address_space"
HOLDER = "holder"
LOST = "lost."
_MOST_SOURCES = 64
_REMEMBERED = 64  # texts of the batch before


@dataclass
class Meta:
    """Of one process; grows with its batches."""

    visible_devices: str = ""
    not_seen: dict[str, str] = field(default_factory=dict)  # source -> what it could not see, "; " between several
    holders: list[str] = field(default_factory=list)  # as rank/lookup.py writes them
    parallel: str = ""  # as rank/coordinates.py writes it
    address_space: str = ""  # as rank/address_space.py writes it: the latest
    _recent: dict[int, bytes] = field(default_factory=dict, repr=False, compare=False)

    def take(self, batch: Batch) -> None:
        """Notes what the batch says. Batches without META cost one look at their kinds."""
        kinds = np.frombuffer(batch.cols["kind"], np.uint8)
        texts = _texts(batch)
        rows = np.flatnonzero(np.broadcast_to(kinds, batch.n) == Kind.META) if batch.n else np.empty(0, np.intp)
        if len(rows):
            known = self._recent | texts
            names, values = _spread(batch, "name"), _spread(batch, "attr")
            for row in rows.tolist():
                self._note(_decoded(known, int(names[row])), _decoded(known, int(values[row])))
        if texts:
            self._recent = dict(list(texts.items())[-_REMEMBERED:])

    def _note(self, key: str, value: str) -> None:
        if key == VISIBLE_DEVICES:
            self.visible_devices = value
        elif key == PARALLEL:
            self.parallel = value
        elif key == ADDRESS_SPACE:
            self.address_space = value
        elif key == HOLDER:
            if len(self.holders) < MOST_HOLDERS and value not in self.holders:
                self.holders.append(value)
        elif key.startswith(LOST):
            source = key.removeprefix(LOST)
            before = self.not_seen.get(source, "")
            if (before or len(self.not_seen) < _MOST_SOURCES) and value not in before.split("; "):
                self.not_seen[source] = f"{before}; {value}"[:MAX_TEXT] if before else value


def _texts(batch: Batch) -> dict[int, bytes]:
    ids = np.frombuffer(batch.strings["id"], "<u8").tolist()
    ends = np.cumsum(np.frombuffer(batch.strings["bytes"], "<u4"), dtype=np.int64).tolist()
    text = batch.strings["text"]
    return {id: text[start:end][:MAX_TEXT] for id, start, end in zip(ids, [0, *ends], ends, strict=False)}


def _spread(batch: Batch, name: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    values = np.frombuffer(batch.cols[name], "<u8")
    return np.broadcast_to(values, batch.n) if len(values) == 1 else values


def _decoded(texts: dict[int, bytes], id: int) -> str:
    text = texts.get(id)
    return UNKNOWN_TEXT if text is None else text.decode("utf-8", "replace")
