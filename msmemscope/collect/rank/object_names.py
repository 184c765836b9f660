"""What an object of the program is called, and how another one refers to it, without running any of the program's code.

In: objects, and who refers to whom. Out: words: "list `feats` (40 items), a global of train.py". No attribute of a
user's object is read through its class, which may answer with a property; nothing is compared, hashed or printed by
its own methods. What is read is types, plain dictionaries, slots, and fields of the interpreter's own types.
"""

from __future__ import annotations

import sys
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
    TracebackType,
)

from msmemscope import _native
from msmemscope.collect.rank.bounds import Extent, extent_of, is_lru_cache, owner_bound
from msmemscope.collect.rank.object_fields import (
    attribute_of,
    base_of,
    class_name,
    is_a,
    key_of,
    name_of_class,
    space_of,
    space_of_class,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

_TRANSPARENT = ("_parameters", "_modules", "_buffers")  # of a module: who keeps the module is asked for
_MOST_STEPS = 400  # of one way from an object to its name

_space_of_module = type.__dict__["__dict__"].__get__(ModuleType)["__dict__"].__get__


def module_spaces() -> dict[int, dict[str, object]]:
    """The globals of all modules, by their identity."""
    modules = [one for one in list(sys.modules.values()) if is_a(one, ModuleType)]
    return {id(space): space for space in map(_space_of_module, modules) if space is not None}


def running_locals() -> dict[int, str]:
    """By identity of the object, the local variables of functions under way: "`x`, a local of f() at x.py:3"."""
    found: dict[int, str] = {}
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            code = frame.f_code
            if not _is_ours(code.co_filename):
                where = f"a local of {code.co_name}() at {_file(code)}:{frame.f_lineno}"
                for name, value in _native.locals_of(frame):
                    found[id(value)] = f"`{name}`, {where}"  # of an argument the name that the outermost caller has
            frame = frame.f_back
        del top  # the frame of this very call among them: it would keep itself, and all that called it
    return found


def label(thing: object, name: str = "") -> str:
    """ "list `feats` (40 items)", "tensor `total`", "a Meter"; of a container with a bound, which is full one day, also
    that: "deque `seen` (40 of at most 1,000 items)"."""
    extent = extent_of(thing)
    kind = "lru_cache" if is_lru_cache(thing) else class_name(thing)
    if extent is None:
        return f"`{name}`" if name else f"a {kind}"
    return f"{kind} `{name}` ({extent.text})" if name else f"a {kind} ({extent.text})"


class Names:
    """Finds names by climbing from an object to whoever refers to it."""

    def __init__(
        self, holders: Mapping[int, list[object]], asked: Set[int], spaces: Mapping[int, dict[str, object]]
    ) -> None:
        self._holders = holders  # identity of an object -> who refers to it; grows
        self._asked = asked  # identities of those of whom all of them are known; grows
        self._spaces = spaces  # of modules
        self._locals = running_locals()
        self._is_last = False

    def is_end(self, thing: object) -> bool:
        """Whether nobody above it need be known."""
        return id(thing) in self._spaces or is_a(thing, type) or is_a(thing, ModuleType)

    def name(self, thing: object, *, is_last: bool) -> str:
        """What it, or the nearest thing that holds it, is called; "" when nothing was found. Nearest first; of equally
        near ones a variable before a closure before a frame. is_last: more will not be known; else functions and frames
        wait until it is known who refers to them."""
        self._is_last = is_last
        level: list[object] = [thing]
        seen = {id(thing)}
        while level and len(seen) < _MOST_STEPS:
            found = [text for one in level for text in self._names_of(one, seen)]
            if found:
                return min(found)[1]
            above = [one for child in level for one in self._above(child)]
            level = []
            for one in above:
                waits = type(one) in (FunctionType, FrameType) and not self._is_known(one)
                if id(one) not in seen and not waits and not self.is_end(one):
                    seen.add(id(one))
                    level.append(one)
        return ""

    def extent(self, thing: object) -> Extent | None:
        """Of a container, with its own bound or that of an instance whose attribute it is."""
        extent = extent_of(thing)
        if extent is None or extent.bound:
            return extent
        bounds = [owner_bound(one, extent.items) for one in self._owners(thing)]
        return Extent(extent.items, min((bound for _, bound in filter(None, bounds)), default=None))

    def _owners(self, thing: object) -> Iterator[object]:
        """Instances of which it is an attribute."""
        for holder in self._above(thing):
            of_space = self._above(holder) if type(holder) is dict else ()
            for one in (holder, *of_space):
                if base_of(one) is None and not self.is_end(one) and attribute_of(one, thing) is not None:
                    yield one

    def _above(self, thing: object) -> list[object]:
        return self._holders.get(id(thing), [])

    def _is_known(self, thing: object) -> bool:
        """Whether it can be said what a function or a frame is to those who refer to it."""
        if self._is_last:
            return True
        asked = (thing, *(one for one in self._above(thing) if is_a(one, dict) and id(one) not in self._spaces))
        return all(id(one) in self._asked for one in asked)

    def _names_of(self, thing: object, below: set[int]) -> Iterator[tuple[int, str]]:
        """(how good, name) of everything that refers to it by a name. below: what was passed on the way to it."""
        if (place := self._locals.get(id(thing))) is not None:
            name, _, where = place.partition(", ")
            yield 0, f"{label(thing, name.strip('`'))}, {where}"
        for holder in self._above(thing):
            if id(holder) in self._spaces:
                space = self._spaces[id(holder)]
                if (key := key_of(space, thing)) is not None:  # type: ignore[arg-type]
                    yield 1, f"{label(thing, key)}, a global of {_file_of_module(space)}"
            elif type(holder) is dict:
                yield from self._by_space(thing, holder, below)
            elif is_a(holder, tuple):
                yield from self._by_tuple(thing, holder)  # type: ignore[arg-type]
            elif type(holder) is FrameType:
                if self._is_known(holder):
                    yield from self._by_frame(thing, holder)
            elif is_generator(holder):
                yield 6, f"{label(thing)} in the {class_name(holder)} {_generator(holder)}"
            elif base_of(holder) is None and type(holder) not in (CellType, FunctionType, TracebackType):
                yield from self._by_attribute(thing, holder, below)

    def _by_attribute(self, thing: object, instance: object, below: set[int]) -> Iterator[tuple[int, str]]:
        name = attribute_of(instance, thing)
        if name is None or name in _TRANSPARENT:
            return
        if name.endswith("_hooks"):
            yield 3, self._hook(thing, name, instance, below)
        elif not _is_of_torch(type(instance)):
            yield 4, f"{label(thing, name)}, an attribute of {class_name(instance)}{_whose_bound(thing, instance)}"

    def _by_space(self, thing: object, space: dict[object, object], below: set[int]) -> Iterator[tuple[int, str]]:
        key = key_of(space, thing)
        for owner in self._above(space):
            if is_a(owner, type) and key is not None:
                yield 2, f"{label(thing, key)}, an attribute of the class {name_of_class(owner)}"
            elif type(owner) is FunctionType:
                if owner.__kwdefaults__ is space and self._is_known(owner) and not self._is_hook(owner):
                    yield 5, f"{label(thing, key or '')}, a default argument of {_function(owner)}"
                elif owner.__globals__ is space and key is not None:
                    yield 1, f"{label(thing, key)}, a global of {_file(owner.__code__)}"
            elif base_of(owner) is None and type(owner) is not FrameType and space_of(owner) is space:
                yield from self._by_attribute(thing, owner, below)

    def _by_tuple(self, thing: object, held: tuple[object, ...]) -> Iterator[tuple[int, str]]:
        """Closures and default arguments; a function that is itself a hook is found from its hooks."""
        for owner in self._above(held):
            if type(owner) is not FunctionType or not self._is_known(owner) or self._is_hook(owner):
                continue
            if owner.__closure__ is held and type(thing) is CellType:
                names = [n for n, one in zip(owner.__code__.co_freevars, held, strict=False) if one is thing]
                content = _native_content(thing)
                yield 5, f"{label(content, ''.join(names))}, in a closure of {_function(owner)}"
            elif owner.__defaults__ is held:
                yield 5, f"{label(thing)}, a default argument of {_function(owner)}"

    def _is_hook(self, function: object) -> bool:
        return any(
            name is not None and name.endswith("_hooks")
            for hooks in self._above(function)
            if is_a(hooks, dict)
            for name in self._attributes(hooks)
        )

    def _attributes(self, thing: object) -> Iterator[str | None]:
        for holder in self._above(thing):
            if type(holder) is dict:
                yield key_of(holder, thing)
            elif base_of(holder) is None:
                yield attribute_of(holder, thing)

    def _hook(self, hooks: object, name: str, owner: object, below: set[int]) -> str:
        kind = name.strip("_").removesuffix("s").replace("_", " ")  # "forward hook"
        functions = [_function(one) for one in _values(hooks) if type(one) is FunctionType]
        which = f", {functions[0]}" if len(functions) == 1 else ""
        cycle = ": a cycle, which only the garbage collector frees" if id(owner) in below else ""
        return f"a {kind} of {class_name(owner)}{which}{cycle}"

    def _by_frame(self, thing: object, frame: FrameType) -> Iterator[tuple[int, str]]:
        code = frame.f_code
        names = [name for name, value in _native.locals_of(frame) if value is thing]
        traced = any(type(one) is TracebackType for one in self._above(frame))
        why = "an exception's traceback" if traced else "a frame"
        what = label(thing, names[0]) if names else label(thing)
        yield 7, f"{what} in {why}, a local of {code.co_name}() at {_file(code)}:{frame.f_lineno}"


def _whose_bound(container: object, owner: object) -> str:
    """How much it may hold, by the word of the instance whose attribute it is; "" where neither says so."""
    extent = extent_of(container)
    if extent is None or extent.bound or (said := owner_bound(owner, extent.items)) is None:
        return ""
    return f", whose `{said[0]}` is {said[1]:,}"


def by_which(thing: object) -> str:
    """How something on the way from a tensor to what holds it all is told; "" for what needs no word."""
    if type(thing) is FrameType:
        return f"the frame of {thing.f_code.co_name}() at {_file(thing.f_code)}:{thing.f_lineno}"
    if is_generator(thing):
        return f"the {class_name(thing)} {_generator(thing)}"
    if type(thing) is FunctionType:
        return _function(thing)
    if base_of(thing) is None and type(thing) not in (CellType, TracebackType):
        return class_name(thing)
    return ""


def is_frame_of_ours(thing: object) -> bool:
    """A call in this package."""
    return type(thing) is FrameType and _is_ours(thing.f_code.co_filename)


def is_generator(thing: object) -> bool:
    """A generator or coroutine, which holds the local variables of its function."""
    return type(thing) in (GeneratorType, CoroutineType, AsyncGeneratorType)


def _values(hooks: object) -> list[object]:
    return list(dict.values(hooks)) if is_a(hooks, dict) else []  # type: ignore[arg-type]


def _native_content(cell: object) -> object:
    try:
        return cell.cell_contents  # type: ignore[attr-defined]
    except ValueError:  # empty
        return None


def _generator(thing: object) -> str:
    prefix = {GeneratorType: "gi", CoroutineType: "cr", AsyncGeneratorType: "ag"}[type(thing)]
    code = getattr(thing, f"{prefix}_code")
    return f"{code.co_name}() at {_file(code)}:{code.co_firstlineno}"


def _function(function: FunctionType) -> str:
    code = function.__code__
    return f"{code.co_name}() at {_file(code)}:{code.co_firstlineno}"


def _file(code: CodeType) -> str:
    return code.co_filename.rpartition("/")[2]


def _file_of_module(space: dict[str, object]) -> str:
    file = space.get("__file__")
    name = space.get("__name__")
    if name == "__main__" and file is None and sys.argv:
        file = sys.argv[0]  # the interpreter takes __file__ away before it ends
    return file.rpartition("/")[2] if type(file) is str else name if type(name) is str else "a module"


def _is_of_torch(cls: type) -> bool:
    module = space_of_class(cls).get("__module__")
    return type(module) is str and module.partition(".")[0] in ("torch", "torch_npu")


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS)


_OURS = __file__.removesuffix("collect/rank/object_names.py")
