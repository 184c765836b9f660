"""Run programs under the tool, each in a process of its own, and find what it wrote.

Called by the tests of this folder; calls ``python -m msmemscope`` and nothing inside it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from compilers import needs_observer
from patience import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
# Faults of others, which a loaded machine brings out and a program meets without the tool as well: such a run is made
# again, and no other.
FAULTS_OF_OTHERS = (
    # Ray gives each of its nodes 30 s to start, and no option changes that: plain programs of two nodes fail so, too.
    "Exception: The current node timed out during startup",
)
MOST_AGAIN = 2


@dataclass(frozen=True)
class Outcome:
    """How a run under the tool ended; `output` is the directory given as --output-path."""

    status: int
    stdout: str
    stderr: str
    output: Path

    @property
    def runs(self) -> list[Path]:
        return sorted(self.output.glob("run_*"))

    @property
    def run(self) -> Path:
        """The one run directory; fails with the tool's own words when there is none."""
        assert len(self.runs) == 1, f"{len(self.runs)} run directories, status {self.status}\n{self.stderr}"
        return self.runs[0]


Watch = Callable[..., Outcome]


def tool(output: Path, argv: Sequence[str | Path], options: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs `argv` under the tool, with options of the tool's."""
    return [sys.executable, "-m", "msmemscope", "--output-path", str(output), *options, "--", *map(str, argv)]


def environment(**extra: str) -> dict[str, str]:
    """Return this environment, with one thread per process so that two programs do not fight over two cores."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}


def run_to_end(*command: str | Path, limit_s: float = LIMIT_S, **env: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a command; env: on top of environment()."""
    return subprocess.run(
        [str(word) for word in command],
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def write_modules(folder: Path, modules: Mapping[str, str]) -> None:
    """Stand-ins for packages that are not here: text by the module's path below folder, "verl/workers/actor.py"."""
    for name, text in modules.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for package in list(path.relative_to(folder).parents)[:-1]:
            (folder / package / "__init__.py").touch()


def analysed(output: Path, analysis: str, *command: str | Path, options: Sequence[str] = ()) -> Path:
    """The run of a command that ends well, recorded for an analysis that is no default."""
    words = [sys.executable, "-m", "msmemscope", "--analysis", analysis, "--output-path", output, *options, "--"]
    done = run_to_end(*words, *command)
    assert done.returncode == 0, done.stderr
    (run,) = output.glob("run_*")
    return run


def build_observer() -> None:
    """Builds what sees torch's operators, so that they are there from the first step on; skips without a compiler."""
    needs_observer()
    build = [sys.executable, "-m", "msmemscope", "build-torch-ext"]
    subprocess.run(build, env=environment(), check=True, capture_output=True, timeout=LIMIT_S)


def torchrun(nproc: int, *argv: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}", *argv]


def forked_ranks(nproc: int, *argv: str | Path) -> list[str | Path]:
    """A job for a test of what ranks do: nproc ranks with torchrun's variables, of one process that has torch."""
    return [sys.executable, PROGRAMS / "forked_ranks.py", str(nproc), *argv]


def run_tool(
    output: Path, argv: Sequence[str | Path], options: Sequence[str] = (), limit_s: float = LIMIT_S, **env: str
) -> Outcome:
    """Run `argv` under the tool to its end, again where a fault of somebody else ended it."""
    outcome = _run_once(output, argv, options, limit_s, **env)
    for again in range(1, MOST_AGAIN + 1):
        if outcome.status == 0 or not any(fault in outcome.stderr for fault in FAULTS_OF_OTHERS):
            break
        outcome = _run_once(output.with_name(f"{output.name}-{again}"), argv, options, limit_s, **env)
    return outcome


def _run_once(output: Path, argv: Sequence[str | Path], options: Sequence[str], limit_s: float, **env: str) -> Outcome:
    """Run `argv` under the tool; a hang ends with all of its processes killed and the test failed."""
    process = subprocess.Popen(
        tool(output, argv, options),
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        pytest.fail(f"still running after {limit_s} s: {argv}\n{stderr}")
    return Outcome(process.returncode, stdout, stderr, output)
