"""Owners of blocks that nobody has labelled, deduced from their call stacks and from when they come and go.

In: the events of imported processes with their steps, and what each stack proves (stack_roles.py). Out: the same events
with LABEL_ADDR events, as a recorded run has them: what the phases of a training tell of each block
(native/kernel/training_phases.h), and the labels of frameworks' functions. What is not proven gets none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from msmemscope._kernel import DEDUCED_OWNERS, TrainingPhases, TrainingSizes
from msmemscope.imports.external_sort import Columns
from msmemscope.imports.imported import FREED_BY, Texts, rows
from msmemscope.imports.stack_roles import StackRoles
from msmemscope.imports.torch_frames import Role
from msmemscope.integrations.hook import DETAIL_1
from msmemscope.vocabulary import EVENT_COLUMNS, Flag, Kind, Pool

COLUMNS = ("kind", "ts", "device_type", "device", "pool", "ptr", "size", "flags", "stack_py", "stack_c", "name")
"""Of events, which survey() looks at."""
_IS_POOL = np.zeros(256, bool)  # by pool: whether blocks of it have owners of these
_IS_POOL[[Pool.CUDA, Pool.PTA, Pool.MINDSPORE, Pool.ATB, Pool.HOST]] = True
_OF_THEIR_EVENT = ("ts", "tid", "device", "device_type", "pool", "step")  # what labels take over

Ints = npt.NDArray[np.int64]


class DeducedOwners:
    """Adds labels to the events of processes, one after the other."""

    def __init__(self, roles: StackRoles, texts: Texts) -> None:
        """texts: to which those of labels are added; to write what they stand for is the caller's."""
        self._roles = roles
        self._owner_names = np.array([texts.id(label) for label in DEDUCED_OWNERS], np.uint64)
        # What functions of frameworks say: of each number as many levels and names, one behind the other.
        of_functions = roles.all_labels()
        self._counts = np.array([len(labels) for labels in of_functions], np.int64)
        self._firsts = np.cumsum(self._counts) - self._counts
        said = [one for labels in of_functions for one in labels]
        self._levels = np.array([level for level, _ in said], np.uint32)
        self._names = np.array([texts.id(label) for _, label in said], np.uint64)
        self._named = [any(level == DETAIL_1 for level, _ in labels) for labels in of_functions]
        self._known: dict[int, TrainingSizes] = {}
        self.bytes: Counter[str] = Counter()
        """Allocated: by owner, "function" of what functions of frameworks say themselves, "" of all."""

    def survey(self, pieces: Iterable[tuple[int, Columns]]) -> None:
        """Goes through COLUMNS of the events of all processes a first time, for the sizes of what they hold."""
        for number, phases, columns in self._walk(pieces):
            phases.go(self._events(columns))
            self._known[number] = phases.sizes()

    def labelled(self, pieces: Iterable[tuple[int, Columns]]) -> Iterator[tuple[int, Columns]]:
        """pieces: events with their steps."""
        for number, phases, columns in self._walk(pieces):
            events, before = self._events(columns), Counter(phases.bytes)
            told = self._told(events, phases.go(events))
            self.bytes.update(Counter(phases.bytes) - before)
            yield number, _inserted(columns, told) if len(told["at"]) else columns

    def text(self) -> str:
        """Behind the last event: how much is known, for people."""
        known = sum(size for label, size in self.bytes.items() if label) / max(self.bytes[""], 1)
        return f"owners were deduced from call stacks and lifetimes, of {known:.0%} of the bytes allocated"

    def _walk(self, pieces: Iterable[tuple[int, Columns]]) -> Iterator[tuple[int, TrainingPhases, Columns]]:
        before, phases = -1, TrainingPhases(self._named)
        for number, columns in pieces:
            if number != before:
                before, phases = number, TrainingPhases(self._named, self._known.get(number))
            yield number, phases, columns

    def _events(self, columns: Columns) -> Columns:
        """Those that matter, as TrainingPhases takes them."""
        kind = columns["kind"]
        is_block = ((kind == Kind.MALLOC) | (kind == Kind.FREE)) & _IS_POOL[columns["pool"]]
        steps_begin = kind == Kind.RANGE_START
        if steps_begin.any():
            steps_begin &= np.isin(columns["name"], self._roles.optimizer_ranges())
        at = np.flatnonzero(is_block | steps_begin)
        kind = kind[at]
        # A thread of the engine's has no frame of Python's: the other stack is looked at only where that one is empty.
        stacks = columns["stack_py"][at]
        stacks = np.where(stacks != 0, stacks, columns["stack_c"][at])
        roles, labels = self._roles.of(stacks)
        roles[kind == Kind.RANGE_START] = Role.BEHIND
        # A release has a call stack only here.
        freed = np.flatnonzero(kind == Kind.FREE)
        roles[freed] = self._roles.of(columns[FREED_BY][at[freed]])[0] if FREED_BY in columns else Role.EMPTY
        place = columns["device_type"][at].astype(np.int64) << 24
        place |= columns["device"][at].astype(np.int64) << 8 | columns["pool"][at].astype(np.int64)
        step = columns["step"][at].astype(np.int64) if "step" in columns else np.zeros(len(at), np.int64)
        return {
            "row": at,
            "kind": kind.astype(np.uint8),
            "place": place,
            "ptr": columns["ptr"][at].astype(np.uint64, copy=False),
            "size": columns["size"][at].astype(np.int64, copy=False),
            "step": step,
            "role": roles.astype(np.uint8),
            "is_old": (columns["flags"][at] & Flag.SHADOW != 0).astype(np.uint8),
            "labels": labels.astype(np.uint16),
        }

    def _told(self, events: Columns, owners: Columns) -> Columns:
        """Labels: before which event, whose time and thread, address, level, string id; those of functions behind."""
        at = np.flatnonzero((events["labels"] != 0) & (events["kind"] == Kind.MALLOC))
        number = events["labels"][at]
        count = self._counts[number]
        which = np.repeat(self._firsts[number] - np.cumsum(count) + count, count) + np.arange(count.sum())
        at = np.repeat(at, count)
        levels = np.full(len(owners["at"]), DETAIL_1, np.uint32)
        return {
            "at": np.concatenate([owners["at"], events["row"][at] + 1]),
            "like": np.concatenate([owners["like"], events["row"][at]]),
            "ptr": np.concatenate([owners["ptr"], events["ptr"][at]]),
            "level": np.concatenate([levels, self._levels[which]]),
            "name": np.concatenate([self._owner_names[owners["owner"]], self._names[which]]),
        }


def _inserted(columns: Columns, told: Columns) -> Columns:
    order = np.argsort(told["at"], kind="stable")
    told = {name: column[order] for name, column in told.items()}
    count = len(order)
    places = told["at"] + np.arange(count)
    # Of each event that comes out the one that it was, or is like.
    source = np.empty(len(columns["ts"]) + count, np.int64)
    is_label = np.zeros(len(source), bool)
    is_label[places] = True
    source[~is_label] = np.arange(len(columns["ts"]))
    source[places] = told["like"]
    labels = rows(count, kind=Kind.LABEL_ADDR, ptr=told["ptr"], aux=told["level"], name=told["name"])
    inserted = {}
    for column in EVENT_COLUMNS:
        inserted[column] = columns[column][source]
        if column not in _OF_THEIR_EVENT:
            inserted[column][places] = labels[column]
    return inserted
