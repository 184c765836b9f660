"""Runs in which every kind of event comes with every sort of value, made from a number: what rows are compared with.

Not Python's `random`: the goldens made from these runs must hold under every version of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fake_run import FakeRun, frame, process

from msmemscope.vocabulary import DeviceType, Kind, Pool

T = TypeVar("T")

_TEXTS = (
    "aten::mm",
    "a,b",
    'say "x"',
    "=cmd()",
    "-1",
    "dtype:torch.float32,shape:torch.Size([3, 4])",
    "nokeys",
    "päth/ü",
    'k:v"q,z:\\w',
    "bell\x07",
    "line\nbreak",
    "path:/x/y,n:1",
    "domain: text",
    "",
)
_BIG = (0, 1, 17, 99_999_999, 100_000_000, 1 << 31, 123_456_789_012_345, (1 << 63) - 1, 10**16 - 1, 10**16)
_KINDS = [kind for kind in Kind if Kind.MALLOC <= kind <= Kind.UNMAP]
_KINDS += [Kind.MALLOC, Kind.FREE] * 13
_PLACE_OF_POOL = {Pool.PTA: DeviceType.NPU, Pool.MINDSPORE: DeviceType.NPU, Pool.CUDA: DeviceType.CUDA}


class Chance:
    """SplitMix64."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, n: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) % (1 << 64)
        z = self._state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
        z = (z ^ z >> 27) * 0x94D049BB133111EB % (1 << 64)
        return (z ^ z >> 31) % n

    def choice(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def is_so(self, percent: int) -> bool:
        return self.below(100) < percent


@dataclass(frozen=True)
class Wild:
    run: FakeRun
    selection: dict[str, Any]  # arguments of Selection
    accelerators: dict[int, list[str]]
    rows_at_once: int
    window: int  # of Chronology


def wild_run(seed: int) -> Wild:
    chance = Chance(seed)
    run = FakeRun(
        [process(ring, pid=100 + ring, rank=ring - 1) for ring in (1, 2, 3)], batch_rows=chance.choice([5, 50, 3000])
    )
    names = [0, *(run.text(text) for text in _TEXTS), 999]
    stacks = [0, 0, 998]
    for depth in (1, 3, 7):
        frames = [
            frame(f'/s/{n}"q,.py' if n % 3 else "=x.py", f"f{n}\n", n, "native" if n % 2 else "python")
            for n in range(depth)
        ]
        stacks.append(run.frames(*frames))
    for ring in (1, 2, 3):
        end = _add_events(run, ring, chance, names, stacks)
        for device in ("cpu", "npu:0", "npu:1", "cuda:0"):
            for ts in range(900, end, max(1, (end - 900) // 5)):
                if chance.is_so(70):
                    run.sample(
                        ts,
                        device,
                        ring=ring,
                        used=chance.choice([None, 5, 1 << 33]),
                        total=chance.choice([None, 1 << 35]),
                        process_used=chance.choice([None, 4096, 1 << 32]),
                    )
    every = ("alloc", "free", "launch", "access")
    selection = {
        "events": frozenset(chance.choice([every, every, ("alloc", "access"), ("free", "launch")])),
        "steps": frozenset(chance.choice([(), (), (1, 2, 5)])),
        "stack_depth": chance.choice([None, None, 0, 2]),
        "owners": chance.is_so(50),
        "devices": chance.choice([(), ("auto",), ("npu:0", "cpu"), ("npu",)]),
        "python_stacks": chance.is_so(50),
        "launched": chance.is_so(50),
        "oom_top": chance.choice([0, 3]),
    }
    accelerators = {1: ["0"], 2: ["12", "1"]} if chance.is_so(50) else {}
    return Wild(run, selection, accelerators, chance.choice([16, 50, 16_384]), chance.choice([16, 16_384]))


def _add_events(run: FakeRun, ring: int, chance: Chance, names: Sequence[int], stacks: Sequence[int]) -> int:
    """Returns the time of the last."""
    now, step = 1000, 0
    ptrs = [0, (1 << 64) - 1, *(chance.below(40) << 12 for _ in range(20))]
    for _ in range(chance.choice([20, 200])):
        kind, wild = chance.choice(_KINDS), chance.is_so(30)
        now += chance.choice([0, 0, 1, 5, 1_000_000])
        step += kind == Kind.STEP
        pool = chance.choice([*Pool, 77]) if wild else chance.choice([Pool.HAL, Pool.PTA, Pool.HOST, Pool.CUDA])
        anywhere = chance.choice(
            list(DeviceType) if wild else [DeviceType.CPU, DeviceType.NPU, DeviceType.NPU, DeviceType.CUDA]
        )
        at = now - chance.choice([0, 0, 0, 3, 20])
        values = {
            "ring": ring,
            "step": step,
            "aux": chance.choice([0, 1, 2, 3, 7]),
            "ptr": chance.choice(_BIG if wild else ptrs),
            "size": chance.choice([-5, 1 << 40, 7] if wild else [0, 1, 512, 4096, 1 << 20, 12_345_678]),
            "used": chance.choice([-1, 0, 5, 1 << 40]),
            "total": chance.choice([-1, 0, 7, 1 << 41]),
            "device": chance.choice([-1, 0, 0, 0, 1, 12]),
            "device_type": _PLACE_OF_POOL.get(Pool(pool), anywhere) if pool in list(Pool) else anywhere,
            "pool": pool,
            "flags": chance.choice([0, 0, 0, 0, 1, 2, 4, 16, 32, 63]),
            "name": chance.choice(names),
            "attr": chance.choice([*names, 6, 1 << 17, 1 << 31, 3 << 56 | 5]),
            "stack_py": chance.choice(stacks),
            "stack_c": chance.choice(stacks),
            "tid": chance.choice([0, 100, 4_294_967_295]),
        }
        if kind == Kind.SNAPSHOT:
            values["aux"] = 0  # no size of the device
        if kind != Kind.CALL:  # they have files of their own: test_python_trace.py
            run.add(kind, at, **values)
    return now
