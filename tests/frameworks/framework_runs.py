"""Commands of real frameworks, without the tool and with it, and what every run of them must be."""

from __future__ import annotations

import csv
import socket
from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
from running import Outcome, run_to_end

from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

PROGRAMS = Path(__file__).resolve().parent / "programs"
LIMIT_S = 900  # the longest of them takes two minutes on a machine with nothing else to do
# No network is asked for anything, nobody is told of the run, and no token is made in the home directory.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
}


def without_tool(command: Sequence[str | Path], **env: str) -> str:
    """What a command writes to its stdout when nobody watches."""
    done = run_to_end(*command, limit_s=LIMIT_S, **QUIET, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def complete(outcome: Outcome) -> Run:
    """The run, of which nothing is missing."""
    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    assert run.info["drained"]
    assert run.info["finished"]
    lost = {name: count for name, count in run.info["losses"].items() if count}
    assert not lost, lost
    return run


def steps_of(run: Run, rank: int) -> int:
    """Boundaries of steps that a rank made, also one that another rank started (Lightning)."""
    rings = {process.ring for process in run.processes if process.rank == rank}
    return sum(
        pc.sum(pc.equal(batch.column("kind"), int(Kind.STEP))).as_py() or 0
        for batch in run.events(rings=rings, columns=["kind"])
    )


def phase_rows(run: Path, file: str = "phases") -> list[dict[str, str]]:
    """The rows of what phases needed of the host's tensors; file: "phase_owners" for whose that was."""
    with (run / f"cluster/{file}.csv").open(newline="") as opened:
        return [row for row in csv.DictReader(opened) if row["pool"] == "HOST"]


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
