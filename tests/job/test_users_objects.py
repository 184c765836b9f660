"""Nothing of ours hangs on what belongs to the program: all it does with models and optimizers goes as without us."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from running import LIMIT_S, Watch, environment, forked_ranks, run_tool

of_one_program = pytest.mark.xdist_group("kinds of one program")

START = """
import copy, gc, io, os, pickle, sys, weakref
gc.disable()
import torch, torch._dynamo
gc.freeze()  # what is imported is gone through by no collection of a child
gc.enable()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

def train(model, optimizer, steps=2, dtype=torch.float32):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8, dtype=dtype)).square().mean().backward()
        optimizer.step()

def show(model):
    print(sum(float(p.double().sum()) for p in model.parameters()))

train(model, optimizer)
"""

KINDS = {
    # torch swaps no tensor that somebody has a weak reference to.
    "swap": """
torch.__future__.set_swap_module_params_on_conversion(True)
model.to(torch.float64)
for state in optimizer.state.values():
    for name, value in state.items():
        state[name] = value.to(torch.float64)
train(model, optimizer, dtype=torch.float64)
""",
    "attributes": """
print(sorted(vars(optimizer)), sorted(optimizer.param_groups[0]))
for one in (model, *model.modules(), optimizer, *model.parameters()):
    # An optimizer's own hook is on its profiler; torch itself refers to neither weakly.
    print(type(one).__name__, weakref.getweakrefcount(one), sorted(getattr(one, "__dict__", ())))
    for name in ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks", "_forward_hooks", "_backward_hooks"):
        print(len(getattr(one, name, None) or ()))
""",
    "deepcopy": """
twin, its = copy.deepcopy((model, optimizer))
train(twin, its)
show(twin)
""",
    "pickle": """
twin, its = pickle.loads(pickle.dumps((model, optimizer)))
train(twin, its)
show(twin)
file = io.BytesIO()
torch.save({"model": model, "optimizer": optimizer.state_dict()}, file)
file.seek(0)
twin = torch.load(file, weights_only=False)["model"]
show(twin)
print(file.getbuffer().nbytes)
""",
    "compile": """
import torch._dynamo
@torch.compile(backend="eager")
def step():
    optimizer.step()
compiled = torch.compile(model, backend="eager")
for _ in range(3):
    optimizer.zero_grad()
    compiled(torch.ones(4, 8)).square().mean().backward()
    step()
print({reason.split("Developer")[0]: n for reason, n in torch._dynamo.utils.counters["graph_break"].items()})
print(dict(torch._dynamo.utils.counters["stats"]))
""",
    # A class that compares in its own way has no hash, unless it says one.
    "classes": """
class ByName(type):
    def __eq__(self, other):
        return isinstance(other, type) and self.__name__ == other.__name__

class Layer(torch.nn.Linear, metaclass=ByName):
    pass

model.append(Layer(1, 1))
optimizer.add_param_group({"params": list(model[-1].parameters())})
train(model, optimizer, steps=20)  # behind the 10th all modules are asked
""",
}

SHARDED = """
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.__future__.set_swap_module_params_on_conversion(True)
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2,))
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(2)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for iteration in range(4):
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    # What module.to() of another device does when parameters are offloaded: every DTensor is swapped.
    model._apply(lambda tensor: tensor.clone())
total = sum(float(p.full_tensor().sum()) for p in model.parameters())
if dist.get_rank() == 0:
    print(type(next(model.parameters()).data).__name__, total)
dist.destroy_process_group()
"""


def plain(argv: list[str | Path]) -> tuple[int, str, str]:
    done = subprocess.run(
        list(map(str, argv)), env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True)
class Both:
    """What the program said of each kind, without us and with us, and all that stood on stderr with us."""

    plain: dict[str, str]
    watched: dict[str, str]
    stderr: str


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Each kind in a forked child of one program: it goes on from what that has trained."""
    place = tmp_path_factory.mktemp("kinds")
    program = place / "program.py"
    program.write_text(START + "".join(in_a_child(kind) for kind in KINDS))
    status, stdout, stderr = plain([sys.executable, program])
    assert status == 0, stderr

    watched = run_tool(
        place / "out", [sys.executable, program], ["--analysis", "leaks,decompose"], 2 * LIMIT_S
    )  # looks at all

    assert watched.status == 0, watched.stderr
    assert "in steps 0-" in watched.stderr  # its steps were seen
    return Both(by_kind(stdout), by_kind(watched.stdout), watched.stderr)


def in_a_child(kind: str) -> str:
    work = textwrap.indent(KINDS[kind] + f"show(model)\nprint('END of {kind}', flush=True)\nsys.exit()\n", "    ")
    return f"""
if (child := os.fork()) == 0:
{work}
assert os.waitpid(child, 0)[1] == 0
"""


def by_kind(stdout: str) -> dict[str, str]:
    texts = re.split(r"END of (\w+)\n", stdout)
    return dict(zip(texts[1::2], texts[::2], strict=False))


@of_one_program
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_sees_its_objects_as_without_us(both: Both, kind: str) -> None:
    assert both.plain[kind]
    assert both.watched[kind] == both.plain[kind]


@of_one_program
def test_the_compiler_has_nothing_to_say_of_us(both: Both) -> None:
    """It says what it cannot do once."""
    assert "msmemscope" not in "".join(line for line in both.stderr.splitlines() if "arning" in line)


def test_sharded_parameters_can_be_moved_after_a_step(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "sharded.py"
    program.write_text(SHARDED)
    argv = forked_ranks(2, program)
    status, stdout, stderr = plain(argv)
    assert status == 0, stderr

    watched = watch(*argv)

    assert (watched.status, watched.stdout) == (0, stdout), watched.stderr
    assert "in steps 0-4" in watched.stderr


def test_a_fault_of_ours_does_not_reach_the_optimizer(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    fault = """
class Groups(list):
    def __iter__(self):
        import sys
        if "steps.py" in sys._getframe(1).f_code.co_filename:
            raise RuntimeError("nobody iterates here")
        return super().__iter__()
optimizer.param_groups = Groups(optimizer.param_groups)
train(model, optimizer)
show(model)
"""
    program.write_text(START + fault)
    _, stdout, _ = plain([sys.executable, program])

    watched = watch(sys.executable, program)

    assert (watched.status, watched.stdout) == (0, stdout), watched.stderr
    assert watched.stderr.count("steps of optimizers are not counted: RuntimeError('nobody iterates here')") == 1
