"""What a mark that asks for what is alive costs the aggregator, by the number of live blocks: processor time, median of
five pairs of marks, against that of folding one allocation in the same run."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from msmemscope._kernel import text_id
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool

SITES = 2_000
SECOND = 1_000_000_000


def events(n: int, **values: object) -> dict[str, np.ndarray]:
    columns = {name: np.zeros(n, EVENT_COLUMNS[name]) for name in COLUMNS}
    for name, value in values.items():
        columns[name][:] = value
    return columns


def main() -> None:
    print("live blocks  fold, ns/block  mark, ms  mark, ns/block  ratio")
    for n in (10_000, 100_000, 1_000_000):
        fold = RingFold(1)
        number = np.arange(n)
        place = {"pool": Pool.PTA, "device_type": DeviceType.NPU}
        blocks = events(n, kind=Kind.MALLOC, ptr=4096 + 512 * number, size=512, stack_py=number % SITES + 1, **place)
        begun = time.process_time()
        fold.take(n, blocks)
        of_blocks = (time.process_time() - begun) / n
        taken = []
        for mark in range(10):
            name = text_id(("sleep", "wake_up")[mark % 2])
            begun = time.process_time()
            fold.take(1, events(1, kind=Kind.MARK, name=name, ts=10 * SECOND * (mark + 1)))
            taken.append(time.process_time() - begun)
        one = median(taken)
        print(f"{n:11,}  {1e9 * of_blocks:14.0f}  {1e3 * one:8.1f}  {1e9 * one / n:14.0f}  {one / n / of_blocks:5.1f}")


if __name__ == "__main__":
    main()
