"""A CPU that has no more: torch's own error becomes a finding that says who asked for what, and what was alive."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import LIMIT_S
from running import Watch, torchrun

from msmemscope.tables.run import Run
from msmemscope.vocabulary import DeviceType, Kind, Pool

pytest.importorskip("torch")

MIB = 1 << 20
PROGRAM = """
import resource, sys
import torch

def weights():
    return [torch.ones(4 << 20) for _ in range(8)]  # WEIGHTS

def batch():
    return torch.empty(1 << 30)  # ASKED

kept = weights()
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (64 << 20), resource.RLIM_INFINITY))
try:
    batch()
except RuntimeError as error:
    assert "allocate" in str(error), error
    sys.exit(3)
"""


def line_of(mark: str) -> int:
    return next(at for at, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {mark}"))


def test_a_request_that_the_host_refuses_is_told_with_what_was_alive(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = watch(sys.executable, program)

    assert done.status == 3, done.stderr
    run = Run(done.run)
    names = ["kind", "size", "pool", "device_type", "stack_py"]
    (failed,) = [row for batch in run.events(columns=names, kinds=(Kind.OOM,)) for row in batch.to_pylist()]
    assert (failed["size"], failed["pool"], failed["device_type"]) == (4 << 30, Pool.HOST, DeviceType.CPU)
    summary = json.loads((done.run / "cluster" / "summary.json").read_text())
    (finding,) = (one for one in summary["findings"] if one["kind"] == "out_of_memory")
    assert (Path(finding["file"]).name, finding["line"], finding["bytes"]) == ("program.py", line_of("ASKED"), 4 << 30)
    alive = finding["evidence"]["alive"][0]
    assert (Path(alive["file"]).name, alive["line"]) == ("program.py", line_of("WEIGHTS"))
    assert (alive["bytes"], alive["blocks"]) == (128 * MIB, 8)
    assert finding["evidence"]["cause"]["name"] == "limit"
    assert 0 < finding["evidence"]["cause"]["address_space_limit"] < 1 << 50
    assert "ran out of memory on cpu" in done.stderr


FORECAST = """
import ctypes, resource
import torch
import msmemscope

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
for option, value in ((M_MMAP_THRESHOLD, 64 << 10), (M_ARENA_MAX, 1)):  # no heap of malloc's maps ahead
    assert ctypes.CDLL(None).mallopt(option, value) == 1
kept = []
for step in range(24):
    kept.append(torch.ones(1 << 20))
    if step == 10:
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (400 << 20), resource.RLIM_INFINITY))
    msmemscope.step()
"""


def test_when_a_process_with_a_limit_will_meet_it_is_foreseen_before_anything_is_refused(
    watch: Watch, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(FORECAST)

    done = watch(sys.executable, program)

    assert done.status == 0, done.stderr
    summary = json.loads((done.run / "cluster" / "summary.json").read_text())
    (leak,) = (one for one in summary["findings"] if one["kind"] == "leak")
    assert re.fullmatch(r".+, which may map [\d.]+ GiB in all \(RLIMIT_AS\)", leak["evidence"]["full_on"])
    assert 108 <= leak["evidence"]["full_at_step"] <= 112  # 100 blocks of 4 MiB after step 11


RANKS = """
import os, resource, sys, time
import torch

rank, failed = int(os.environ["RANK"]), sys.argv[1]

def limit():
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (64 << 20), resource.RLIM_INFINITY))

torch.ones(1 << 20).sum()
if rank == 0:
    time.sleep(600)  # waits for its peers, until torchrun ends it
while rank == 2 and not os.path.exists(f"{failed}-1"):
    time.sleep(0.05)
limit()
try:
    torch.empty(1 << 30) if rank == 1 else torch.empty(1 << 29)  # ASKED
finally:
    open(f"{failed}-{rank}", "w").close()
    while not os.path.exists(f"{failed}-2"):  # torchrun ends the others as soon as one has ended
        time.sleep(0.05)
"""


def test_ranks_that_fail_one_after_the_other_are_one_incident(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RANKS)

    done = watch(*torchrun(3, program, tmp_path / "failed"))

    summary = json.loads((done.run / "cluster" / "summary.json").read_text())
    (finding,) = (one for one in summary["findings"] if one["kind"] == "out_of_memory")
    evidence = finding["evidence"]
    assert (finding["ranks"], evidence["first"], finding["bytes"]) == ("1-2", "1", 4 << 30)
    assert [(one["who"], one["asked_bytes"], one["cause"]) for one in evidence["order"]] == [
        ("1", 4 << 30, "limit"),
        ("2", 2 << 30, "limit"),
    ]
    assert list(evidence["ended"]) == ["0"]
    assert "ran out of memory, rank 1 first," in finding["sentence"]


KILLED = """
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
import torch

kept = []
while True:
    kept.append(torch.ones(4 << 20))  # KEPT
"""


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with room for an interpreter with torch and some tensors."""
    place = next((one for one in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if one.is_dir()), None)
    if place is None:
        pytest.skip("no control groups")
    group = place / f"msmemscope-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = next(group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists())
        limit.write_text(str(1 << 30))
    except (OSError, StopIteration) as error:
        pytest.skip(f"no control group with a memory limit can be made: {error}")
    yield group
    deadline = time.monotonic() + LIMIT_S
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.1)


def test_a_process_that_the_kernel_kills_at_its_groups_limit_is_told_with_what_was_alive(
    watch: Watch, tmp_path: Path, memory_group: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED)

    done = watch(sys.executable, program, memory_group)

    assert done.status in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    summary = json.loads((done.run / "cluster" / "summary.json").read_text())
    (finding,) = (one for one in summary["findings"] if one["kind"] == "out_of_memory")
    assert (Path(finding["file"]).name, finding["line"]) == (
        "program.py",
        KILLED.splitlines().index("    kept.append(torch.ones(4 << 20))  # KEPT") + 1,
    )
    alive = finding["evidence"]["alive"][0]
    assert alive["bytes"] == alive["blocks"] * 16 * MIB
    assert 256 * MIB < alive["bytes"] <= 1 << 30
    assert finding["evidence"]["limit"] == 1 << 30
    assert "reached its memory limit of 1.0 GiB" in finding["sentence"]
    assert "by SIGKILL, as its memory group had reached its limit" in done.stderr


NEARLY = """
import os, pathlib, sys, time
group = pathlib.Path(sys.argv[1])
(group / "cgroup.procs").write_text(str(os.getpid()))
import torch
import msmemscope

old = (group / "memory.usage_in_bytes").exists()

def used():
    caches = ("total_inactive_file", "total_active_file") if old else ("inactive_file", "active_file")
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    held = int((group / ("memory.usage_in_bytes" if old else "memory.current")).read_text())
    return held - sum(int(stat[name]) for name in caches)

kept = []
for _ in range(2):
    while used() < 0.96 * (1 << 30):
        kept.append(torch.ones(1 << 20))  # KEPT
    msmemscope.step()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        time.sleep(0.01)
    del kept[len(kept) // 2 :]
    msmemscope.step()
    time.sleep(1)
"""


def test_a_group_that_comes_near_its_limit_twice_is_told_and_nobody_is_killed(
    watch: Watch, tmp_path: Path, memory_group: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(NEARLY)

    done = watch(sys.executable, program, memory_group)

    assert done.status == 0, done.stderr
    summary = json.loads((done.run / "cluster" / "summary.json").read_text())
    assert (summary["near_limit"], summary["out_of_memory"]) == (1, 0)
    (finding,) = (one for one in summary["findings"] if one["kind"] == "near_limit")
    evidence = finding["evidence"]
    assert (evidence["approaches"], evidence["is_near"], evidence["limit"]) == (2, False, 1 << 30)
    assert 0.95 * (1 << 30) <= evidence["used"] <= 1 << 30
    assert finding["processes"] == ["program.py"]
    assert "came near the memory limit of the host" in done.stderr
