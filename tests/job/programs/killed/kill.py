"""Starts a program many times, a few at a time, and kills each with SIGKILL at a random moment.

``python kill.py PROGRAM DIRECTORY SEED COUNT``. Writes DIRECTORY/kills.json: for each process its pid, how long it was
left alone, how it ended, and what its threads had told before that time and at the end: [[tid, returned calls], ...].
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

AT_A_TIME = 4
LONGEST_S = 0.08
LONGEST_FROM_START_S = 0.25
DEADLINE_S = 600.0
THREADS = 3


def progress(path: Path) -> list[list[int]]:
    content = path.read_bytes().ljust(16 * THREADS, b"\0")
    return [list(struct.unpack_from("QQ", content, 16 * thread)) for thread in range(THREADS)]


def run_and_kill(program: str, path: Path, delay_s: float, *, at_once: bool) -> dict[str, Any]:
    """at_once: the time begins with the process, not when each of its threads has come back from a call; otherwise at
    least one of them comes back again within it."""
    path.touch()
    child = subprocess.Popen([program, str(path)], stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE_S
    while not at_once and not all(returned for _, returned in progress(path)):
        if child.poll() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    before = progress(path)
    time.sleep(delay_s)
    while not at_once and progress(path) == before and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)  # on a loaded machine nobody may have had a processor in that time
    child.kill()
    status = child.wait()
    return {
        "pid": child.pid,
        "at_once": at_once,
        "delay_s": delay_s,
        "status": status,
        "before": before,
        "at_death": progress(path),
    }


def main(program: str, directory: Path, seed: int, count: int) -> None:
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        kills = [
            pool.submit(
                run_and_kill,
                program,
                directory / f"{number}.progress",
                chance.random() * (LONGEST_FROM_START_S if number % 5 == 4 else LONGEST_S),
                at_once=number % 5 == 4,
            )
            for number in range(count)
        ]
    (directory / "kills.json").write_text(json.dumps([kill.result() for kill in kills]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
