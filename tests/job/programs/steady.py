"""Holds the same through some seconds of steps, and says then what the kernel says of it: ``python steady.py FILE``."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import torch

import msmemscope

STEPS, PAUSE_S = 24, 0.1


def status() -> dict[str, int]:
    """Bytes, of the lines VmRSS, RssShmem and RssFile."""
    text = Path("/proc/self/status").read_text()
    return {
        name: int(size) << 10 for name, size in re.findall(r"^(VmRSS|RssShmem|RssFile):\s+(\d+) kB", text, re.MULTILINE)
    }


def main() -> None:
    kept = [torch.ones(n << 20, dtype=torch.uint8) for n in (1, 30, 200)]
    shared = torch.ones(50 << 20, dtype=torch.uint8).share_memory_()
    for _ in range(STEPS):
        time.sleep(PAUSE_S)
        msmemscope.step()
    held = sum(one.nbytes for one in kept)
    Path(sys.argv[1]).write_text(json.dumps(status() | {"tensors": held, "shared": shared.nbytes}))


if __name__ == "__main__":
    main()
