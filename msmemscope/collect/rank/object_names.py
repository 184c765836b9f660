"""What an object of the program is called, and how another one refers to it, without running any of the program's code.

In: objects, and who refers to whom. Out: words, with the expression that the program has for it, as far as it is known:
"list `feats` (40 items), a global of train.py", "list `history["losses"]` (40 items), in a global of train.py", "list
`trainer.buffer.items` (40 items), an attribute of Buffer". No attribute of a
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
from msmemscope.collect.rank.object_paths import way_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

_UNNAMED = "self"  # an instance of which no variable is known
_OF_INSTANCE = 4  # how good a name an attribute is: see _Name
_OUTER = 2  # instances within which one is looked for, and as often more is waited for
_TRANSPARENT = ("_parameters", "_modules", "_buffers")  # of a module: who keeps the module is asked for
_MOST_STEPS = 400  # of one way from an object to its name

_space_of_module = type.__dict__["__dict__"].__get__(ModuleType)["__dict__"].__get__


def module_spaces() -> dict[int, dict[str, object]]:
    """The globals of all modules, by their identity."""
    modules = [one for one in list(sys.modules.values()) if is_a(one, ModuleType)]
    return {id(space): space for space in map(_space_of_module, modules) if space is not None}


def class_of_module(module: str, name: str) -> type | None:
    """Of a module that was imported; not by its attributes, which it may make as they are asked for."""
    found = sys.modules.get(module)
    space = _space_of_module(found) if is_a(found, ModuleType) else None
    one = space.get(name) if space is not None else None
    return one if type(one) is type else None


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


class _Name:
    """What is known of an object. rank: how good it is, from 0 on. expression: by which the program reaches it; None
    where `where` says it all. where: words behind it. bound: how much it may hold, by the word of who has it."""

    def __init__(self, rank: int, expression: str | None, where: str, bound: str = "") -> None:
        self.rank, self.expression, self.where, self.bound = rank, expression, where, bound

    def text(self, thing: object, way: str = "") -> str:
        """Of `thing`, to which `way` leads from the object of this name."""
        if self.expression is None:
            return self.where
        is_within = way and self.where.startswith(", ") and not self.where.startswith(", in ")
        where = f", in {self.where[2:]}" if is_within else self.where + ("" if way else self.bound)
        return label(thing, f"{self.expression}{way}" if self.expression else "") + where


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
        self._is_last, self._waits = is_last, False
        level: list[object] = [thing]
        seen = {id(thing)}
        below: dict[int, object] = {}  # identity -> what it was reached from
        while level and len(seen) < _MOST_STEPS:
            found = []
            for one in level:
                for name in self._names_of(one, seen):
                    found.append((name.rank, self._said(name, one, thing, below)))
            if found:
                rank, text = min(found)
                return "" if rank == _OF_INSTANCE and self._waits else text
            above = [(one, child) for child in level for one in self._above(child)]
            level = []
            for one, child in above:
                waits = type(one) in (FunctionType, FrameType) and not self._is_known(one)
                if id(one) not in seen and not waits and not self.is_end(one):
                    seen.add(id(one))
                    below[id(one)] = child
                    level.append(one)
        return ""

    @staticmethod
    def _said(name: _Name, named: object, thing: object, below: Mapping[int, object]) -> str:
        """Of a container within what has the name its own expression, where there is one; else the name alone."""
        holders = []
        one = named
        while one is not thing:
            if type(one) is not CellType:
                holders.append(one)
            one = below[id(one)]
        way = way_through(holders, thing) if name.expression and base_of(thing) is not None else None
        if way is not None:
            return name.text(thing, way)
        return name.text(_native_content(named) if type(named) is CellType else named)

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

    def _names_of(self, thing: object, below: set[int]) -> Iterator[_Name]:
        """By everything that refers to it by a name. below: what was passed on the way to it."""
        if (place := self._locals.get(id(thing))) is not None:
            name, _, where = place.partition(", ")
            yield _Name(0, name.strip("`"), f", {where}")
        for holder in self._above(thing):
            if id(holder) in self._spaces:
                space = self._spaces[id(holder)]
                if (key := key_of(space, thing)) is not None:  # type: ignore[arg-type]
                    yield _Name(1, key, f", a global of {_file_of_module(space)}")
            elif type(holder) is dict:
                yield from self._by_space(thing, holder, below)
            elif is_a(holder, tuple):
                yield from self._by_tuple(thing, holder)  # type: ignore[arg-type]
            elif type(holder) is FrameType:
                if self._is_known(holder):
                    yield from self._by_frame(thing, holder)
            elif is_generator(holder):
                yield _Name(6, "", f" in the {class_name(holder)} {_generator(holder)}")
            elif base_of(holder) is None and type(holder) not in (CellType, FunctionType, TracebackType):
                yield from self._by_attribute(thing, holder, below)

    def _by_attribute(self, thing: object, instance: object, below: set[int]) -> Iterator[_Name]:
        name = attribute_of(instance, thing)
        if name is None or name in _TRANSPARENT:
            return
        if name.endswith("_hooks"):
            yield _Name(3, None, self._hook(thing, name, instance, below))
        elif not _is_of_torch(type(instance)):
            way, whose = self._reached(instance, _OUTER)
            within = f" in {whose}" if whose else ""
            where = f", an attribute of {class_name(instance)}{within}"
            yield _Name(_OF_INSTANCE, f"{way}.{name}", where, _whose_bound(thing, instance))

    def _reached(self, instance: object, outer: int) -> tuple[str, str]:
        """How the program reaches an instance: "trainer.buffer", or "self.buffer" of an instance of "Trainer", which is
        "" where it is this one. outer: so many instances are looked for beyond it."""
        if not self._is_last and id(instance) not in self._asked:
            self._waits = True
        found = []
        if (place := self._locals.get(id(instance))) is not None:
            found.append((1, place.partition(", ")[0].strip("`"), ""))
        for holder in self._above(instance):
            if id(holder) in self._spaces:
                if (key := key_of(self._spaces[id(holder)], instance)) is not None:  # type: ignore[arg-type]
                    found.append((0, key, ""))
            elif outer:
                for owner in (holder, *(self._above(holder) if type(holder) is dict else ())):
                    if base_of(owner) is None and not self.is_end(owner) and not _is_of_torch(type(owner)):
                        name = attribute_of(owner, instance)
                        if name is not None and name not in _TRANSPARENT:
                            way, whose = self._reached(owner, outer - 1)
                            unnamed = whose or class_name(owner) if way.partition(".")[0] == _UNNAMED else ""
                            found.append((2, f"{way}.{name}", unnamed))
        return min(found)[1:] if found else (_UNNAMED, "")

    def _by_space(self, thing: object, space: dict[object, object], below: set[int]) -> Iterator[_Name]:
        key = key_of(space, thing)
        for owner in self._above(space):
            if is_a(owner, type) and key is not None:
                cls = str(name_of_class(owner))
                yield _Name(2, f"{cls}.{key}", f", an attribute of the class {cls}")
            elif type(owner) is FunctionType:
                if owner.__kwdefaults__ is space and self._is_known(owner) and not self._is_hook(owner):
                    yield _Name(5, key or "", f", a default argument of {_function(owner)}")
                elif owner.__globals__ is space and key is not None:
                    yield _Name(1, key, f", a global of {_file(owner.__code__)}")
            elif base_of(owner) is None and type(owner) is not FrameType and space_of(owner) is space:
                yield from self._by_attribute(thing, owner, below)

    def _by_tuple(self, thing: object, held: tuple[object, ...]) -> Iterator[_Name]:
        """Closures and default arguments; a function that is itself a hook is found from its hooks."""
        for owner in self._above(held):
            if type(owner) is not FunctionType or not self._is_known(owner) or self._is_hook(owner):
                continue
            if owner.__closure__ is held and type(thing) is CellType:
                names = [n for n, one in zip(owner.__code__.co_freevars, held, strict=False) if one is thing]
                yield _Name(5, "".join(names), f", in a closure of {_function(owner)}")
            elif owner.__defaults__ is held:
                yield _Name(5, "", f", a default argument of {_function(owner)}")

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

    def _by_frame(self, thing: object, frame: FrameType) -> Iterator[_Name]:
        code = frame.f_code
        names = [name for name, value in _native.locals_of(frame) if value is thing]
        traced = any(type(one) is TracebackType for one in self._above(frame))
        why = "an exception's traceback" if traced else "a frame"
        where = f" in {why}, a local of {code.co_name}() at {_file(code)}:{frame.f_lineno}"
        yield _Name(7, names[0] if names else "", where)


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
