"""torch's operators on the CPU: what each call touches, who sees it, and how it comes into upstream's files."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from compilers import needs_observer
from operator_calls import EXPECTED, OF_THE_MODE, STEPS
from running import LIMIT_S, PROGRAMS, environment

from msmemscope.cli import build_torch_ext
from msmemscope.errors import MemscopeError
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

CALLS = Path(__file__).resolve().parents[1] / "operator_calls.py"

TOO_OLD = "is older than 2.3, the oldest whose operators can be recorded"

pytest.importorskip("torch")

PROGRAM = """
import torch
a = torch.ones(256)
b = a.view(16, 16)[2:]
b += 1
"""

COMPILED = """
import torch
from msmemscope import _native

@torch.compile
def region(x, w, count):
    count += 1
    return torch.relu(x @ w) + 1

x, w, count = torch.ones(3, 7), torch.ones(7, 5, requires_grad=True), torch.zeros(11)
region(x, w, count).sum().backward()
_native.configure("sorts=13")  # as --operators inner
region(x, w, count).sum().backward()
"""

FORKING = """
import importlib, os
import torch, msmemscope
a = torch.ones(3) + 1
importlib.reload(msmemscope)
if (child := os.fork()) == 0:
    a * 2
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
a - 1
"""

# A standard deviation makes thirteen inner calls, which the observer has torch leave from its second time on.
PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile

@torch.library.custom_op("memscopetest::made", mutates_args=())
def made(x: torch.Tensor) -> torch.Tensor:
    return torch.full((777,), 2.0)

x = torch.ones(4)
for _ in range(5):
    x.std()
with profile(activities=[ProfilerActivity.CPU]) as profiled:
    for _ in range(5):
        x.std()
        made(x)
print({one.key: one.count for one in profiled.key_averages()}["aten::copy_"])
"""

STEPPING = """
import sys, time, pathlib
import torch, msmemscope
model = torch.nn.Linear(4, 4)
seen, until = pathlib.Path(sys.argv[1]), time.monotonic() + 60
while not list(seen.glob("**/*.so")) and time.monotonic() < until:
    model(torch.ones(2, 4)); msmemscope.step(); time.sleep(0.05)
for _ in range(20):
    model(torch.ones(2, 4)); msmemscope.step(); time.sleep(0.05)
"""


def run_quietly(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@cache
def recorded(way: str) -> dict[str, list[list[str]]]:
    done = run_quietly([sys.executable, str(CALLS), way, "cpu"], environment())
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.xdist_group(f"operators-{way}")) for way in ("observer", "fallback")]
)
def test_a_call_touches_what_it_is_known_to_touch(way: str, name: str) -> None:
    if way == "observer":
        needs_observer()
    assert [tuple(one) for one in recorded(way)[name]] == EXPECTED[name]


def test_both_ways_see_the_same_of_whole_steps() -> None:
    needs_observer()
    seen, by_mode = (
        [one for one in found[STEPS] if not one[0].endswith(OF_THE_MODE)]
        for found in (recorded("observer"), recorded("fallback"))
    )

    assert len(seen) > 500
    assert sum(name.endswith("_backward.default") for name, _ in seen) > 10
    assert by_mode == seen


@cache
def observer() -> Path:
    """The observer for this Python's torch, built if need be."""
    needs_observer()
    done = run_quietly([sys.executable, "-m", "msmemscope", "build-torch-ext"], dict(os.environ))
    assert done.returncode == 0, done.stderr
    return Path(done.stderr.split(": ")[-1].strip())


@pytest.fixture
def compiler(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Variables for an empty cache and a compiler that is a shell script, which notes each of its calls."""

    def make(script: str) -> dict[str, str]:
        path = tmp_path / "compiler"
        path.write_text(f'#!/bin/sh\necho once >> {tmp_path}/calls\nwhile [ "$1" != -o ]; do shift; done\n{script}\n')
        path.chmod(0o755)
        return {"CXX": str(path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    return make


def watched(
    tmp_path: Path, program: str, *words: str | Path, options: tuple[str, ...] = (), **variables: str
) -> tuple[str, Path]:
    """Runs the text `program` under the tool: what the tool said, and its output directory."""
    script = tmp_path / "program.py"
    script.write_text(program)
    output = tmp_path / "out"
    shutil.rmtree(output, ignore_errors=True)
    tool = [sys.executable, "-m", "msmemscope", f"--output-path={output}", *options, "--"]
    done = run_quietly([*tool, sys.executable, str(script), *map(str, words)], environment(**variables))
    assert done.returncode == 0, done.stderr
    return done.stderr, output


def rows(output: Path) -> list[dict[str, str]]:
    (file,) = output.glob("msmemscope_*/device_cpu/dump/*.csv")
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_operators_and_accesses_stand_in_upstreams_file(tmp_path: Path) -> None:
    observer()
    _, output = watched(tmp_path, PROGRAM, options=("--events=alloc,free,launch,access",))

    of_program = [row for row in rows(output) if "program.py" in row["Call Stack(Python)"] or row["Event"] == "MALLOC"]
    operators = [(row["Event Type"], row["Name"]) for row in of_program if row["Event"] == "OP_LAUNCH"]
    assert operators[:2] == [
        ("ATEN_START", "torch._ops.aten.ones.default"),
        ("ATEN_END", "torch._ops.aten.ones.default"),
    ]
    assert [name for kind, name in operators if kind == "ATEN_START"][1:] == [
        "torch._ops.aten.view.default", "torch._ops.aten.slice.Tensor", "torch._ops.aten.add_.Tensor"
    ]  # fmt: skip
    block = next(row for row in of_program if row["Event"] == "MALLOC" and ",size:1024," in row["Attr"])
    whole, part = (row for row in of_program if row["Event"] == "ACCESS")
    number = re.search(r"allocation_id:(\d+)", block["Attr"])
    assert number is not None
    assert (whole["Event Type"], whole["Ptr"]) == ("WRITE", block["Ptr"])
    assert whole["Attr"] == (
        f"{{{number[0]},addr:{block['Ptr'].lower()},size:1024,type:HOST,dtype:torch.float32,shape:torch.Size([256])}}"
    )
    assert int(part["Ptr"], 16) == int(block["Ptr"], 16) + 2 * 16 * 4
    assert f"{number[0]}," in part["Attr"]
    assert part["Attr"].endswith("size:896,type:HOST,dtype:torch.float32,shape:torch.Size([14, 16])}")


def test_a_profiler_of_the_programs_own_sees_all_and_python_in_an_operator_has_its_own_stack(tmp_path: Path) -> None:
    observer()
    script = tmp_path / "program.py"
    script.write_text(PROFILED)
    output = tmp_path / "out"
    options = [f"--output-path={output}", "--events=alloc,free,launch,access"]

    done = run_quietly([sys.executable, "-m", "msmemscope", *options, "--", sys.executable, str(script)], environment())

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "5"
    operators = [row["Name"] for row in rows(output) if row["Event Type"] == "ATEN_START"]
    assert operators.count("torch._ops.aten.std.correction") == 10
    assert not [name for name in operators if "copy_." in name]
    made = [row for row in rows(output) if row["Event"] == "MALLOC" and ",size:3108," in row["Attr"]]
    assert len(made) == 5
    assert all(row["Call Stack(Python)"].split("\n")[0].endswith(": made") for row in made), made


def test_a_torch_that_is_too_old_is_named_and_the_program_runs(tmp_path: Path) -> None:
    directory = tmp_path / "packages" / "torch"
    directory.mkdir(parents=True)
    (directory / "__init__.py").write_text(
        "import types\n__version__ = '2.2.2+cpu'\n_C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=False)\n"
    )
    script, cache_directory = tmp_path / "program.py", tmp_path / "cache"
    script.write_text("import torch, msmemscope\nmsmemscope.step()\nprint(torch.__version__)\n")
    options = [f"--output-path={tmp_path / 'out'}", "--events=alloc,free,launch,access"]
    variables = environment(XDG_CACHE_HOME=str(cache_directory), PYTHONPATH=str(directory.parent))

    done = run_quietly([sys.executable, "-m", "msmemscope", *options, "--", sys.executable, str(script)], variables)

    assert (done.returncode, done.stdout.split()) == (0, ["2.2.2+cpu"]), done.stderr
    assert f"Warning: operators are not recorded: torch 2.2.2+cpu {TOO_OLD}" in done.stderr
    assert not (cache_directory / "msmemscope" / "torch_ext").exists()


@pytest.mark.parametrize("version", ["2.2.2+cpu", "2.2.0a0+git123", "1.13.1"])
def test_no_observer_is_built_for_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))

    with pytest.raises(MemscopeError, match=re.escape(f"torch {version} {TOO_OLD}")):
        build_torch_ext.command.main([], standalone_mode=False)


def test_without_torch_the_builder_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MemscopeError, match=r"^torch cannot be imported .*: run this with the Python of the program$"):
        build_torch_ext.command.main([], standalone_mode=False)


def test_by_default_nothing_is_built_and_no_operator_recorded(tmp_path: Path) -> None:
    cache_directory = tmp_path / "cache"
    said, output = watched(tmp_path, PROGRAM, XDG_CACHE_HOME=str(cache_directory))

    assert "operator" not in said.replace(sys.executable, "").replace(str(tmp_path), "")
    assert not (cache_directory / "msmemscope" / "torch_ext").exists()
    assert {row["Event"] for row in rows(output)} == {"MALLOC", "FREE"}


def collectives(output: Path) -> list[list[tuple[str, int, int, str]]]:
    """Of each rank: group, sequence number, ranks, operator."""
    (path,) = output.glob("run_*")
    run = Run(path)
    run.load_definitions()
    found = []
    for rank in run.ranks:
        events = (row for batch in run.events(rank=rank, kinds=[Kind.COLLECTIVE]) for row in batch.to_pylist())
        found.append([(run.string(e["ptr"]), e["attr"], e["aux"], run.string(e["name"])) for e in events])
    return found


@pytest.mark.parametrize("way", ["observer", pytest.param("fallback", marks=pytest.mark.long)])
def test_a_collective_has_the_same_number_on_all_ranks(
    way: str, tmp_path: Path, compiler: Callable[[str], dict[str, str]]
) -> None:
    """Also where one of them began recording later."""
    variables = {}
    if way == "observer":
        observer()
    else:
        variables = compiler('echo "error: none"; exit 1')
        run_quietly([sys.executable, "-m", "msmemscope", "build-torch-ext"], os.environ | variables)
    program = PROGRAMS / "collectives.py"
    _, output = watched(tmp_path, program.read_text(), "cpu", options=("--events=launch",), **variables)

    first, second = collectives(output)

    assert first[1:] == second
    assert [name.removeprefix("torch._ops.") for *_, name in first] == [
        "c10d.allreduce_.default", "c10d.broadcast_.default", "c10d.allreduce_.default",
        "c10d._allgather_base_.default", "_c10d_functional.all_reduce.default", "c10d.allreduce_.default",
        "c10d.barrier.default",
    ]  # fmt: skip
    assert {ranks for _, _, ranks, _ in first} == {2}
    world, other = first[0][0], first[2][0]
    assert [group for group, *_ in first] == [world, world, other, world, other, world, world]
    assert world != other
    numbers = {group: [number for name, number, *_ in first if name == group] for group in (world, other)}
    assert numbers == {world: [1, 2, 3, 5, 6], other: [1, 2]}  # gloo counts what is sent and received, too


@pytest.mark.long
def test_what_was_compiled_is_one_operator_with_its_tensors(tmp_path: Path) -> None:
    observer()
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    _, output = watched(tmp_path, COMPILED, options=("--events=launch,access",), **variables)
    found = [row for row in rows(output) if "program.py" in row["Call Stack(Python)"]]

    whole = within(found, "torch.compile.graph_0.forward")
    assert [(row["Event Type"], row["Attr"].partition(",shape:")[2]) for row in whole] == [
        ("WRITE", "torch.Size([11])}"), ("READ", "torch.Size([3, 7])}"), ("READ", "torch.Size([7, 5])}"),
        ("WRITE", "torch.Size([3, 5])}"), ("WRITE", "torch.Size([3, 5])}"),  # and what its backward wants to know
    ]  # fmt: skip
    assert {row["Event"] for row in within(found, "torch.compile.graph_0.backward")} == {"ACCESS"}
    assert "torch._ops.aten.mm.out" in {
        row["Name"] for row in within(found[found.index(whole[-1]) + 1 :], "torch.compile.graph_0.forward")
    }


def within(found: list[dict[str, str]], operator: str) -> list[dict[str, str]]:
    """The rows between the first beginning of an operator and its end."""
    names = [(row["Name"], row["Event Type"]) for row in found]
    at = names.index((operator, "ATEN_START"))
    return found[at + 1 : names.index((operator, "ATEN_END"), at)]


def test_a_forked_child_and_a_reloaded_module_go_on_recording(tmp_path: Path) -> None:
    observer()
    _, output = watched(tmp_path, FORKING, options=("--events=launch",))

    files = [file.read_text() for file in output.glob("msmemscope_*/device_cpu/dump/*.csv")]
    (parent,) = (text for text in files if "aten.sub.Tensor" in text)
    (child,) = (text for text in files if "aten.mul.Tensor" in text)
    assert "aten.add.Tensor" in parent
    assert "aten.add.Tensor" not in child
    assert "aten.sub.Tensor" not in child


def test_a_block_knows_the_operator_that_allocated_it(tmp_path: Path) -> None:
    observer()
    _, output = watched(tmp_path, "import torch\nkept = torch.ones(300) * 2\n", options=("--events=launch",))
    (path,) = output.glob("run_*")
    run = Run(path)
    run.load_definitions()
    found = pq.read_table(path / "blocks", columns=["size", "op"]).to_pylist()

    assert {run.string(row["op"]) for row in found if 1200 <= row["size"] < 1300} == {
        "torch._ops.aten.ones.default", "torch._ops.aten.mul.Tensor"
    }  # fmt: skip


def test_an_observer_that_is_built_meanwhile_is_used_from_then_on(
    tmp_path: Path, compiler: Callable[[str], dict[str, str]]
) -> None:
    variables = compiler(f'cp {observer()} "$2"')
    said, output = watched(tmp_path, STEPPING, tmp_path / "cache", options=("--events=launch",), **variables)

    assert "their observer is being built" in said
    (step,) = set(re.findall(r"they are recorded from step (\d+) on", said))  # at once, and in the summary
    (run,) = output.glob("run_*")
    told = json.loads((run / "run.json").read_text())
    assert f"recorded from step {step} on" in json.dumps(told)
    assert {row["Name"] for row in rows(output) if row["Event"] == "OP_LAUNCH"} >= {"torch._ops.aten.addmm.default"}
    assert (tmp_path / "calls").read_text() == "once\n"


def test_without_a_compiler_the_slow_way_is_taken_and_says_what_it_costs(
    tmp_path: Path, compiler: Callable[[str], dict[str, str]]
) -> None:
    variables = compiler('echo "a.h:1: error: no such thing"; exit 1')
    refused = run_quietly([sys.executable, "-m", "msmemscope", "build-torch-ext"], os.environ | variables)
    assert refused.returncode == 4
    assert "error: no such thing" in refused.stderr

    said, output = watched(tmp_path, PROGRAM, options=("--level=op",), **variables)

    assert "error: no such thing" in said
    assert "2 to 5 times as long" in said
    assert "torch._ops.aten.add_.Tensor" in {row["Name"] for row in rows(output)}


def test_of_several_processes_one_builds(tmp_path: Path, compiler: Callable[[str], dict[str, str]]) -> None:
    variables = compiler(f'sleep 0.3; cp {observer()} "$2"')
    command = [sys.executable, "-m", "msmemscope", "build-torch-ext"]
    builders = [
        subprocess.Popen(command, env=os.environ | variables, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [builder.communicate(timeout=LIMIT_S)[1] for builder in builders]

    assert [builder.returncode for builder in builders] == [0, 0, 0], said
    assert (tmp_path / "calls").read_text() == "once\n"
