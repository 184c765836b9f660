"""The pools of the real torch_npu, seen by a program that only says `import msmemscope`.

Nothing is preloaded and no variable is set from outside, unless a test says so. The truth is what torch.npu itself says
after each step, printed with the time by the program.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from patience import LIMIT_S
from simulated import OnNpu

from msmemscope.collect.session import hook_library
from msmemscope.tables.run import Run
from msmemscope.vocabulary import UNKNOWN, Flag, Kind, Pool, StepSource

COMMAND = Path(__file__).resolve().parents[2] / "packaging" / "msmemscope"

# Tensors from before start(), a training loop, and an end that frees everything. {…}: where msmemscope is imported.
PROGRAM = """
import json, os, sys, time
{first}
import torch
import torch_npu
{second}
device = torch.device("npu:0")
begun = time.monotonic_ns()
kept = torch.empty(1 << 20, device=device)
gone = torch.empty(1 << 10, device=device)
del gone
torch.npu.synchronize()
before = torch.npu.memory_allocated()
import msmemscope
msmemscope.config(output_path=sys.argv[1], analysis="leaks")
started = time.monotonic_ns()
msmemscope.start()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
steps = []
for _ in range(4):
    loss = model(torch.randn(32, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
    torch.npu.synchronize()
    steps.append((time.monotonic_ns(), torch.npu.memory_allocated(), torch.npu.memory_reserved()))
    msmemscope.step()
print(json.dumps(dict(begun=begun, before=before, started=started, steps=steps, kept=kept.data_ptr())))
"""


@dataclass(frozen=True)
class Event:
    kind: int
    ts: int
    device: int
    pool: int
    ptr: int
    size: int
    used: int
    total: int
    flags: int
    attr: int
    aux: int


@dataclass(frozen=True)
class Outcome:
    stdout: str
    stderr: str
    run: Run

    @property
    def said(self) -> dict[str, object]:
        return dict(json.loads(self.stdout.splitlines()[-1]))

    def events(self, *kinds: Kind) -> list[Event]:
        """In the order of their times."""
        names = list(Event.__dataclass_fields__)
        rows = [Event(**row) for batch in self.run.events(columns=names, kinds=kinds) for row in batch.to_pylist()]
        return sorted(rows, key=lambda event: event.ts)

    def pool(self, pool: Pool) -> list[Event]:
        return [event for event in self.events(Kind.MALLOC, Kind.FREE) if event.pool == pool]


Watched = Callable[..., Outcome]


@pytest.fixture
def watched(on_npu: OnNpu, tmp_path: Path) -> Watched:
    """Runs a program to its end, and waits for what is made of its events."""

    def run(program: str, *command: str, status: int = 0, **environment: str) -> Outcome:
        script, output = tmp_path / "program.py", tmp_path / "out"
        script.write_text(program, encoding="utf-8")
        variables = {"TASK_QUEUE_ENABLE": "0", **environment}
        done = on_npu(script, output, under=command or (sys.executable,), **variables)
        assert done.returncode == status, done.stderr
        return Outcome(done.stdout, done.stderr, Run(finished_run(output)))

    return run


def finished_run(output: Path) -> Path:
    """The services of library mode finish by themselves, after the program has ended."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for info in output.glob("run_*/run.json"):
            if json.loads(info.read_text(encoding="utf-8"))["finished"]:
                return info.parent
        time.sleep(0.1)  # polled, with a deadline
    return pytest.fail(f"no finished run below {output}: {list(output.rglob('*'))}")


def check_against_torch(outcome: Outcome) -> None:
    """The sum over the records, and what each record says itself, are torch's own numbers at the end of each step."""
    blocks = outcome.pool(Pool.PTA)
    assert {event.device for event in blocks} == {0}
    said = outcome.said
    steps = said["steps"]
    assert isinstance(steps, list)
    assert len(steps) == 4
    for ts, allocated, reserved in steps:
        so_far = [event for event in blocks if event.ts <= ts]
        assert sum(event.size if event.kind == Kind.MALLOC else -event.size for event in so_far) == allocated
        assert so_far[-1].used == allocated
        assert so_far[-1].total == reserved
    # Every FREE has its MALLOC with the same size, and no address is handed out twice.
    alive: dict[int, int] = {}
    for event in blocks:
        if event.kind == Kind.MALLOC:
            assert event.ptr not in alive
            alive[event.ptr] = event.size
        else:
            assert alive.pop(event.ptr) == event.size
        if event.used != UNKNOWN:
            assert event.used == sum(alive.values())


def check_history(outcome: Outcome) -> None:
    """The tensor from before start() is there, marked, at its true time; the one that had gone is not."""
    said = outcome.said
    early = [event for event in outcome.pool(Pool.PTA) if event.ts < int(str(said["started"]))]
    assert [(event.kind, event.ptr, event.size) for event in early] == [(Kind.MALLOC, said["kept"], said["before"])]
    assert early[0].ts > int(str(said["begun"]))
    assert early[0].flags & Flag.SHADOW


@pytest.mark.parametrize("queue", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_imported_before_torch(watched: Watched, queue: str) -> None:
    outcome = watched(PROGRAM.format(first="import msmemscope", second=""), TASK_QUEUE_ENABLE=queue)
    check_history(outcome)
    check_against_torch(outcome)
    assert "LD_PRELOAD detected" not in outcome.stderr  # torch_npu has not changed how it finds CANN's functions
    # The queue of level 2 takes its workspaces from a pool of their own.
    assert bool(outcome.pool(Pool.PTA_WORKSPACE)) == (queue == "2")


def test_imported_after_torch_npu_and_before_its_first_allocation(watched: Watched) -> None:
    outcome = watched(PROGRAM.format(first="", second="import msmemscope"))
    check_history(outcome)
    check_against_torch(outcome)


def test_a_script_for_upstream_in_a_shell_that_sourced_the_command(watched: Watched, tmp_path: Path) -> None:
    """The import comes after the first allocation: too late for a late attach, but everything is preloaded."""
    command = tmp_path / "msmemscope"
    rest = COMMAND.read_text(encoding="utf-8").partition("\n")[2]
    command.write_text(f"#!{sys.executable}\n{rest}", encoding="utf-8")
    shell = f'source {command} --load-api-env && exec {sys.executable} "$@"'
    outcome = watched(PROGRAM.format(first="", second=""), "bash", "-c", shell, "bash")
    check_history(outcome)
    check_against_torch(outcome)


def test_launched_under_watch_nothing_changes(watched: Watched, tmp_path: Path) -> None:
    """Everything is recorded from the start, and neither variable is touched."""
    program = PROGRAM.format(
        first="preload = os.environ['LD_PRELOAD']",
        second="assert (os.environ['LD_PRELOAD'], os.environ.get('MSTX_INJECTION_PATH')) == (preload, None)",
    )
    launched = [sys.executable, "-m", "msmemscope", f"--output-path={tmp_path / 'out'}", "--", sys.executable]
    outcome = watched(program, *launched)
    check_against_torch(outcome)
    before = [event for event in outcome.pool(Pool.PTA) if event.ts < int(str(outcome.said["started"]))]
    assert [event.kind for event in before] == [Kind.MALLOC, Kind.MALLOC, Kind.FREE]
    assert not any(event.flags & Flag.SHADOW for event in before)


def test_what_is_exported_and_what_is_not(on_npu: OnNpu) -> None:
    """The variables appear with torch_npu, not with torch or the package, and keep what was there."""
    program = """
import os, sys
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import msmemscope
names = ("LD_PRELOAD", "MSTX_INJECTION_PATH")
seen = [[os.environ.get(name) for name in names]]
import torch
seen.append([os.environ.get(name) for name in names])
import torch_npu
seen.append([os.environ.get(name) for name in names])
print(seen)
"""
    done = on_npu("-c", program, LD_PRELOAD="/lib/not-there.so")
    assert done.returncode == 0, done.stderr
    library = hook_library()
    other = "/lib/not-there.so"
    assert done.stdout.strip() == str([[other, None], [other, None], [f"{library}:{other}", library]])


def test_another_tool_in_the_place_is_left_there_and_said(watched: Watched) -> None:
    libc = "libc.so.6"  # a library without the symbol: mstx finds no tool in it
    program = PROGRAM.format(first="import msmemscope", second="") + (
        "import os; assert os.environ['MSTX_INJECTION_PATH'] == 'libc.so.6'\n"
    )
    outcome = watched(program, MSTX_INJECTION_PATH=libc)
    assert outcome.stderr.count("MSTX_INJECTION_PATH names libc.so.6") == 1
    assert outcome.pool(Pool.PTA) == []


def test_a_request_that_fails(watched: Watched) -> None:
    program = PROGRAM.format(first="import msmemscope", second="") + (
        "try:\n    torch.empty(200 << 30, dtype=torch.uint8, device=device)\n"
        "except torch.OutOfMemoryError:\n    print(json.dumps(dict(allocated=torch.npu.memory_allocated())))\n"
    )
    outcome = watched(program)
    (failed,) = [event for event in outcome.events(Kind.OOM) if event.pool == Pool.PTA]
    assert (failed.device, failed.size) == (0, 200 << 30)
    assert failed.used == outcome.said["allocated"]


def test_steps_by_mstx_ranges(watched: Watched) -> None:
    """`step start` ranges, each with a nested range that ends before it."""
    program = """
import ctypes, os, sys
import msmemscope, torch, torch_npu
mstx = ctypes.CDLL(os.path.join(os.environ["ASCEND_HOME_PATH"], "lib64", "libms_tools_ext.so"))
mstx.mstxRangeStartA.restype = ctypes.c_uint64
def begin(text): return ctypes.c_uint64(mstx.mstxRangeStartA(text, None))
early = begin(b"step start")  # not recorded, and its end does no harm
msmemscope.config(output_path=sys.argv[1])
msmemscope.start()
for _ in range(3):
    step, forward = begin(b"step start"), begin(b"forward")
    block = torch.empty(1 << 20, device="npu:0")
    mstx.mstxRangeEnd(forward)
    mstx.mstxMarkA(b"a mark", None)
    del block
    mstx.mstxRangeEnd(step)
mstx.mstxRangeEnd(early)
"""
    outcome = watched(program)
    assert [(event.attr, event.aux) for event in outcome.events(Kind.STEP)] == [
        (number, StepSource.MSTX) for number in (1, 2, 3)
    ]
    ranges = outcome.events(Kind.RANGE_START, Kind.RANGE_END)
    by_id = defaultdict(list)
    for event in ranges:
        by_id[event.attr].append((Kind(event.kind), event.aux))
    steps = [(Kind.RANGE_START, 1), (Kind.RANGE_END, 1)]
    others = [(Kind.RANGE_START, 0), (Kind.RANGE_END, 0)]
    assert list(by_id.values()) == [steps, others] * 3 + [[(Kind.RANGE_END, 0)]]
    assert len(outcome.events(Kind.MARK)) == 3
