"""Fixtures of this folder: run something under the tool."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Outcome, Watch, run_tool


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Run a command line under the tool, writing below this test's own directory."""

    def run(*argv: str | Path, **env: str) -> Outcome:
        return run_tool(tmp_path / "out", argv, **env)

    return run
