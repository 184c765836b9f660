"""Upstream's msmemscope.describe: owners of blocks, named in the program.

``describer(owner="name")`` names the owner of what code allocates: of a ``with`` block, an ``async with`` block, each
run of a decorated function. ``describer(tensor, owner="name")`` does so for the block that holds a tensor, or an
address.

A label has 128 characters at most, and at most three are nested: a fourth is told on stderr and ignored. It holds for
the thread that runs the code, and for the task of asyncio or trio: what other tasks allocate meanwhile does not get it.
Of a decorated generator it holds while the generator runs, not while its consumer does; a ``with`` block around a
``yield`` holds until it is left. Threads that are started within do not inherit it, nor do those of pools: what runs
there has the labels that it sets itself, below those of the context that asyncio.to_thread brings along. Tasks of
uvloop and eager tasks of asyncio keep a label until their thread enters or leaves the next one, and have it again when
they do so themselves.

A tensor or an address may lie anywhere within a block. The first label of a block says what it has been from its
beginning, a later one what it is from then on, as does one of a block that was allocated under a label. An address that
is in no recorded block is counted (`unknown_label` in summary.json). Control characters are written as escapes; a
leading "@" is warned of. One within a label makes no level of its own: ``a@b`` is one node of the owner tree, and looks
like two only to who splits the owners of upstream's files.

Raises TypeError for an owner that is no text, or for what is neither tensor nor address; ValueError for an owner that
is empty or too long, for an address that is not positive, and for a tensor without memory.

>>> from msmemscope.describe import describer
>>> encode = describer(owner="encoder")(sum)
"""

from __future__ import annotations

import functools

from msmemscope.collect.rank.around import Around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["describer"]

MAX_LABEL = 128  # characters
_GENERATOR, _ASYNC_GENERATOR = 0x20, 0x200  # flags of a code object (inspect.CO_*)


class describer(Around):  # noqa: N801 - upstream's name
    """A label of what a ``with`` block, an ``async with`` block or each run of a decorated function allocates; with a
    tensor or an address, of the block that holds it."""

    def __init__(self, *what: object, owner: str = ""):
        super().__init__()
        self._label = _checked(owner)
        if len(what) > 1:
            raise TypeError(f"describer() takes one tensor or address; got {len(what)}")
        if what:
            _label_block(what[0], self._label)

    def begin(self) -> int:
        from msmemscope import joins_session
        from msmemscope.collect.rank import labels

        joins_session()
        return int(labels.enter(self._label))

    def end(self, begun: int) -> None:
        if begun:
            from msmemscope.collect.rank import labels

            labels.leave(self._label)

    def __exit__(self, *_: object) -> None:
        """Also of another object with the same owner, as upstream's manual leaves a label by hand."""
        self.end(self._latest() if self._begun else 1)

    def __call__(self, function: Function) -> Function:
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if flags & _ASYNC_GENERATOR:
            return functools.wraps(function)(self._each_async_turn(function))  # type: ignore[return-value]
        if flags & _GENERATOR:
            return functools.wraps(function)(self._each_turn(function))  # type: ignore[return-value]
        return super().__call__(function)

    def _each_turn(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: object, **kwargs: object) -> Generator[object, object, object]:
            running = function(*args, **kwargs)
            turn, given = running.send, None
            while True:
                begun = self.begin()
                try:
                    made = turn(given)
                except StopIteration as stop:
                    return stop.value
                finally:
                    self.end(begun)
                try:
                    turn, given = running.send, (yield made)
                except GeneratorExit:
                    running.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown into it by whoever consumes it
                    turn, given = running.throw, error

        return wrapper

    def _each_async_turn(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapper(*args: object, **kwargs: object) -> AsyncGenerator[object, object]:
            running = function(*args, **kwargs)
            turn, given = running.asend, None
            while True:
                begun = self.begin()
                try:
                    made = await turn(given)
                except StopAsyncIteration:
                    return
                finally:
                    self.end(begun)
                try:
                    turn, given = running.asend, (yield made)
                except GeneratorExit:
                    await running.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown into it by whoever consumes it
                    turn, given = running.athrow, error

        return wrapper


def _checked(owner: object) -> str:
    """The label as it is recorded."""
    if not isinstance(owner, str):
        raise TypeError(f"describer() takes a text as owner; got {type(owner).__name__}")
    if not owner:
        raise ValueError("describer() needs an owner: describer(owner='name')")
    if len(owner) > MAX_LABEL:
        raise ValueError(f"describer() takes an owner of at most {MAX_LABEL} characters; got {len(owner)}")
    if owner.startswith("@"):
        from msmemscope.telling import tell

        tell(f"Warning: describer(owner={owner!r}): '@' separates the levels of an owner, so an empty one stands first")
    if owner.isprintable():
        return owner
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in owner)


def _label_block(what: object, label: str) -> None:
    from msmemscope import _native, joins_session
    from msmemscope.collect.rank.addresses import address_of
    from msmemscope.collect.rank.labels import USER_LEVEL

    if isinstance(what, int) and not isinstance(what, bool):
        address = what
        if not 0 < address < 1 << 64:
            raise ValueError(f"describer() takes a positive address; got {address}")
    else:
        found = address_of(what)
        if found is None:
            raise TypeError(f"describer() takes a tensor or an address; got {type(what).__name__}")
        if not found:
            raise ValueError("describer() got a tensor without memory: it is empty, freed, on the meta device or fake")
        address = found
    if joins_session():
        _native.label_addresses([address], USER_LEVEL, label, False)
