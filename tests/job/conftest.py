"""Fixtures of this folder: run something under the tool."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from running import Outcome, Watch, run_tool

# A worker of xdist ignores SIGINT, and what it starts would inherit that: no Ctrl-C for the programs under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Run a command line under the tool, writing below this test's own directory."""

    def run(*argv: str | Path, **env: str) -> Outcome:
        return run_tool(tmp_path / "out", argv, **env)

    return run
