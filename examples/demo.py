"""Train a small transformer on four ranks with two planted leaks, and compare the verdict with what was planted.

``python examples/demo.py [--output-path DIR] [--ranks N]``; exits 0 when exactly the planted leaks were named.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "leaky_ddp.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-path", type=Path, default=Path("out"))
    parser.add_argument("--ranks", type=int, default=4, help="rank 2 has the second leak, so 3 or more")
    arguments = parser.parse_args()
    if arguments.ranks < 3:
        parser.error("--ranks has to be 3 or more: rank 2 has a leak of its own")
    output = arguments.output_path.resolve()
    before = set(output.glob("run_*"))
    training = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}", str(PROGRAM)]
    command = [sys.executable, "-m", "msmemscope", "--output-path", str(output), "--", sys.executable, *training]
    print(f"$ msmemscope --output-path {output} torchrun --nproc-per-node {arguments.ranks} {PROGRAM}", flush=True)
    status = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
    if status:
        print(f"the run ended with exit status {status}", file=sys.stderr)
        return status
    new = set(output.glob("run_*")) - before
    if len(new) != 1:
        print(f"expected one new run directory below {output}, found {len(new)}", file=sys.stderr)
        return 1
    return _compare(new.pop(), arguments.ranks)


def _compare(run: Path, ranks: int) -> int:
    planted = {
        _line_of("# LEAK-ALLOC"): ("the kept loss and its graph", f"0-{ranks - 1}"),
        _line_of("# LEAK 2"): ("the kept tensor of 1 MiB", "2"),
    }
    with (run / "cluster/leaks.csv").open(newline="") as file:
        found = {(Path(row["file"]).name, int(row["line"])): row for row in csv.DictReader(file)}
    print("\nPlanted and found:")
    right = len(found) == len(planted)
    for line, (what, who) in planted.items():
        row = found.get((PROGRAM.name, line))
        right = right and row is not None and row["ranks"] == who
        verdict = f"ranks {row['ranks']}, {float(row['bytes_per_step']):,.0f} bytes per step" if row else "NOT FOUND"
        print(f"  {PROGRAM.name}:{line}  {what}, planted on ranks {who}: {verdict}")
    for (name, line), row in found.items():
        if name != PROGRAM.name or line not in planted:
            print(f"  {name}:{line}  NOT PLANTED: ranks {row['ranks']}, {row['bytes_per_step']} bytes per step")
    print(f"Run directory: {run}")
    return 0 if right else 1


def _line_of(mark: str) -> int:
    lines = PROGRAM.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))


if __name__ == "__main__":
    sys.exit(main())
