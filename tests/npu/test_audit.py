"""An engine of real torch_npu sleeps: what its pool gives back to the driver is gone, what it forgets is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from simulated import OnNpu

MIB = 1 << 20
PROGRAM = """
import torch, torch_npu
import msmemscope

torch.npu.set_device(0)

def weights(): return torch.ones(16 << 20, device="npu:0")
def forgotten(): return torch.ones(24 << 20, device="npu:0")  # FORGOTTEN

w, f = weights(), forgotten()
torch.npu.synchronize()
msmemscope.mark("sleep")
copy = w.cpu()
del w
torch.npu.synchronize()
torch.npu.empty_cache()
msmemscope.mark("wake_up")
w = copy.npu()
"""
LINE = PROGRAM.splitlines().index('def forgotten(): return torch.ones(24 << 20, device="npu:0")  # FORGOTTEN') + 1


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_what_the_pool_gives_back_did_not_survive(on_npu: OnNpu, tmp_path: Path, allocator: str) -> None:
    program = tmp_path / "engine.py"
    program.write_text(PROGRAM)

    tool = ["-m", "msmemscope", f"--output-path={tmp_path / 'out'}", "--device=npu,cpu", "--"]
    changes = {"PYTORCH_NPU_ALLOC_CONF": allocator} if allocator else {}
    done = on_npu(*tool, sys.executable, program, cwd=tmp_path, **changes)

    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "out").glob("run_*")
    findings = json.loads((run / "cluster" / "summary.json").read_text())["findings"]
    (found,) = (one for one in findings if one["kind"] == "survived")
    assert (found["device"], found["pool"], found["line"]) == ("npu:0", "PTA", LINE)
    (figures,) = found["evidence"]["per_rank"].values()
    pool = [one for one in found["evidence"]["lines"] if one["pool"] == "PTA"]
    assert sum(one["before_bytes"] for one in pool) >= 160 * MIB
    assert 96 * MIB <= sum(one["kept_bytes"] for one in pool) < 98 * MIB
    assert figures["host_made_bytes"] >= 64 * MIB
