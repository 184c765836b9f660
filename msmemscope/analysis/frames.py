"""Which frame of a call stack is the user's, and what the frames around it say about the allocation.

All functions take a stack as the run stores it: innermost frame first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msmemscope.tables.run import Frame

_LIBRARY = re.compile(
    r"/(site|dist)-packages/"
    r"|/lib(64)?/python\d+(\.\d+)?/"
    r"|/python\d+\.zip/"
    # torch run from its source tree
    r"|/torch/(_\w+|autograd|cuda|distributed|fx|jit|multiprocessing|nn|npu|optim|utils)/"
    r"|/torch/(functional|storage|_tensor)\.py$"
)
# Objects that native frames lie in, by their path or, since CANN and torch may be anywhere, by their name.
_CODE = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python\d"
    r"|^/(usr/)?lib(32|64|x32)?/|^linux-vdso"
    # where CANN's installer puts it and the driver
    r"|/(Ascend|ascend-toolkit)/"
    r"|/torch(_npu)?/[^/]+\.so$"
    r"|(^|/)python[\d.]*$"
    r"|(^|/)lib("
    # CANN
    r"(acl|aclnn|aicpu|asdops|atb|dcmi|error_manager|exe_graph|fmk|ge|graph|hccl|hcom|lcal|mki|mmpa|ms_tools_ext|nnopbase"
    r"|opapi|platform|profapi|register|runtime|tiling_api|tsdclient|unified_dlog)(_\w+)?|(ascend|hccp|hcomm|drv|msprof)\w*"
    # frameworks, CUDA
    r"|c10(_\w+)?|(torch|mindspore|tensorpipe|op_plugin)\w*|shm|npu_profiler|(cuda|cudnn|cublas|nccl)\w*"
    # the compilers' and Python's
    r"|c|m|dl|rt|pthread|stdc\+\+|gcc_s|[gi]?omp5?|mkl_\w+|openblas\w*|python[\d.]+"
    r")(-[\w.]+)?\.so[\d.]*$"
)
_TORCH = re.compile(r"/torch(_npu)?/")
_TOOL = re.compile(r"/msmemscope/(collect/|integrations/|launchers/|__init__\.py$)")
# Code without a file that a person typed: a notebook cell, the interactive prompt.
_TYPED = ("<ipython-input", "<stdin>")
_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_MODULE_CALL = "torch/nn/modules/module.py"
# What the innermost frame of a stack says whose others are of the forward pass (native/stack/forward_stacks.h).
BACKWARD = "<autograd>"
# What multiprocessing runs with `python -c` to start a process. In one of vLLM's workers nothing else is the user's.
_STARTER = re.compile(r"/multiprocessing/(spawn|forkserver|resource_tracker)\.py$")


# What these remember is of the text they are given alone: the same in every run.
@lru_cache(maxsize=65536)
def _is_library_file(file: str) -> bool:
    return bool(_LIBRARY.search(file) or is_tool_file(file))


@lru_cache(maxsize=65536)
def _is_library_code(file: str) -> bool:
    return file in ("", "??") or bool(_CODE.search(file))


@lru_cache(maxsize=65536)
def is_tool_file(file: str) -> bool:
    """Our own code, which runs inside the program when it hooks a step."""
    return file.startswith(_PACKAGE) or bool(_TOOL.search(file))


def is_user(frame: Frame) -> bool:
    """True for code that is not the standard library's, an installed package's, torch's or ours; for native code, that
    is not of CANN, CUDA, the system or an interpreter either."""
    if frame.kind != "python":
        return not (_is_library_code(frame.file) or is_tool_file(frame.file))
    if frame.file.startswith("<"):
        # `python -c` and exec() run as <string>; only the module level can be told from generated functions.
        return frame.file.startswith(_TYPED) or (frame.file == "<string>" and frame.function == "<module>")
    return frame.file != "" and not _is_library_file(frame.file)


def user_index(stack: Sequence[Frame]) -> int:
    """Index of the innermost user frame, of a merged stack that of Python; the innermost Python frame when there is
    none, 0 when there is none either."""
    own = [index for index, frame in enumerate(stack) if is_user(frame) and not _is_starter(stack, index)]
    if own:
        return next((index for index in own if stack[index].kind == "python"), own[0])
    return next((index for index, frame in enumerate(stack) if frame.kind == "python"), 0)


def user_chain(stack: Sequence[Frame]) -> tuple[tuple[str, int], ...]:
    """File and line of all user frames: what two stacks have in common that differ in library frames only."""
    return tuple(
        (frame.file, frame.line)
        for index, frame in enumerate(stack)
        if is_user(frame) and not _is_starter(stack, index)
    )


def _is_starter(stack: Sequence[Frame], index: int) -> bool:
    return index > 0 and stack[index].file == "<string>" and bool(_STARTER.search(stack[index - 1].file))


def loop_index(stack: Sequence[Frame], step_stack: Sequence[Frame]) -> int | None:
    """Index in `stack` of the training loop: the function that also made the step advance.

    `step_stack` is the stack of who advanced it, by msmemscope.step() or the optimizer's hook. The loop is the
    innermost function of it that is neither torch's nor ours and is found in `stack`; a library's trainer may hold it.
    """
    functions = {}
    for index in range(len(stack) - 1, -1, -1):
        functions[(stack[index].file, stack[index].function)] = index
    for frame in step_stack:
        if frame.kind != "python" or is_tool_file(frame.file) or _TORCH.search(frame.file):
            continue
        found = functions.get((frame.file, frame.function))
        if found is not None:
            return found
    return None


def module_index(stack: Sequence[Frame], end: int | None = None) -> int | None:
    """Index of the innermost call of a torch.nn.Module among the frames before `end`; None when there is none."""
    for index, frame in enumerate(stack[:end]):
        if frame.file.endswith(_MODULE_CALL):
            return index
    return None


def in_hook(stack: Sequence[Frame]) -> bool:
    """The innermost module called the user's code directly, and not its forward(): a forward hook or pre-hook."""
    called_by = module_index(stack)
    if not called_by:
        return False
    called = stack[called_by - 1]
    return is_user(called) and called.function.rpartition(".")[2] != "forward"


def in_autograd_function(stack: Sequence[Frame]) -> bool:
    """A torch.autograd.Function's own code made it, to be used in the backward pass."""
    return any(frame.file.endswith("torch/autograd/function.py") for frame in stack)


def in_constructor(stack: Sequence[Frame]) -> bool:
    """A torch.nn.Module made it as a parameter or buffer of its own."""
    inner = stack[: user_index(stack)] if stack else ()
    return any("/torch/nn/" in frame.file and frame.function.rpartition(".")[2] == "__init__" for frame in inner)


def of_parameters(stack: Sequence[Frame]) -> bool:
    """Made for parameters that were there before: by backward() (but not in the user's own hook), or an optimizer."""
    inner = stack[: user_index(stack)]
    return any(
        frame.file == BACKWARD or "/torch/optim/" in frame.file or frame.file.endswith("torch/autograd/graph.py")
        for frame in inner
    )


def call_below_loop(
    stack: Sequence[Frame], step_stack: Sequence[Frame], *, also_loop: bool
) -> tuple[tuple[str, str, int], ...] | None:
    """The call of the innermost user function, by its callers up to the loop; None where that function is a module's
    forward(), not below the loop, or (but for `also_loop`) the loop itself: (file, function, 0), then (file, function,
    line) of callers."""
    loop, user = loop_index(stack, step_stack), user_index(stack)
    if loop is None or user >= loop + also_loop or module_index(stack[user:loop]) is not None:
        return None
    if user == loop:
        loop = len(stack) - 1  # who called it
    mine = stack[user]
    callers = tuple((frame.file, frame.function, frame.line) for frame in stack[user + 1 : loop + 1])
    return ((mine.file, mine.function, 0), *callers)
