"""What watching costs a program once, whatever it does: the time before it starts and after it ended.

    python benchmarks/startup.py [pairs]

Runs two scripts in pairs, plain and watched, by turns, and prints a row for each: median seconds of wall and of
processor time (of all processes) of the plain one, and the median of what the watched one took longer.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SCRIPTS = {
    "no torch (sleeps 1 s)": "import time; time.sleep(1)",
    "torch, 20 steps": """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


def main(pairs: int) -> None:
    print(f"{'script':<24}{'plain':>10}{'wall':>10}{'processor':>12}   (seconds; median of {pairs} pairs)")
    for title, code in SCRIPTS.items():
        with tempfile.TemporaryDirectory() as output:
            plain = [sys.executable, "-c", code]
            watched = [sys.executable, "-m", "msmemscope", "--output-path", output, "--", *plain]
            run(watched)  # compiles what is not compiled yet
            rows = [(run(plain), run(watched)) for _ in range(pairs)]
        wall = statistics.median(with_[0] - without[0] for without, with_ in rows)
        processor = statistics.median(with_[1] - without[1] for without, with_ in rows)
        alone = statistics.median(without[0] for without, _ in rows)
        print(f"{title:<24}{alone:>10.2f}{wall:>+10.2f}{processor:>+12.2f}", flush=True)


def run(words: list[str]) -> tuple[float, float]:
    """Seconds of wall and of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    wall = time.monotonic() - begun
    if done.returncode != 0:
        sys.exit(f"{words[0]} ended with {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
