"""take_snapshot() and TakeSnapshot with the real torch_npu: what it counts is what stands in the tables and files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from msmemscope.tables.run import Run
from msmemscope.vocabulary import DeviceType, Kind, Pool

PROGRAM = """
import json, sys
import torch, torch_npu
import msmemscope

npu = torch.npu
npu.set_device(1)
kept = torch.empty(1 << 20, device="npu:1")
gone = torch.empty(3 << 20, device="npu:1")
del gone
said = []

def counters():
    free, total = npu.mem_get_info(1)
    said.append(dict(used=npu.memory_allocated(1), total=npu.memory_reserved(1), ptr=npu.max_memory_allocated(1),
                     size=npu.max_memory_reserved(1), attr=free, aux=total >> 10))

msmemscope.config(output_path=sys.argv[1], format="csv")
counters()
msmemscope.take_snapshot(name="alone")  # before start(): a session of its own
msmemscope.take_snapshot(device_mask=[0, 1], name="both")

@msmemscope.TakeSnapshot(1, name="step")
def step():
    return torch.empty(5 << 20, device="npu:1")

more = step()
counters()
msmemscope.start()
torch.empty(8, device="npu:1")
msmemscope.stop()
print(json.dumps(said))
"""


def test_counters_are_torchs_own(on_npu: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = on_npu(program, tmp_path / "out", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    (run_directory,) = (tmp_path / "out").glob("run_*")
    run = Run(run_directory)
    names = ["kind", "name", "device_type", "device", "pool", "used", "total", "ptr", "size", "attr", "aux"]
    found = []
    for batch in run.events(columns=names, kinds=(Kind.SNAPSHOT,)):
        found += batch.select(names).to_pylist()
    told = [(run.string(row["name"]), {name: row[name] for name in before}) for row in found]
    assert told == [("alone", before), ("both", before), ("step Start", before), ("step End", after)]
    assert {(row["device_type"], row["device"], row["pool"]) for row in found} == {(DeviceType.NPU, 1, Pool.PTA)}
    assert "no snapshot of device 0: torch does not use it" in done.stderr
    (file,) = (tmp_path / "out").glob("msmemscope_*_ascend/device_1/dump/memscope_dump_*.csv")
    with file.open(newline="") as text:
        attrs = {row["Name"]: row["Attr"] for row in csv.DictReader(text) if row["Event"] == "SNAPSHOT"}
    total = before["aux"] << 10
    rate = (total - before["attr"]) / total * 100
    assert attrs["alone"] == (
        f"{{reserved:{before['total']},max_reserved:{before['size']},allocated:{before['used']},"
        f"max_allocated:{before['ptr']},total:{total},free:{before['attr']},device_rate:{rate:.6f},"
        f"reserved_rate:{before['used'] / before['total'] * 100:.6f}}}"
    )
