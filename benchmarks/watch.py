"""What a watched block costs each operator: time per call, watched and not, in turns in one process.

Run: `python -m msmemscope --level op -- python benchmarks/watch.py [DEVICE]`. An operator of some microseconds (adding
to 16 elements in place) is called in blocks of CALLS; between two blocks a watch is set or taken away. Printed are the
medians over BLOCKS blocks of microseconds per call.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

import msmemscope

CALLS, BLOCKS = 200, 15
SIZES = (4 << 10, 1 << 20, 16 << 20)


def block(tensor: torch.Tensor) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        tensor.add_(1)
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    if device == "npu":
        __import__("torch_npu")
    small = torch.zeros(16, device=device)
    for _ in range(3):
        block(small)
    print("bytes watched | not watched | watched | ratio [us per call]")
    for size in SIZES:
        other = torch.zeros(size, dtype=torch.uint8, device=device)
        plain, watched = [], []
        for _ in range(BLOCKS):
            plain.append(block(small))
            msmemscope.watcher.watch(other, name="other")
            watched.append(block(small))
            msmemscope.watcher.remove(other)
        one, two = statistics.median(plain), statistics.median(watched)
        print(f"{size:>12,} | {one:8.2f} | {two:8.2f} | {two / one:6.2f}")


if __name__ == "__main__":
    main()
