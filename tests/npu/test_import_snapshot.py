"""A memory snapshot that the real torch_npu writes, as a run."""

from __future__ import annotations

from pathlib import Path

from simulated import OnNpu

from msmemscope.imports.job import Request, import_job
from msmemscope.report.analysed import analyse
from msmemscope.tables.run import Run
from msmemscope.vocabulary import DeviceType, Kind, Pool

PROGRAM = """
import sys, torch, torch_npu

torch.npu.memory._record_memory_history(max_entries=100000)
kept = []
weights = torch.randn(256, 256, device="npu")
for step in range(16):
    batch = torch.ones(256, 256, device="npu")
    made = (batch + weights) * 2
    kept.append(torch.zeros(1024, 256, device="npu"))  # line 10
    del batch, made
print(torch.npu.memory_allocated(), torch.npu.memory_reserved())
torch.npu.memory._dump_snapshot(sys.argv[1])
"""


def test_what_a_program_keeps_is_found_in_its_snapshot(on_npu: OnNpu, tmp_path: Path) -> None:
    program, snapshot = tmp_path / "train.py", tmp_path / "snapshot_rank0.pickle"
    program.write_text(PROGRAM)
    ran = on_npu(program, snapshot)
    assert ran.returncode == 0, ran.stderr
    _, reserved = map(int, ran.stdout.split()[-2:])
    import_job(Request((snapshot,), tmp_path / "run"))
    analysis = analyse(Run(tmp_path / "run"))
    (leak,) = [one for one in analysis.summary.findings if not one.is_note]
    assert (leak.kind, leak.ranks, round(leak.bytes_per_step)) == ("leak", (0,), 1 << 20)
    assert any(frame.file.endswith("train.py") and frame.line == 10 for frame in leak.site)
    totals = [
        batch["total"][-1].as_py()
        for batch in analysis.run.events(kinds=[Kind.MALLOC, Kind.FREE])
        if batch["pool"][-1].as_py() == Pool.PTA and batch["device_type"][-1].as_py() == DeviceType.NPU
    ]
    assert totals[-1] == reserved
    assert set(analysis.run.processes[0].not_seen) == {"times"}
