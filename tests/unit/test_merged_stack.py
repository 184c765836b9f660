"""Python and native stacks of one moment as one."""

from __future__ import annotations

from msmemscope.analysis.frames import user_index
from msmemscope.analysis.merged_stack import merged
from msmemscope.tables.run import Frame

PYTHON = "/usr/bin/python3.11"


def native(function: str, file: str = "/opt/torch/lib/libtorch_cpu.so") -> Frame:
    return Frame(file, function, 0x10, "native")


def python(function: str, *, entry: bool = False) -> Frame:
    return Frame("/work/train.py", function, 7, "python", is_entry=entry)


LOOP = native("_PyEval_EvalFrameDefault", PYTHON)
CALL = native("_PyObject_Call", PYTHON)
START = native("__libc_start_main", "/lib/libc.so.6")


def names(frames: tuple[Frame, ...]) -> list[str]:
    return [frame.function for frame in frames]


def test_each_call_of_the_loop_becomes_the_python_frames_that_it_ran() -> None:
    # main() calls train(), both in one loop; torch calls the hook back, whose helper allocates.
    stack = merged(
        [python("helper"), python("hook", entry=True), python("train"), python("main", entry=True)],
        [native("allocate"), CALL, LOOP, CALL, native("torch::call_hook"), native("torch::run"), LOOP, CALL, START],
    )

    assert names(stack) == [
        "allocate",
        "helper",
        "hook",
        "torch::call_hook",
        "torch::run",
        "train",
        "main",
        "__libc_start_main",
    ]


def test_a_compilers_clone_of_the_loop_is_the_loop() -> None:
    loop = native("_PyEval_EvalFrameDefault.cold", PYTHON)
    assert names(merged([python("main", entry=True)], [native("allocate"), loop])) == ["allocate", "main"]


def test_what_either_stack_lacks_at_its_outer_end_hides_nothing_of_the_other() -> None:
    short_native = merged([python("hook", entry=True), python("main", entry=True)], [native("allocate"), LOOP])
    short_python = merged(
        [python("hook", entry=True)], [native("allocate"), LOOP, native("run"), LOOP, native("start")]
    )

    assert names(short_native) == ["allocate", "hook", "main"]
    assert names(short_python) == ["allocate", "hook", "run", "start"]


def test_an_interpreter_without_symbols_gives_its_place_to_all_python_frames() -> None:
    inside = native("", "/opt/lib/libpython3.11.so.1.0")
    stack = merged(
        [python("hook", entry=True), python("main", entry=True)], [native("allocate"), inside, native("run"), inside]
    )
    assert names(stack) == ["allocate", "hook", "main", "run"]


def test_one_stack_alone_is_itself() -> None:
    assert names(merged([python("main")], ())) == ["main"]
    assert names(merged((), [native("allocate"), LOOP])) == ["allocate", "_PyEval_EvalFrameDefault"]


def test_the_users_line_of_a_merged_stack_is_pythons() -> None:
    extension = native("fused_kernel", "/work/build/extension.so")
    stack = merged([python("main", entry=True)], [extension, LOOP])
    assert stack[user_index(stack)].function == "main"
    assert user_index([extension]) == 0
