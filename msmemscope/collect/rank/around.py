"""Code that has something done at its beginning and at its end: a `with` block, or a function with a decorator.

Used by RecordFunction and TakeSnapshot. Whatever the function is, it stays that: of a coroutine or a generator what is
enclosed is its run, from its first step to its end, and not the call that makes it.
"""

from __future__ import annotations

import functools
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

# Flags of a code object (inspect.CO_*; importing inspect would cost a rank more than this room).
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200


class Around:
    """A context manager and decorator. One object may be entered again before it is left, and by several threads."""

    def begin(self) -> int:
        """What end() is to be given."""
        raise NotImplementedError

    def end(self, begun: int) -> None:
        raise NotImplementedError

    def __init__(self) -> None:
        self._begun: dict[int, list[int]] = {}  # by thread, the latest last

    def __enter__(self) -> Around:
        self._begun.setdefault(get_ident(), []).append(self.begin())
        return self

    def __exit__(self, *_: object) -> None:
        self.end(self._latest())

    def _latest(self) -> int:
        """What this thread has begun last; where it has begun nothing, another one, for it may be left elsewhere.
        IndexError when nobody has."""
        me = get_ident()
        if me not in self._begun:
            me = next(reversed(list(self._begun)), me)
        begun = self._begun.get(me, [])
        latest = begun.pop()
        if not begun:
            self._begun.pop(me, None)
        return latest

    async def __aenter__(self) -> Around:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def __call__(self, function: Function) -> Function:
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        wrapper: Callable[..., Any]
        if flags & _ASYNC_GENERATOR:
            return function  # who drives it may send and throw into it: left as it is
        if flags & _COROUTINE:

            async def wrapper(*args: object, **kwargs: object) -> object:
                begun = self.begin()
                try:
                    return await function(*args, **kwargs)
                finally:
                    self.end(begun)

        elif flags & _GENERATOR:

            def wrapper(*args: object, **kwargs: object) -> Generator[object, object, object]:
                begun = self.begin()
                try:
                    return (yield from function(*args, **kwargs))
                finally:
                    self.end(begun)

        else:

            def wrapper(*args: object, **kwargs: object) -> object:
                begun = self.begin()
                try:
                    return function(*args, **kwargs)
                finally:
                    self.end(begun)

        return functools.wraps(function)(wrapper)  # type: ignore[return-value]
