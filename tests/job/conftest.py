"""Fixtures of this folder: run something under the tool, or ask for the outcome of a program that states a truth."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running import Outcome, Watch, run_tool, torchrun
from truth import read_truth

# Programs that run at a time: each keeps about one core busy, most of it with importing torch.
PARALLEL = min(os.cpu_count() or 2, 8)


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Run a command line under the tool, writing below this test's own directory."""

    def run(*argv: str | Path, **env: str) -> Outcome:
        return run_tool(tmp_path / "out", argv, **env)

    return run


@pytest.fixture(scope="session")
def outcome_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], Outcome]]:
    """Hand out the outcome of a program that a collected test asks for; they run ahead, one per core."""
    wanted = [item.callspec.params.get("program") for item in request.session.items if hasattr(item, "callspec")]

    def run(program: Path) -> Outcome:
        nproc = read_truth(program).nproc
        argv = torchrun(nproc, program) if nproc > 1 else [sys.executable, program]
        return run_tool(tmp_path_factory.mktemp(program.stem) / "out", argv)

    pool = ThreadPoolExecutor(PARALLEL)
    futures = {program: pool.submit(run, program) for program in dict.fromkeys(wanted) if program is not None}
    try:
        yield lambda program: futures[program].result()
    finally:
        pool.shutdown(cancel_futures=True)
