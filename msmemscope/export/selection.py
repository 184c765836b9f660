"""What of a run has a row in upstream's files, and in which of them.

In: the user's options. Out: masks over columns of events, and the names (Device Ids) of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from msmemscope.vocabulary import DeviceType, Kind

FORMATS = ("csv", "db")
EVENTS = ("alloc", "free", "launch", "access")  # the words of --events
NOT_APPLICABLE = "N/A"
CPU = "cpu"

Column: TypeAlias = "np.ndarray[Any, Any]"
Columns: TypeAlias = "dict[str, Column]"

_KIND_OF_WORD = {
    "alloc": (Kind.MALLOC,),
    "free": (Kind.FREE,),
    "access": (Kind.ACCESS,),
    "launch": (Kind.OP_START, Kind.OP_END, Kind.KERNEL_LAUNCH, Kind.KERNEL_START, Kind.KERNEL_END),
}
# Kinds that have a row in upstream's files. The others (segments, labels, collectives, ...) are in the events table.
_DUMPED_KINDS = (
    *(kind for kinds in _KIND_OF_WORD.values() for kind in kinds),
    Kind.MARK,
    Kind.RANGE_START,
    Kind.RANGE_END,
    Kind.STEP,
    Kind.SNAPSHOT,
    Kind.OOM,
    Kind.SYSTEM,
)


def kind_mask(kinds: Sequence[int]) -> Column:
    """Indexed by a column of kinds: whether each is one of `kinds`. Much cheaper than np.isin."""
    mask = np.zeros(256, bool)
    mask[list(kinds)] = True
    return mask


IS_DUMPED = kind_mask(_DUMPED_KINDS)
IS_MEMORY = kind_mask((Kind.MALLOC, Kind.FREE))
IS_MARK = kind_mask((Kind.MARK, Kind.RANGE_START, Kind.RANGE_END))
_IS_USE = kind_mask((Kind.MALLOC, Kind.FREE, Kind.ACCESS, Kind.OP_START, Kind.OP_END))
IS_SHARED = kind_mask((Kind.STEP, Kind.SYSTEM))  # these stand in every device file of the process


@dataclass(frozen=True)
class Selection:
    """What is written: the user's own --events, and --steps (empty: all of them)."""

    events: frozenset[str] = frozenset(EVENTS)
    steps: frozenset[int] = frozenset()
    stack_depth: int | None = None  # innermost frames per row; None: as recorded
    owners: bool = False  # MALLOC rows say whose they are
    inefficient: bool = False  # and what is inefficient about them
    devices: tuple[str, ...] = ()  # the words of --device; empty: all
    python_stacks: bool = False  # they were recorded: a memory row without one says NA
    launched: bool = False  # recording began with the program, on nobody's call: that START_TRACE has no row
    oom_top: int = 0  # so many newest and largest blocks below the first failure of an incident

    def kinds(self) -> list[int]:
        left_out = {kind for word, kinds in _KIND_OF_WORD.items() if word not in self.events for kind in kinds}
        return [int(kind) for kind in _DUMPED_KINDS if kind not in left_out]

    def has_device(self, home: str) -> bool:
        """Whether `home`, a Device Id, was asked for."""
        words = set(self.devices)
        return not words or not words.isdisjoint({"auto", home, f"npu:{home}", *(() if home == CPU else ("npu",))})

    def asked_for(
        self, rows: Columns, homes: Column, names: Sequence[str], accelerators: Sequence[str]
    ) -> Column | None:
        """Of every row whether --device wants it; None: all. `names`: Device Ids by the numbers in `homes`.

        Marks and ranges are recorded whatever the device, because steps are among them; but another card's have no row
        where it was left out.
        """
        asked = ~self.leaves_out(rows, accelerators) if self._leaves_out_host(accelerators) else None
        unasked = [number for number, home in enumerate(names) if not self.has_device(home)]
        if unasked:
            of_others = IS_MARK[rows["kind"]] & (rows["device_type"] == DeviceType.NPU) & np.isin(homes, unasked)
            asked = ~of_others if asked is None else asked & ~of_others
        return asked

    def leaves_out(self, rows: Columns, accelerators: Sequence[str]) -> Column:
        """What is the host's under --device auto in a process with cards: its tensors and operators, recorded until the
        first card was seen, and page-locked memory. Upstream, whose default are cards, has no file of it."""
        if not self._leaves_out_host(accelerators):
            return np.zeros(len(rows["kind"]), bool)
        return np.asarray(_IS_USE[rows["kind"]] & (rows["device_type"] == DeviceType.CPU))

    def _leaves_out_host(self, accelerators: Sequence[str]) -> bool:
        return bool(accelerators) and "auto" in self.devices


def device_id(device_type: int, device: int) -> str:
    """The Device Id of upstream: `cpu`, a number, or N/A."""
    if device_type == DeviceType.CPU:
        return CPU
    return NOT_APPLICABLE if device_type == DeviceType.NONE or device < 0 else str(device)


def place_id(code: int) -> str:
    """The same of a code of RowLedger.places()."""
    device = (code & 0xFFFF) - 1
    return device_id(code >> 16, device if device < 0x7FFF else device - 0x10000)


def cut(columns: Columns, start: int, stop: int) -> Columns:
    return {name: column[start:stop] for name, column in columns.items()}


def taken(columns: Columns, rows: Column) -> Columns:
    """`rows`: a mask, or numbers of rows."""
    return {name: column[rows] for name, column in columns.items()}
