"""What a program took of the driver of the simulated card and never gave back, beside the real torch_npu's segments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from simulated import PROGRAMS

import msmemscope

MIB = 1 << 20


def test_what_is_left_at_exit_is_the_programs_own(on_npu: Any, tmp_path: Path) -> None:
    """The runtime keeps memory for itself, and torch has segments to its end. aclrtMalloc adds 32 bytes."""
    tool = ["-m", "msmemscope", "--analysis", "unfreed", "-o", tmp_path, "--"]
    done = on_npu(*tool, sys.executable, PROGRAMS / "own_operator.py", NPUSIM_CANN_MEMORY="1")
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("run_*")
    (found,) = msmemscope.open_run(path).findings("unfreed").to_pylist()
    evidence = json.loads(found["evidence"])
    assert (found["bytes"], found["blocks"], Path(found["file"]).name) == (3 * (16 * MIB + 32), 3, "own_operator.py")
    assert evidence["pool_bytes"] == 0
    assert evidence["parts"]["RUNTIME"] > 0
