"""What a long run costs the node while it runs, and how soon the verdict stands after its end.

    python benchmarks/long_run.py [--events 40000000] [--rate 400000] [--ranks 1] [--output DIRECTORY]

A native program calls an allocator that the tool watches, from two threads of each rank, at a steady rate, under
`msmemscope`; so the rings, the agent, the journal, the parts, the folds, the lives of blocks and the judge all do their
work. Printed while it runs: events so far, the resident memory of agent and aggregator, the processor time of both per
event, and the age of the verdict on disk. At the end: how long the verdict took from the end of the program on, the
command's return, and what was lost. --output keeps the run. --analyze: then, as processes of their own, what it costs
to judge the run from its parts, and to export it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "torture"))
from watched import THREADS, build

QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
TICK = os.sysconf("SC_CLK_TCK")


def services(supervisor: int) -> dict[str, int]:
    """Name -> pid of the supervisor's two services."""
    found = {}
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        line = Path(f"/proc/{child}/cmdline").read_bytes()
        for name in ("agent", "aggregate"):
            if name.encode() in line:
                found[name] = int(child)
    return found


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=40_000_000)
    parser.add_argument("--rate", type=int, default=400_000, help="events per second of all; 0: as fast as it goes")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where the run stays")
    parser.add_argument("--analyze", action="store_true", help="also judge it again, and export it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        output = options.output or Path(place) / "out"
        recorded = run(Path(place), output, options.ranks, options.events, options.rate)
        if options.analyze:
            for words in (["analyze", "--only", "leaks"], ["export", "--format", "csv"]):
                again(words, recorded, options.events)
    return 0


def again(words: list[str], run_dir: Path, events: int) -> None:
    """One command on the whole run: what it took, and the most memory that it held."""
    begun = time.monotonic()
    command = subprocess.Popen([sys.executable, "-m", "msmemscope", words[0], str(run_dir), *words[1:]], **QUIET)
    _, status, usage = os.wait4(command.pid, 0)
    command.returncode = os.waitstatus_to_exitcode(status)
    cpu, wall = usage.ru_utime + usage.ru_stime, time.monotonic() - begun
    print(
        f"{' '.join(words):<24} {events / cpu / 1e6:.1f} M events/s of processor time, wall {wall:.0f} s, "
        f"peak {usage.ru_maxrss >> 10} MiB, status {command.returncode}",
        flush=True,
    )


def run(place: Path, output: Path, ranks: int, events: int, rate: int) -> Path:
    """Returns the run's directory."""
    program = build(place)
    progress = [place / f"progress{rank}" for rank in range(ranks)]
    calls = events // THREADS // ranks
    pause_us = 0 if not rate else max(1, round(1e6 * THREADS * ranks * 100 / rate))  # after each hundred calls
    one = f"RANK=$rank WORLD_SIZE={ranks} {program} {place}/progress$rank {calls} {pause_us} 0 &"
    script = f"for rank in {' '.join(map(str, range(ranks)))}; do {one} done; wait"
    argv = [sys.executable, "-m", "msmemscope", "--output-path", output, "--", "sh", "-c", script]
    stderr = (place / "stderr").open("w+")
    command = subprocess.Popen(list(map(str, argv)), stderr=stderr, stdout=subprocess.DEVNULL)
    begun = time.monotonic()
    ended = verdict = None
    next_look = 10.0
    while command.poll() is None:
        time.sleep(0.02)
        now = time.monotonic()
        reached = [int.from_bytes(one.read_bytes()[:8], "little") if one.exists() else 0 for one in progress]
        done = min(reached)
        if ended is None and done >= calls - 100:
            ended = now
        if ended is not None and verdict is None and "msMemScope" in (place / "stderr").read_text():
            verdict = now
        if now - begun >= next_look and ended is None:
            next_look += 10
            look(command.pid, output, now - begun, sum(reached) * THREADS)
    stderr.close()
    over = time.monotonic()
    assert ended is not None
    assert verdict is not None
    (run_dir,) = output.glob("run_*")
    info = json.loads((run_dir / "run.json").read_text())
    stored = sum(one["events"] for one in info["processes"])
    print(
        f"{stored / 1e6:.1f} M events stored, lost {info['losses']['gaps']}; verdict {verdict - ended:.2f} s after the "
        f"program, command {over - ended:.2f} s; {len(list(run_dir.glob('events/*')))} parts of events, "
        f"{len(list(run_dir.glob('blocks/*')))} of blocks",
        flush=True,
    )
    return run_dir


def look(supervisor: int, output: Path, age_s: float, events: int) -> None:
    parts = []
    for name, pid in services(supervisor).items():
        parts.append(f"{name} {resident_mib(pid):.0f} MiB, {1e9 * cpu_s(pid) / max(events, 1):.0f} ns/event")
    written = max((path.stat().st_mtime for path in output.glob("run_*/summary.txt")), default=0.0)
    verdict = f"verdict {time.time() - written:.1f} s old" if written else "no verdict yet"
    print(f"{age_s:6.0f} s {events / 1e6:7.1f} M events   {'   '.join(parts)}   {verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
