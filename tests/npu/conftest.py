"""Programs with the real torch_npu on the simulated CANN: who may run them, and the fixture that does.

They run under the Python of the environment that `make setup-npu` makes, as processes of their own. Anywhere else
they are skipped, with the reason.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CANN = Path(os.environ.get("MEMSCOPE_CANN", ROOT / "build" / "simulator" / "cann"))
DEADLINE_S = 240.0

# What a developer's shell may have set and a test must not depend on.
UNSET = (
    "ASCEND_",
    "NPUSIM_",
    "TASK_QUEUE_ENABLE",
    "PYTORCH_NPU_ALLOC_CONF",
    "LD_PRELOAD",
    "MSMEMSCOPE",
    "TORCH_DEVICE",
)


def why_not() -> str | None:
    """Why these tests cannot run here, in one line; None when they can."""
    if importlib.util.find_spec("torch_npu") is None:
        refused = ROOT / ".venv-npu" / "unavailable"
        return refused.read_text().strip() if refused.exists() else "no torch_npu in this Python: `make test-npu`"
    if not (CANN / "lib64" / "libopapi.so").exists():
        return f"no simulated CANN with operators in {CANN}: `make setup-npu`"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    if reason is None:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


def npu_environment(**changes: str) -> dict[str, str]:
    """The environment of a process that uses the simulated NPUs, with `changes`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(UNSET)}
    environment |= {
        "ASCEND_HOME_PATH": str(CANN),
        "ASCEND_OPP_PATH": str(CANN / "opp"),
        "LD_LIBRARY_PATH": str(CANN / "lib64"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "simulator" / "python"), str(ROOT / "examples")]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }
    return environment | changes


class OnNpu(Protocol):
    def __call__(self, *command: str | Path, **changes: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def on_npu() -> OnNpu:
    """Runs ``python COMMAND...`` on the simulated NPUs; keywords are environment variables."""

    def run(*command: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, command)],
            env=npu_environment(**changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    return run
