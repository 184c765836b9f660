"""Python processes that import no framework we wait for: CuPy, JAX, numba, plain ctypes on the CUDA runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest
from built_once import built_once
from compilers import cxx_compiler, shared_library
from running import LIMIT_S, PROGRAMS, ROOT, Outcome, Watch, environment

from msmemscope.collect.session import Session, hook_library
from msmemscope.options.declared import Config
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind, Pool

CTYPES = """
import ctypes, sys
import msmemscope

runtime = ctypes.CDLL(sys.argv[1])

def allocate(bytes):
    block = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(bytes)) == 0  # HERE
    return block

for _ in range(16):
    runtime.cudaFree(allocate(8192))
    allocate(4096)
    msmemscope.step()
print("torch" in sys.modules)
"""

FRAMEWORK = """
import ctypes, sys

framework = ctypes.CDLL(sys.argv[2])
start, allocate = framework.framework_start, framework.framework_allocate
assert start(sys.argv[1].encode(), ctypes.c_size_t(100)) == 0
for _ in range(5):
    assert allocate(ctypes.c_size_t(200)) == 0  # HERE
print("msmemscope.collect.rank.attach" in sys.modules)
"""

STEPS_ALONE = """
import msmemscope
for _ in range(5):
    msmemscope.step()
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The stand-ins for the CUDA runtime and for a framework."""
    sources = (ROOT / "tests/native/fake_cudart.cpp", PROGRAMS / "without_torch/framework.cpp")
    compiler = cxx_compiler("a stand-in for the CUDA runtime")

    def build(place: Path) -> Path:
        for source in sources:
            shared_library(compiler, source, place / f"lib{source.stem}.so", "-pthread")
        return place

    place = built_once(tmp_path_factory, "without_torch", build)
    runtime, framework = (place / f"lib{source.stem}.so" for source in sources)
    return runtime, framework


def blocks_by_stack(outcome: Outcome) -> list[tuple[int, list[int]]]:
    """(size, lines of the program's frames, innermost first) of every block of the runtime, in order."""
    run = Run(outcome.run)
    found = []
    for batch in run.events(columns=["kind", "pool", "size", "stack_py"], kinds=(Kind.MALLOC,)):
        of_runtime = batch.filter(pc.equal(batch.column("pool"), int(Pool.CUDA_DRIVER)))
        for row in of_runtime.to_pylist():
            frames = run.stack(row["stack_py"]) if row["stack_py"] else ()
            found.append((row["size"], [frame.line for frame in frames if frame.file.endswith("program.py")]))
    return found


def line_of(text: str) -> int:
    return text[: text.index("# HERE")].count("\n") + 1


def test_ctypes_alone_has_stacks_and_steps(watch: Watch, tmp_path: Path, libraries: tuple[Path, Path]) -> None:
    program = tmp_path / "program.py"
    program.write_text(CTYPES)

    outcome = watch(sys.executable, program, libraries[0])

    assert (outcome.status, outcome.stdout) == (0, "False\n"), outcome.stderr
    blocks = blocks_by_stack(outcome)
    assert [size for size, _ in blocks] == [8192, 4096] * 16
    assert {lines[0] for _, lines in blocks} == {line_of(CTYPES)}  # the first one too
    assert "4.0 KiB per step is kept from program.py" in outcome.stderr
    assert "events in steps 0-16" in outcome.stderr


def test_a_runtime_that_a_framework_opens_by_itself(watch: Watch, tmp_path: Path, libraries: tuple[Path, Path]) -> None:
    """Its own thread's block has no Python stack, nor could it; what Python asks for from then on has."""
    program = tmp_path / "program.py"
    program.write_text(FRAMEWORK)

    outcome = watch(sys.executable, program, *libraries)

    assert (outcome.status, outcome.stdout) == (0, "True\n"), outcome.stderr
    line = line_of(FRAMEWORK)
    assert blocks_by_stack(outcome) == [(100, []), *[(200, [line])] * 5]


def test_an_interpreter_of_another_installation_takes_our_package_and_not_the_users(
    tmp_path: Path, libraries: tuple[Path, Path]
) -> None:
    """The preloaded library alone brings it; a folder of ours may lie beside her script."""
    package = tmp_path / "site/msmemscope"
    shutil.copytree(ROOT / "msmemscope", package)
    for built in Path(hook_library()).parent.glob("*.so"):
        shutil.copy(built, package)
    (tmp_path / "msmemscope").mkdir()
    (tmp_path / "msmemscope/__init__.py").write_text("print('hers')\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import ctypes, sys\n"
        "block = ctypes.c_void_p()\n"
        "ctypes.CDLL(sys.argv[1]).cudaMalloc(ctypes.byref(block), ctypes.c_size_t(64))\n"
        "print(sys.modules['msmemscope.collect.rank.bootstrap'].__file__, *sys.path[:1])\n"
    )
    session = Session.create(Config(output_path=str(tmp_path / "out")), ["program.py"], mode="launched")
    try:
        environment = os.environ | session.environment() | {"LD_PRELOAD": str(package / Path(hook_library()).name)}
        done = subprocess.run(
            [sys.executable, "-S", program, libraries[0]], env=environment, capture_output=True, text=True, check=True
        )
    finally:
        os.close(session.owner)
        shutil.rmtree(session.directory)
    assert done.stdout.split() == [str(package / "collect/rank/bootstrap.py"), str(tmp_path)], done.stderr


def test_steps_of_a_program_that_allocates_nothing_we_know(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STEPS_ALONE)

    outcome = watch(sys.executable, program)

    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    steps = [n for batch in run.events(columns=["step"], kinds=(Kind.STEP,)) for n in batch.column("step").to_pylist()]
    assert steps == [2, 3, 4, 5, 6]


def test_a_start_that_nobody_called_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "msmemscope", "--output-path", str(tmp_path / "out"), "--collect-mode=deferred", "true"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert "with --collect-mode deferred nothing is before the program calls msmemscope.start()" in done.stderr
    assert not (tmp_path / "out").exists()


WHAT_NEEDS_TORCH = """
import ctypes, sys
sys.modules["torch"] = None  # as where it is not installed
import msmemscope
from msmemscope.describe import describer

with describer(owner="mine"), msmemscope.RecordFunction("range"), msmemscope.TakeSnapshot(name="both"):
    pass
msmemscope.tracer.start()
msmemscope.tracer.stop()
block = ctypes.create_string_buffer(64)
address = ctypes.addressof(block)
for call in (
    lambda: describer(object(), owner="mine"),
    lambda: describer(address, owner="mine"),
    lambda: msmemscope.watcher.watch(object(), name="block"),
    lambda: msmemscope.watcher.watch(address, length=64, name="block"),
    lambda: msmemscope.watcher.remove(address, length=64),
    lambda: msmemscope.take_snapshot(),
    lambda: msmemscope.init_framework_hooks("pytorch", "2.6+", "fsdp1", "decompose"),
    lambda: msmemscope.step(),
):
    try:
        call()
        print("done")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_what_needs_torch_says_so_or_does_nothing(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WHAT_NEEDS_TORCH)

    done = watch(sys.executable, program)

    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == [
        "TypeError: describer() takes a tensor or an address; got object",
        "done",
        "TypeError: watch() takes a tensor, or an address and length=; got object",
        *["done"] * 5,
    ]
    assert "Warning: no snapshot: torch uses no NPU or GPU in this process" in done.stderr
    assert "Traceback" not in done.stderr
