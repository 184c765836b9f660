"""Programs with the real torch_npu on the simulated CANN: who may run them, and the fixtures that do.

They run under the Python of the environment that `make setup-npu` makes, as processes of their own. Anywhere else
they are skipped, with the reason.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest
from simulated import DEADLINE_S, npu_environment, why_not

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    if reason is None:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


class OnNpu(Protocol):
    def __call__(
        self, *command: str | Path, cwd: Path | None = None, **changes: str
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def on_npu() -> OnNpu:
    """Runs ``python COMMAND...`` on the simulated NPUs; keywords are environment variables."""

    def run(*command: str | Path, cwd: Path | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=cwd,
            env=npu_environment(**changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    return run
