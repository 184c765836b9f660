"""What each call stack of imported files proves about its blocks, where nobody has labelled them.

In: definitions of stacks, as readers hand them over. Out: for each stack its role in a training step (torch_frames.py),
and the labels that a recorded run would give because a function of a framework runs (integrations/maps.py).
Memory: 11 bytes for each stack, and what frames of torch's and of frameworks take.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from msmemscope.imports.imported import Definitions
from msmemscope.imports.torch_frames import (
    FUNCTIONS,
    INSTALLED,
    PACKAGES,
    PROVING,
    TORCH,
    Role,
    Says,
    native_function,
    python_frame,
    role_of,
)
from msmemscope.integrations.hook import AROUND, COMPONENT, DETAIL_1, Labels
from msmemscope.integrations.maps import DECOMPOSE, MAPS

# Functions that let the reducer of DistributedDataParallel make its buckets: what they allocate themselves.
_REDUCING = ("torch/nn/parallel/distributed.py", ("_ddp_init_helper", "_pre_forward"))
_BUCKET: Labels = ((COMPONENT, "ddp"), (DETAIL_1, "bucket"))
# What FSDP2 allocates for a reduction by this function are gradients, from torch 2.10 on; the rest is the transport's.
_ALLOCATING = ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "allocate")
_REDUCED, _GRADIENT = "reduce_scatter", "gradient"
_OPTIMIZER_STEP = "Optimizer.step#"


class StackRoles:
    """Learns what stacks prove as they are defined."""

    def __init__(self) -> None:
        self._hooked = _hooked()
        self._files = tuple(f"/{path}" for path, _ in self._hooked if not path.startswith(PACKAGES))
        self._wanted = FUNCTIONS | {name for _, name in self._hooked} | {_ALLOCATING[1], *_REDUCING[1]}
        self._homes: set[str] = set()  # folders in which torch lies
        # By string id, of those that matter: the file below the directory of packages, and the name of the function.
        self._paths: dict[int, str] = {}
        self._functions: dict[int, str] = {}
        self._native: dict[int, Says] = {}
        self._ranges: set[int] = set()
        # By frame.
        self._says: dict[int, Says] = {}
        self._frame_labels: dict[int, Labels] = {}
        self._lines: dict[int, int] = {}  # of those by which modules move their tensors
        self._reducing: set[int] = set()
        self._allocating: set[int] = set()
        # Of stacks.
        self._ids, self._roles, self._label_numbers = array("Q"), array("B"), array("H")
        self._all_labels: list[Labels] = [()]
        self._moved: dict[int, int] = {}  # the line
        self._proves = False
        self._steps_within = False
        self._order: npt.NDArray[np.int64] | None = None

    def __bool__(self) -> bool:
        """Whether any stack proves whose a block is."""
        return self._proves

    def learn(self, definitions: Definitions) -> None:
        """Of some definitions: what they refer to stands in them, or came before."""
        self._learn_strings(definitions["strings"])
        self._learn_frames(definitions["frames"])
        self._learn_stacks(definitions["stacks"])

    def of(self, stacks: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Role and number of the labels of each: of a block the stack of Python, or, where it has none, the other one;
        0: it has neither."""
        roles, labels = np.zeros(len(stacks), np.int64), np.zeros(len(stacks), np.int64)
        roles[stacks == 0] = Role.EMPTY
        if len(self._ids):
            ids = np.frombuffer(self._ids, np.uint64)
            if self._order is None:
                self._order = np.argsort(ids, kind="stable")
            at = self._order[np.minimum(np.searchsorted(ids, stacks, sorter=self._order), len(ids) - 1)]
            is_known = (ids[at] == stacks) & (stacks != 0)
            roles[is_known] = np.frombuffer(self._roles, np.uint8)[at[is_known]]
            labels[is_known] = np.frombuffer(self._label_numbers, np.uint16)[at[is_known]]
        moved = np.flatnonzero(roles == Role.MOVED)
        if len(moved):
            # Parameters are moved before gradients and buffers, by an earlier line of the same function.
            first = min(self._moved.values())
            is_weight = [self._moved[stack] == first for stack in stacks[moved].tolist()]
            roles[moved] = np.where(is_weight, Role.WEIGHT, Role.NONE)
        return roles, labels

    def all_labels(self) -> list[Labels]:
        """By number, what functions give."""
        return self._all_labels

    def optimizer_ranges(self) -> npt.NDArray[np.uint64]:
        """String ids of the names of ranges that torch makes of an optimizer's steps; none where one may step within a
        backward pass: nobody tells in which thread a range is."""
        if self._steps_within:
            return np.zeros(0, np.uint64)
        return np.array(sorted(self._ranges), np.uint64)

    def _learn_strings(self, strings: Mapping[str, bytes]) -> None:
        text, end = strings["text"], 0
        ids = np.frombuffer(strings["id"], "<u8").tolist()
        files: list[tuple[int, str]] = []
        for id, size in zip(ids, np.frombuffer(strings["bytes"], "<u4").tolist(), strict=True):
            word = text[end : end + size].decode("utf-8", "replace")
            end += size
            if word.startswith(_OPTIMIZER_STEP):  # "Optimizer.step#AdamW.step", which ends as a function's name does
                self._ranges.add(id)
            elif word.endswith(".py"):
                files.append((id, word.replace("\\", "/")))
            elif (name := word.rpartition(".")[2]) in self._wanted:
                self._functions[id] = name
            elif native := native_function(word):
                self._native[id] = native

        # Where torch lies is known before any file is looked at.
        self._homes.update(word[: -len(one)] for _, word in files for one in PROVING if word.endswith(f"/{one}"))
        for id, word in files:
            if path := self._path_of(word):
                self._paths[id] = path

    def _path_of(self, word: str) -> str:
        for package in PACKAGES:
            if (at := word.rfind(f"/{package}") + 1) and (package != TORCH or self._is_home(word[:at])):
                return word[at:]
        return next((path[1:] for path in self._files if word.endswith(path)), "")

    def _is_home(self, folder: str) -> bool:
        """Of torch. A program may have a folder of that name; where no file shows where torch lies, it may be this."""
        return not self._homes or folder in self._homes or folder.endswith(INSTALLED)

    def _learn_frames(self, frames: Mapping[str, bytes]) -> None:
        ids = np.frombuffer(frames["id"], "<u8").tolist()
        files = np.frombuffer(frames["file"], "<u8").tolist()
        functions = np.frombuffer(frames["function"], "<u8").tolist()
        lines = np.frombuffer(frames["line"], "<u4").tolist()
        for id, file, function, line in zip(ids, files, functions, lines, strict=True):
            if (native := self._native.get(function)) is not None:
                self._says[id] = native
                continue
            path, name = self._paths.get(file, ""), self._functions.get(function, "")
            if says := python_frame(path, name):
                self._says[id] = says
            if says == Says.MOVED:
                self._lines[id] = line
            if labels := self._hooked.get((path, name)):
                self._frame_labels[id] = labels
            if (path, name) == _ALLOCATING:
                self._allocating.add(id)
            if path == _REDUCING[0] and name in _REDUCING[1]:
                self._reducing.add(id)

    def _learn_stacks(self, stacks: Mapping[str, bytes]) -> None:
        frames, end = np.frombuffer(stacks["frames"], "<u8").tolist(), 0
        ids = np.frombuffer(stacks["id"], "<u8").tolist()
        for id, count in zip(ids, np.frombuffer(stacks["count"], "<u4").tolist(), strict=True):
            self._learn_stack(id, frames[end : end + count])
            end += count
        self._order = None

    def _learn_stack(self, id: int, frames: Sequence[int]) -> None:
        role = role_of([self._says.get(frame, Says.OTHERS) for frame in frames])
        labels = self._labels_of(frames)
        if role == Role.NONE and not labels:
            return
        if role == Role.MOVED:
            self._moved[id] = next(self._lines[frame] for frame in frames if frame in self._lines)
        if labels not in self._all_labels:
            self._all_labels.append(labels)
        self._ids.append(id)
        self._roles.append(role)
        self._label_numbers.append(self._all_labels.index(labels))
        self._proves = self._proves or bool(labels) or role != Role.MAIN
        self._steps_within = self._steps_within or role in (Role.OPTIMIZER_WITHIN, Role.STATE_WITHIN)

    def _labels_of(self, frames: Sequence[int]) -> Labels:
        labels: dict[int, str] = dict(_BUCKET) if frames and frames[0] in self._reducing else {}
        for frame in frames:
            for level, label in self._frame_labels.get(frame, ()):
                labels.setdefault(level, label)  # the innermost function's
        if labels.get(DETAIL_1) == _REDUCED and not self._allocating.isdisjoint(frames):
            labels[DETAIL_1] = _GRADIENT
        return tuple(sorted(labels.items()))


def _hooked() -> dict[tuple[str, str], Labels]:
    """File and function -> the labels of what allocates while it runs. Stacks may name functions without their class:
    two of one name that say different things say nothing."""
    found: dict[tuple[str, str], Labels] = {}
    for (_, _, _, hook_type), some in MAPS.items():
        for hook in some if hook_type == DECOMPOSE else ():
            if hook.how == AROUND:
                key = hook.module.replace(".", "/") + ".py", hook.name.rpartition(".")[2]
                found[key] = hook.labels if found.get(key, hook.labels) == hook.labels else ()
    return found
