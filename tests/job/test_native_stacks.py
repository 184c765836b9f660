"""Native stacks of whole jobs: recorded as object and offset in the ranks, named on their node."""

from __future__ import annotations

import subprocess
import sys

import pytest
from compilers import c_compiler, shared_library
from patience import LIMIT_S
from running import PROGRAMS, environment

from msmemscope.analysis.merged_stack import merged
from msmemscope.tables.run import Frame, Run
from msmemscope.vocabulary import Flag, Kind

PROGRAM = PROGRAMS / "native_frames.py"
pytestmark = pytest.mark.xdist_group("native frames are recorded once")
SOURCE = """
static int calls;
static __attribute__((noinline)) void not_exported(void (*function)(void)) { function(); calls += 1; }
void call_back(void (*function)(void)) { not_exported(function); calls += PADDING; }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks, loaded at different addresses by the kernel's random choice."""
    compiler = c_compiler("the libraries of the frames")
    place = tmp_path_factory.mktemp("native")
    (place / "library.c").write_text(SOURCE)
    libraries = [place / f"lib{name}.so" for name in ("stays", "removed", "replaced", "other")]
    for path in libraries:
        padding = "-DPADDING=2" if path.stem == "libother" else "-DPADDING=1"
        options = ["-fno-optimize-sibling-calls", padding, f"-Wl,-soname,{path.name}"]
        shared_library(compiler, place / "library.c", path, *options)
    command = [sys.executable, "-m", "msmemscope", "--output-path", str(place / "out"), "--device=cpu"]
    launcher = ["--call-stack=c:60,python:20", "--", "torchrun", "--standalone", "--nproc-per-node=2"]
    program = [PROGRAMS / "native_frames.py", *libraries]
    subprocess.run([*command, *launcher, *map(str, program)], env=environment(), check=True, timeout=LIMIT_S)
    (found,) = (place / "out").glob("run_*")
    return Run(found)


def stacks_of(run: Run, rank: int, size: int) -> tuple[int, tuple[Frame, ...]]:
    """The native stack under which the rank allocated a block of this size."""
    found = set()
    for batch in run.events(rank=rank, columns=["size", "stack_c"], kinds=[Kind.MALLOC]):
        found |= {row["stack_c"] for row in batch.to_pylist() if row["size"] == size}
    (stack,) = found
    return stack, run.stack(stack)


def names_of(frames: tuple[Frame, ...], library: str) -> list[str]:
    return [frame.function for frame in frames if frame.file.endswith(f"/lib{library}.so")]


def test_functions_are_named_exported_or_not(run: Run) -> None:
    for rank in (0, 1):
        _, frames = stacks_of(run, rank, 4000)
        assert names_of(frames, "stays") == ["not_exported", "call_back"]
        (allocate,) = (frame for frame in frames if "DefaultCPUAllocator" in frame.function)
        assert "c10::DefaultCPUAllocator::allocate(unsigned long)" in allocate.function
        assert "DefaultCPUAllocator8allocate" in allocate.upstream_text
        assert all(frame.file.startswith("/") for frame in frames)


def test_an_object_that_is_gone_or_another_build_by_now_gives_no_name(run: Run) -> None:
    for size, library in ((4004, "removed"), (4008, "replaced")):
        _, frames = stacks_of(run, 0, size)
        assert names_of(frames, library) == ["", ""], "a wrong name is worse than none"
        assert all(frame.line > 0 for frame in frames)


def test_both_stacks_of_an_allocation_become_one(run: Run) -> None:
    """The program calls a library, which calls its allocate() back: two calls of the interpreter's loop."""
    found = set()
    for batch in run.events(rank=0, columns=["size", "stack_py", "stack_c"], kinds=[Kind.MALLOC]):
        found |= {(row["stack_py"], row["stack_c"]) for row in batch.to_pylist() if row["size"] == 4000}
    ((python, native),) = found

    frames = merged(run.stack(python), run.stack(native))

    names = [frame.function for frame in frames if "libstays" in frame.file or frame.file == str(PROGRAM)]
    assert names == ["allocate", "not_exported", "call_back", "<module>"]
    kinds = [frame.kind for frame in frames]
    assert kinds[0] == "native"  # torch's allocator
    assert not [frame for frame in frames if frame.function.startswith("_PyEval")]
    assert [one for one in frames if one.kind == "python"] == list(run.stack(python))


def test_a_stack_has_one_id_in_all_processes(run: Run) -> None:
    here, frames = stacks_of(run, 0, 4000)
    there, others = stacks_of(run, 1, 4000)
    assert (here, frames) == (there, others)


def test_releases_have_stacks_too(run: Run) -> None:
    released = 0
    for batch in run.events(columns=["flags", "stack_c", "stack_py"], kinds=[Kind.FREE]):
        rows = [row for row in batch.to_pylist() if not row["flags"] & (Flag.SHADOW | Flag.SYNTHETIC)]
        released += len(rows)
        assert all(row["stack_c"] for row in rows)
    assert released > 0


def test_an_unnamed_frame_reads_object_and_offset(run: Run) -> None:
    text = "".join(path.read_text() for path in run.path.parent.glob("msmemscope_*/device_cpu/dump/*.csv"))
    assert "/libremoved.so(+0x" in text
    assert "??" not in text
