"""One process of a run, as run.json tells of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msmemscope.annotations import is_of
from msmemscope.tables.schema import layout_key

MOST_RANKS = 1 << 20  # of a job: the missing ones are listed
_INT32 = (
    "rank",
    "local_rank",
    "world_size",
    "group_rank",
    "attempt",
    "pid",
    "ppid",
    "ended_by",
    "ended_for_memory",
)  # as wide as in the tables


@dataclass(frozen=True)
class Process:
    """One process that recorded something. Times are CLOCK_MONOTONIC ns of its host."""

    ring: int
    rank: int | None
    local_rank: int
    world_size: int
    group_rank: int
    attempt: int
    pid: int
    ppid: int
    parent_ring: int
    host: str
    program: str
    role: str
    created_ns: int
    wall_offset_ns: int  # add to a ts of the process: wall clock
    closed: bool = False  # it said goodbye: not killed
    lost: dict[str, int] = field(default_factory=dict)  # kind -> events dropped because its ring was full
    visible_devices: str = ""  # ASCEND_RT_VISIBLE_DEVICES as it held; empty: all cards, under the driver's numbers
    not_seen: dict[str, str] = field(default_factory=dict)  # source -> what it could not see in this process
    holders: tuple[str, ...] = ()  # what it found to hold its leaked tensors: analysis/holders.py reads them
    events: int = 0  # that stand in the tables
    command: str = ""  # its command line or title, words separated by U+241F
    ended_ns: int = 0  # when the agent saw that it had ended; 0: it had not, or nobody looked
    ended_by: int = -1  # the signal that ended it; 0: it ended itself; -1: not known
    ended_for_memory: int = 0  # 1: the kernel killed it, whose control group had reached its limit
    parallel: str = ""  # where its framework says that it stands: "tp=0/2,pp=1/4", analysis/coordinates.py reads it
    address_space: str = ""  # "<limit> <mapped> <step>": bytes, as rank/address_space.py tells them; "": no limit

    @property
    def is_main(self) -> bool:
        """No process that was recorded started it."""
        return self.parent_ring == 0

    def logical_device(self, physical: int) -> int | None:
        """What the process itself calls the driver's NPU `physical`; None for one that it cannot see."""
        if not self.visible_devices:
            return physical if physical >= 0 else None
        listed = [text.strip() for text in self.visible_devices.split(",")]
        return listed.index(str(physical)) if str(physical) in listed else None

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Process:
        """Raises KeyError, TypeError or ValueError for an entry that no aggregator writes."""
        known = {name: entry[name] for name in cls.__dataclass_fields__ if name in entry}
        for name in ("ring", "parent_ring"):
            known[name] = int(known[name], 16)
            if not 0 <= known[name] < 1 << 64:
                raise ValueError(f"{name} is no ring")
        for name, value in known.items():
            annotation = str(cls.__annotations__[name])
            if name not in ("ring", "parent_ring") and not is_of(value, annotation):
                raise ValueError(f"{name} is {value!r:.100}, which is no {annotation}")
        for name in _INT32:
            if known.get(name) is not None and not -(1 << 31) <= known[name] < 1 << 31:
                raise ValueError(f"{name} is {known[name]}, which is out of range")
        if not 0 <= known.get("ended_ns", 0) < 1 << 63:
            raise ValueError(f"ended_ns is {known['ended_ns']}, which is out of range")
        if max(known.get("world_size", 0), known.get("rank") or 0) > MOST_RANKS:
            raise ValueError(f"more than {MOST_RANKS:,} ranks")
        return cls(**known)


@dataclass(frozen=True)
class Whose:
    """What the rows of a process say of it, where they stand among those of others."""

    ring: int
    rank: int | None
    pid: int
    attempt: int
    created_ns: int

    @classmethod
    def of(cls, process: Process) -> Whose:
        return cls(process.ring, process.rank, process.pid, process.attempt, process.created_ns)

    @property
    def order(self) -> tuple[int, int, int]:
        """Its place in a part."""
        return layout_key(self.rank, self.created_ns, self.ring)
