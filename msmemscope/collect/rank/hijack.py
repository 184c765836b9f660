"""Lets functions of frameworks say whose memory is (integrations/), once their modules are imported.

In: hooks. Out: wrapped functions, which push labels before and pop them behind, also when the original raises; take
snapshots; or label what it made. What a function is, it stays: name, signature, static or class method, coroutine or
generator. Nothing is imported for it: a module that the program never imports is never looked for.
"""

from __future__ import annotations

import functools
import os
import sys

from msmemscope import _native
from msmemscope.collect.rank.addresses import addresses
from msmemscope.collect.rank.around import Around
from msmemscope.collect.rank.bootstrap import after_import
from msmemscope.collect.rank.steps import keep_from_compiler
from msmemscope.integrations import tags
from msmemscope.integrations.hook import CLOSES, DUMPS, MARKS, OPENS, RANGES, SNAPSHOT, TAGS, Hook, Labels
from msmemscope.marks import mark
from msmemscope.telling import tell, warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_wrapped: list[tuple[Any, str, Any, bool]] = []  # owner, name, original, whether it was the owner's own
_wanted: set[Hook] = set()
_done: set[Hook] = set()
_failed: set[str] = set()


def apply(hooks: Iterable[Hook], asked: str = "") -> None:
    """Now, or when their module has been imported; each once. asked: in whose words, who is told of modules that have
    none of them; "": nobody has asked."""
    fresh: dict[str, list[Hook]] = {}
    for hook in hooks:
        if hook not in _wanted:
            _wanted.add(hook)
            fresh.setdefault(hook.module, []).append(hook)
    for module, some in fresh.items():
        after_import(module, functools.partial(_wrap_all, some, asked))


def release() -> None:
    """Takes back what apply() has done. By-name importers keep what they have."""
    while _wrapped:
        owner, name, original, was_own = _wrapped.pop()
        if was_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
    _wanted.clear()
    _done.clear()


def is_applied() -> bool:
    return bool(_wanted)


def _wrap_all(hooks: Iterable[Hook], asked: str, module: Any) -> None:
    found = [_wrap(hook, module) for hook in hooks]
    if asked and not any(found):
        names = ", ".join(hook.name for hook in hooks)
        tell(f"Warning: {asked}: {module.__name__} of this version has none of {names}")


def _wrap(hook: Hook, module: Any) -> bool:
    """False: this version of the framework has it not."""
    if hook not in _wanted or hook in _done:
        return True  # taken back meanwhile; asked for again since
    _done.add(hook)
    owner = module
    *parents, name = hook.name.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    if owner is None or not hasattr(owner, name):
        return False
    own = vars(owner).get(name)
    original = own if own is not None else getattr(owner, name)
    kind = type(original) if isinstance(original, (staticmethod, classmethod)) else None
    wrapped = _around(hook)(original.__func__ if kind is not None else original)
    _wrapped.append((owner, name, original, own is not None))
    setattr(owner, name, kind(wrapped) if kind is not None else wrapped)
    return True


def _around(hook: Hook) -> Callable[[Any], Any]:
    if hook.how == SNAPSHOT:
        from msmemscope.snapshots import TakeSnapshot

        return TakeSnapshot(name=hook.name.rpartition(".")[2])
    if hook.how == DUMPS:
        return _with_snapshot
    if hook.how == RANGES:
        from msmemscope.ranges import RecordFunction

        return RecordFunction(hook.tag)
    if hook.how == TAGS:
        return functools.partial(_with_tags, hook)
    if hook.how == MARKS:
        return functools.partial(_with_mark, hook)
    return _Labelled(hook.labels, opens=hook.how != CLOSES, closes=hook.how != OPENS)


class _Labelled(Around):
    """Labels of levels that are no program's own: of the thread, while a function runs, or from its run on until that
    of another."""

    def __init__(self, labels: Labels, *, opens: bool, closes: bool) -> None:
        super().__init__()
        self._labels = labels
        self._opens, self._closes = opens, closes

    def begin(self) -> int:
        for level, label in self._labels if self._opens else ():
            _native.label_thread(True, level, label)
        return _being_handled()

    def end(self, begun: int) -> None:
        has_failed = _being_handled() != begun  # what did not begin is closed by nobody else
        for level, label in reversed(self._labels) if self._closes or has_failed else ():
            _native.label_thread(False, level, label)

    def __call__(self, function: Any) -> Any:
        wrapped: Any = super().__call__(function)
        if wrapped is not function:
            keep_from_compiler(wrapped)
        return wrapped


def _being_handled() -> int:
    """Which exception is under way; 0: none."""
    error = sys.exc_info()[1]
    return 0 if error is None else id(error)


def _with_snapshot(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        try:
            _take_snapshot(next(iter((*arguments, *named.values())), ""))
        except Exception as error:  # noqa: BLE001 - the program has its file
            warn_once(f"no snapshot beside a dump of torch's memory history: {error!r}")
        return result

    return wrapper


def _take_snapshot(written: object) -> None:
    from msmemscope.ranges import MAX_NAME
    from msmemscope.snapshots import take_of_own_devices

    if _native.stats()["recording"]:
        name = os.path.basename(os.fspath(written)) if isinstance(written, (str, os.PathLike)) else ""
        take_of_own_devices(str(name)[:MAX_NAME] or "dump of torch's memory history")


def _with_mark(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        mark(hook.tag)
        return function(*arguments, **named)

    return wrapper


def _with_tags(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(this: Any, *arguments: Any, **named: Any) -> Any:
        result = function(this, *arguments, **named)
        try:
            _tag(hook, this, (*arguments, *named.values()), result)
        except Exception as error:  # noqa: BLE001 - the framework's objects may be of another make
            if hook.name not in _failed:
                _failed.add(hook.name)
                tell(f"Warning: what {hook.name} has made is not labelled: {error!r}")
        return result

    return wrapper


def _tag(hook: Hook, this: Any, arguments: tuple[Any, ...], result: Any) -> None:
    seen: set[int] = set()
    for labels, tensors in getattr(tags, hook.tag)(this, arguments, result):
        fresh = [address for address in addresses(tensors) if address not in seen]
        seen.update(fresh)
        for level, label in labels if fresh else ():
            _native.label_addresses(fresh, level, label, True)
