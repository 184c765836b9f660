"""Memory snapshots of PyTorch as its allocator writes them, from a history whose truth is known."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

Frames = list[dict[str, Any]]
START_US = 1_795_000_000_000_000
SEGMENT = 2 << 20


def frames(*places: str) -> Frames:
    """`train.py:12 step` each, innermost first."""
    found = []
    for place in places:
        where, _, name = place.partition(" ")
        file, _, line = where.rpartition(":")
        found.append({"name": name or "f", "filename": f"/src/{file}", "line": int(line)})
    return found


class Allocator:
    """One device. Blocks lie one behind the other in segments; an address that is free is given out again."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.now = START_US
        self.trace: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.segments: dict[int, tuple[int, Frames]] = {}
        self.live: dict[int, tuple[int, Frames]] = {}
        self._free: dict[int, list[int]] = {}
        self._room = (0, 0)

    def alloc(self, size: int, where: Frames, *, told: bool = True) -> int:
        rounded = (size + 511) // 512 * 512
        waiting = self._free.get(rounded)
        if waiting:
            address = waiting.pop()
        else:
            at, end = self._room
            if end - at < rounded:
                at = 0x7F00_0000_0000 + len(self.segments) * (64 << 20)
                end = at + max(SEGMENT, rounded)
                self.segments[at] = end - at, where
                if told:
                    self._tell("segment_alloc", at, end - at, where)
            self._room = at + rounded, end
            address = at
        self.live[address] = size, where
        if told:
            self._tell("alloc", address, size, where)
        return address

    def free(self, address: int, *, told: bool = True, by: Frames | None = None) -> None:
        """by: the call stack of who lets go; the engine of autograd has none."""
        size, _ = self.live.pop(address)
        self._free.setdefault((size + 511) // 512 * 512, []).append(address)
        if told:
            self._tell("free_requested", address, size, by or [])
            self._tell("free_completed", address, size, by or [])

    def annotate(self, stage: str, name: str) -> None:
        self.now += 1
        one = {"stage": stage, "name": name, "device": self.device, "time_us": self.now}
        self.annotations.append(one)

    def snapshot(self) -> dict[str, Any]:
        blocks_of: dict[int, list[dict[str, Any]]] = {at: [] for at in self.segments}
        for address, (size, where) in sorted(self.live.items()):
            segment = max(at for at in self.segments if at <= address)
            blocks_of[segment].append(
                {
                    "address": address,
                    "size": (size + 511) // 512 * 512,
                    "requested_size": size,
                    "state": "active_allocated",
                    "frames": where,
                }
            )
        segments = [
            {
                "device": self.device,
                "address": at,
                "total_size": size,
                "stream": 0,
                "segment_type": "small",
                "is_expandable": False,
                "frames": where,
                "blocks": blocks_of[at],
            }
            for at, (size, where) in self.segments.items()
        ]
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.device)]
        return {
            "segments": segments,
            "device_traces": [*traces, self.trace],
            "external_annotations": self.annotations,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        }

    def _tell(self, action: str, address: int, size: int, where: Frames) -> None:
        self.now += 1
        self.trace.append(
            {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now, "frames": where}
        )


def save(snapshot: Any, path: Path, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    return path


def training(*, steps: int = 20, kept: int = 0, marks: bool = False, layers: int = 3) -> Allocator:
    """A loop: in each step `layers` activations and a loss, all freed in it; `kept` bytes of each step are not: they
    come from train.py:58."""
    card = Allocator()
    weights = [card.alloc(4096, frames("model.py:7 build", "train.py:3 main"), told=False) for _ in range(layers)]
    for step in range(steps):
        if marks:
            card.annotate("START", "ProfilerStep#" + str(step))
        batch = card.alloc(8192, frames("data.py:4 load", "train.py:50 main"))
        activations = [
            card.alloc(65536, frames(f"model.py:{20 + layer} forward", "train.py:52 main")) for layer in range(layers)
        ]
        loss = card.alloc(512, frames("train.py:53 main"))
        if kept:
            card.alloc(kept, frames("train.py:58 hoard", "train.py:54 main"))
        if step == 0:
            weights += [card.alloc(4096, frames("optim.py:9 init", "train.py:55 main")) for _ in range(layers)]
        for address in (*activations, loss, batch):
            card.free(address)
        if marks:
            card.annotate("END", "ProfilerStep#" + str(step))
    return card
