"""Names of upstream's API that do nothing in this version: each says so once, and the program goes on.

Called by scripts written for upstream. What they may depend on is kept: the forms of a call, use as a context manager
and as a decorator, and the errors that upstream raises for wrong arguments.
"""

from __future__ import annotations

from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Function = TypeVar("Function", bound=Callable[..., object])

_said: set[str] = set()

HOOK_TYPES = ("decompose", "snapshot")


def not_yet(name: str) -> None:
    """Says once that `name` is called in vain."""
    if name not in _said:
        _said.add(name)
        text = f"msmemscope.{name} is not in this version: it does nothing, and the program goes on"
        tell(f"Warning: {text}")


class _Block:
    """A context manager and decorator around code whose memory is to be told apart."""

    def __enter__(self) -> _Block:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        return function  # as it is, so that coroutines and generators stay what they are


class describer(_Block):  # noqa: N801 - upstream's name
    """Names the owner of what a block or function allocates, or with a tensor or an address that of one block. Not in
    this version: warns once."""

    def __init__(self, *what: object, owner: str = ""):
        not_yet("describe.describer")


def init_framework_hooks(framework: str, version: str, component: str, hook_type: str) -> None:
    """Upstream's hooks in a framework, by which blocks get owners. Not in this version: warns once.

    Raises TypeError for a value that is not text, ValueError for a hook type that is neither decompose nor snapshot.
    """
    for value in (framework, version, component, hook_type):
        if not isinstance(value, str):
            raise TypeError(f"init_framework_hooks() takes texts; got {type(value).__name__}")
    if hook_type not in HOOK_TYPES:
        raise ValueError(f"unknown hook type {hook_type!r}; known: {', '.join(HOOK_TYPES)}")
    not_yet("init_framework_hooks")


def cleanup_framework_hooks() -> None:
    """Takes back what init_framework_hooks() set. Not in this version: warns once."""
    not_yet("cleanup_framework_hooks")


def enable_npu_sanitizer() -> None:
    """torch_npu's search for races between streams. Not in this version: warns once."""
    not_yet("enable_npu_sanitizer")
