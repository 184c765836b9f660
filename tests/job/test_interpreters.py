"""Every Python that is found beside the one in use: the native module is built for it, and a program in it has the
right stacks and steps. The frames that the walk reads are laid out differently in each version.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pybind11
import pytest
from running import LIMIT_S, ROOT, Watch
from test_python_trace import PROGRAM as PROGRAM_OF_TRACE
from test_python_trace import check_calls

from msmemscope.collect.session import hook_library
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind, Pool

# Those that pyproject.toml and module/python_frames.c know.
# The native module is compiled for each but the one in use.
IN_USE = sys.version_info.minor
MINORS = [
    pytest.param(minor, id=f"3.{minor}", marks=[] if minor == IN_USE else [pytest.mark.long])
    for minor in (10, 11, 12, 13, 14)
]

# Allocates in all sorts of frames, and writes down the interpreter's own view of each stack.
PROGRAM = """
import ctypes, json, sys
import msmemscope

runtime = ctypes.CDLL(sys.argv[1])
seen = []

def own_view():
    frame, rows = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        rows.append([code.co_filename, getattr(code, "co_qualname", code.co_name), frame.f_lineno])
        frame = frame.f_back
    return rows

def allocate():
    block = ctypes.c_void_p()
    seen.append(own_view()); runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(64))

class Layer:
    def forward(self, depth):
        if depth:
            return self.forward(depth - 1)
        (lambda: allocate())()

    @property
    def weight(self):
        allocate()

def batches():
    for number in range(2):
        allocate()
        yield number

def in_handler():
    try:
        raise ValueError
    except ValueError:
        for _ in map(lambda _: allocate(), range(1)):
            pass

async def coroutine():
    allocate()

for iteration in range(8):
    allocate()
    Layer().forward(20)
    Layer().weight
    list(batches())
    [allocate() for _ in range(2)]
    in_handler()
    exec("allocate()", {"allocate": allocate})
    for number in range(5):  # code that lies where other code lay, at the same instruction
        exec(compile("allocate()", f"made_{number}.py", "exec"), {"allocate": allocate})
    try:
        coroutine().send(None)
    except StopIteration:
        pass
    msmemscope.step()
print(json.dumps({"version": sys.version_info[:2], "seen": seen}))
"""

QUESTION = """
import os, sys, sysconfig
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print(sys.version_info[1], headers, bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
"""


def interpreter(minor: int) -> Path:
    """An interpreter of Python 3.`minor` with its headers, or a skip that says why there is none."""
    if minor == IN_USE:
        pytest.skip("the one in use: test_python_trace.py is about it")
    versions = (Path(sys.base_prefix).parent, Path.home() / ".pyenv/versions")
    places = [place for directory in versions for place in directory.glob(f"3.{minor}.*/bin")]
    places += [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place and "shims" not in place]
    for place in places:
        found = place / f"python3.{minor}"
        if found.exists():
            answer = subprocess.run([found, "-c", QUESTION], capture_output=True, text=True, check=False)
            if answer.stdout.split() == [str(minor), "True", "False"]:
                return found
    return pytest.skip(f"no Python 3.{minor} with headers beside the one in use")


def build(python: Path, minor: int) -> Path:
    """The native module for that interpreter and the preload library in use. Kept in build/; made again when a source
    is newer. Tests that run at the same time wait for one another: they share the directory."""
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no CMake and Ninja")
    directory = ROOT / f"build/interpreters/3.{minor}"
    options = {
        "CMAKE_BUILD_TYPE": "Unoptimised",  # compiles in half the time; speed is not the question
        "MEMSCOPE_HOOK_LIBRARY": hook_library(),
        "Python_EXECUTABLE": python,
        "pybind11_DIR": pybind11.get_cmake_dir(),
    }
    arguments = [f"-D{name}={value}" for name, value in options.items()]
    log = ""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            ["cmake", "-S", ROOT, "-B", directory, "-G", "Ninja", *arguments],
            ["cmake", "--build", directory, "--target", "_native"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * LIMIT_S)
            log += done.stdout + done.stderr
            assert done.returncode == 0, log
    (module,) = (directory / "native").glob(f"_native.cpython-3{minor}-*.so")
    return module


def package(directory: Path, module: Path) -> Path:
    """The package as it would be installed for that interpreter, below `directory`."""
    inside = directory / "msmemscope"
    inside.mkdir(parents=True)
    for entry in (ROOT / "msmemscope").iterdir():
        if entry.suffix != ".so" and entry.name != "__pycache__":
            (inside / entry.name).symlink_to(entry)
    (inside / module.name).symlink_to(module)
    (inside / Path(hook_library()).name).symlink_to(hook_library())
    return directory


@pytest.mark.parametrize("minor", MINORS)
def test_stacks_and_steps_are_right(watch: Watch, tmp_path: Path, minor: int) -> None:
    python, packages = Path(sys.executable), ROOT
    if minor != IN_USE:
        python = interpreter(minor)
        packages = package(tmp_path / "packages", build(python, minor))
    runtime = tmp_path / "libcudart.so"
    subprocess.run(
        ["c++", "-shared", "-fPIC", ROOT / "tests/native/fake_cudart.cpp", "-o", runtime], check=True, timeout=LIMIT_S
    )
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    outcome = watch(python, program, runtime, PYTHONPATH=str(packages), PYTHONDONTWRITEBYTECODE="1")

    assert outcome.status == 0, outcome.stderr
    assert not re.search("[Ww]arning", outcome.stderr), outcome.stderr
    said = json.loads(outcome.stdout)
    assert said["version"] == [3, minor]
    run = Run(outcome.run)
    recorded, steps = [], []
    for batch in run.events(columns=["kind", "pool", "step", "stack_py"]):
        steps += batch.filter(pc.equal(batch.column("kind"), int(Kind.STEP))).column("step").to_pylist()
        blocks = batch.filter(pc.equal(batch.column("pool"), int(Pool.CUDA_DRIVER)))
        for stack in blocks.filter(pc.equal(blocks.column("kind"), int(Kind.MALLOC))).column("stack_py").to_pylist():
            recorded.append([[frame.file, frame.function, frame.line] for frame in run.stack(stack)])
    assert len(recorded) == 8 * 15
    for found, own in zip(recorded, said["seen"], strict=True):
        assert found == own[:32]  # as many as --call-stack keeps
    assert steps == [*range(2, 10)]


@pytest.mark.parametrize("minor", MINORS)
def test_every_call_is_traced(watch: Watch, tmp_path: Path, minor: int) -> None:
    """By the profile function up to 3.11, by sys.monitoring from 3.12 on."""
    python = interpreter(minor)
    packages = package(tmp_path / "packages", build(python, minor))

    outcome = watch(python, PROGRAM_OF_TRACE, PYTHONPATH=str(packages), PYTHONDONTWRITEBYTECODE="1")

    assert not re.search("[Ww]arning", outcome.stderr), outcome.stderr
    check_calls(outcome)
