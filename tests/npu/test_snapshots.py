"""take_snapshot() and TakeSnapshot with the real torch_npu: what it counts is what stands in the tables and files, and
its segments and blocks are those of the allocator.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from simulated import OnNpu

from msmemscope.analysis.findings import format_bytes
from msmemscope.snapshots import OOM_NAME
from msmemscope.tables.run import Run
from msmemscope.vocabulary import BlockState, DeviceType, Kind, Pool

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


def test_counters_are_torchs_own(on_npu: OnNpu, tmp_path: Path) -> None:
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
    assert "no snapshot of device 0: no process that uses it came to a step before this process ended" in done.stderr
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


PIECES = """
import json, sys
import torch, torch_npu
import msmemscope

npu = torch.npu
kept = [torch.empty(3 << 18, device="npu") for _ in range(8)]  # 3 MiB each
del kept[1::2]  # holes of 3 MiB
msmemscope.take_snapshot(name="with holes")
told = []
for segment in npu.memory_snapshot():
    blocks = segment["blocks"]
    told.append([segment["address"], segment["total_size"], [[one["size"], one["state"]] for one in blocks]])
print(json.dumps(sorted(told)))
"""


def test_segments_and_blocks_are_the_allocators(on_npu: OnNpu, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PIECES)
    tool = ["-m", "msmemscope", f"--output-path={tmp_path / 'out'}", "--"]

    done = on_npu(*tool, sys.executable, program, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    (run_directory,) = (tmp_path / "out").glob("run_*")
    run = Run(run_directory)
    kinds = (Kind.SNAPSHOT_SEGMENT, Kind.SNAPSHOT_BLOCK)
    names = ["kind", "name", "ptr", "size", "used", "total", "attr", "aux", "device", "pool"]
    rows = [row for batch in run.events(columns=names, kinds=kinds) for row in batch.to_pylist()]
    assert {(run.string(row["name"]), row["device"], row["pool"]) for row in rows} == {("with holes", 0, Pool.PTA)}
    states = {BlockState.FREE: "inactive", BlockState.ALLOCATED: "active_allocated"}
    found = []
    for segment in (row for row in rows if row["kind"] == Kind.SNAPSHOT_SEGMENT):
        blocks = [row for row in rows if row["kind"] == Kind.SNAPSHOT_BLOCK and row["attr"] == segment["ptr"]]
        assert len(blocks) == segment["aux"]
        assert segment["used"] == sum(one["size"] for one in blocks if one["aux"] == BlockState.ALLOCATED)
        found.append(
            [segment["ptr"], segment["size"], [[one["size"], states[BlockState(one["aux"])]] for one in blocks]]
        )
    assert sorted(found) == told
    hole = max(size for _, _, blocks in told for size, state in blocks if state == "inactive")
    assert max(row["total"] for row in rows if row["kind"] == Kind.SNAPSHOT_SEGMENT) == hole >= 3 << 20
    (line,) = (text for text in done.stderr.splitlines() if text.lstrip().startswith("with holes"))
    assert format_bytes(hole) in line


def test_running_out_of_memory_takes_one_by_itself(on_npu: OnNpu, tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "out_of_memory.py"
    tool = ["-m", "msmemscope", f"--output-path={tmp_path / 'out'}", "--"]

    done = on_npu(*tool, sys.executable, program, cwd=tmp_path, NPUSIM_HBM_MB="4096")

    assert done.returncode == 0, done.stderr
    (run_directory,) = (tmp_path / "out").glob("run_*")
    run = Run(run_directory)
    names = ["kind", "name", "size", "used", "total"]
    kinds = (Kind.SNAPSHOT, Kind.SNAPSHOT_SEGMENT)
    rows = [row for batch in run.events(columns=names, kinds=kinds) for row in batch.to_pylist()]
    (snapshot,) = (row for row in rows if row["kind"] == Kind.SNAPSHOT)
    assert run.string(snapshot["name"]) == OOM_NAME
    assert snapshot["used"] > 3 << 30  # three tensors of 1 GiB
    assert sum(row["size"] for row in rows if row["kind"] == Kind.SNAPSHOT_SEGMENT) == snapshot["total"]


OTHERS = """
import os, time
import torch, torch_npu
import torch.distributed as dist
import msmemscope

ANSWERED = os.path.join(os.environ["MSMEMSCOPE_SESSION"], "snapshots-answered")
rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
kept = torch.empty((rank + 1) << 18, device="npu")
dist.init_process_group("gloo")
dist.barrier()
if rank == 0:
    msmemscope.take_snapshot([0, 1, 5], name="asked")
dist.barrier()
while not os.path.exists(ANSWERED):  # by the other rank: what a rank asks for it takes itself
    msmemscope.step()
    time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_device_of_another_rank_is_asked_of_it(on_npu: OnNpu, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(OTHERS)
    tool = ["-m", "msmemscope", f"--output-path={tmp_path / 'out'}", "--"]
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    done = on_npu(*tool, *ranks, program, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    (run_directory,) = (tmp_path / "out").glob("run_*")
    run = Run(run_directory)
    found = {}
    for process in run.processes:
        for batch in run.events(rings=[process.ring], columns=["name", "device", "used"], kinds=(Kind.SNAPSHOT,)):
            for row in batch.to_pylist():
                assert run.string(row["name"]) == "asked"
                found[process.rank, row["device"]] = row["used"] >> 20
    assert found == {(0, 0): 1, (1, 1): 2}  # MiB
    assert "no snapshot of device 5: no process that uses it came to a step" in done.stderr


DUMPED = """
import json, pickle, sys
from pathlib import Path
import torch, torch_npu
from msmemscope.collect.rank.verl_profiler import Profiler

npu = torch.npu
profiler = Profiler()  # what verl drives where its config asks for it
npu.memory._record_memory_history(max_entries=1000)
profiler.start(role="train", profile_step="1")  # no device has a context yet
profiler.stop()
weights = torch.empty(1 << 20, device="npu")
profiler.start(role="train", profile_step="2")
kept = torch.empty(5 << 20, device="npu")
path = Path(sys.argv[1]) / "torch_memory_rank0_pid1.pickle"
npu.memory._dump_snapshot(str(path))
profiler.stop()
assert pickle.loads(path.read_bytes())["segments"]
print(json.dumps([npu.memory_allocated(), npu.memory_reserved()]))
"""


def test_a_dump_of_torchs_history_and_a_step_that_verl_profiles_are_snapshots(on_npu: OnNpu, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(DUMPED)
    tool = ["-m", "msmemscope", f"--output-path={tmp_path / 'out'}", "--"]

    done = on_npu(*tool, sys.executable, program, tmp_path, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    counters = json.loads(done.stdout.splitlines()[-1])
    (run_directory,) = (tmp_path / "out").glob("run_*")
    run = Run(run_directory)
    names = ["name", "device_type", "pool", "used", "total"]
    rows = [row for batch in run.events(columns=names, kinds=(Kind.SNAPSHOT,)) for row in batch.to_pylist()]
    found = {run.string(row["name"]): [row["used"], row["total"]] for row in rows}
    dumped = "torch_memory_rank0_pid1.pickle"
    assert list(found) == ["verl train step 2 Start", dumped, "verl train step 2 End"]
    assert found[dumped] == found["verl train step 2 End"] == counters
    assert {(row["device_type"], row["pool"]) for row in rows} == {(DeviceType.NPU, Pool.PTA)}
