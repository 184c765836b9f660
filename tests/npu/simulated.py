"""The simulated CANN that these tests run the real torch_npu on: whether it is here, and the environment it needs."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
CANN = Path(os.environ.get("MEMSCOPE_CANN", ROOT / "build" / "simulator" / "cann"))

# What a developer's shell may have set and a test must not depend on.
UNSET = (
    "ASCEND_",
    "NPUSIM_",
    "TASK_QUEUE_ENABLE",
    "PYTORCH_NPU_ALLOC_CONF",
    "LD_PRELOAD",
    "MSMEMSCOPE",
    "MSTX_",
    "TORCH_DEVICE",
)


class OnNpu(Protocol):
    """What the fixture `on_npu` does: runs ``python COMMAND...``, or COMMAND under another word than python, to its
    end. Keywords are environment variables."""

    def __call__(
        self,
        *command: str | Path,
        under: Sequence[str | Path] = (sys.executable,),
        cwd: Path | None = None,
        **changes: str,
    ) -> subprocess.CompletedProcess[str]: ...


def why_not() -> str | None:
    """Why these tests cannot run here, in one line; None when they can."""
    if importlib.util.find_spec("torch_npu") is None:
        refused = ROOT / ".venv-npu" / "unavailable"
        return refused.read_text().strip() if refused.exists() else "no torch_npu in this Python: `make test-npu`"
    if not (CANN / "lib64" / "libopapi.so").exists():
        return f"no simulated CANN with operators in {CANN}: `make setup-npu`"
    return None


def npu_environment(**changes: str) -> dict[str, str]:
    """The environment of a process that uses the simulated NPUs, with `changes`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(UNSET)}
    places = [ROOT / "simulator" / "python", ROOT / "examples", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {
        "ASCEND_HOME_PATH": str(CANN),
        "ASCEND_OPP_PATH": str(CANN / "opp"),
        "LD_LIBRARY_PATH": str(CANN / "lib64"),
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }
    return environment | {"NPUSIM_STATE": own_cards()} | changes


@cache
def own_cards() -> str:
    """Where the state of the cards lies that the programs of this process of pytest share: their memory is theirs,
    whoever else runs tests beside it."""
    directory = tempfile.mkdtemp(prefix="npusim-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return str(Path(directory, "cards"))
