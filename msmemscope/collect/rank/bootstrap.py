"""Brings a process under watch when it imports a framework, without touching its code.

Imported at the start of every Python process that has MSMEMSCOPE_SESSION (msmemscope.pth), and by `import msmemscope`.
Most of those are not worth watching (pip, a compiler driver, an elastic agent), so it only waits: for the import of a
framework, for the hook library to find a function that allocates, for a call of the API. Then it attaches to the
session; without one, blocks are remembered until msmemscope.start(). A fault here must never show in the program: it is
said once on stderr and recording stays off.
"""

from __future__ import annotations

import errno
import os
import sys
from _thread import get_ident

FRAMEWORKS = ("torch", "torch_npu", "mindspore")
WITH_MSTX_POOLS = ("torch_npu", "mindspore")
PRELOAD_VARIABLE = "LD_PRELOAD"
INJECTION_VARIABLE = "MSTX_INJECTION_PATH"
SESSION_VARIABLE = "MSMEMSCOPE_SESSION"  # as session.py has it, which is not worth importing yet
EXPECTED = "expected"  # in the session directory: a process looks for a framework, so make the services ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import cast
else:

    def cast(_type, value):
        return value


class OwnImports:
    """`with own_imports:` what this thread imports of the standard library is the standard library's, also where a
    module of the user's has its name; she still gets hers when she imports it."""

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._shadowed: list[str] = []

    def __enter__(self) -> None:
        self._threads.append(get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.remove(get_ident())
        while self._shadowed:
            name = self._shadowed.pop()
            for loaded in [loaded for loaded in sys.modules if loaded == name or loaded.startswith(name + ".")]:
                del sys.modules[loaded]

    def find(self, name: str) -> ModuleSpec | None:
        """The standard library's module of this name for our thread, None where the others may look as usual."""
        if get_ident() not in self._threads or name not in sys.stdlib_module_names or name in sys.builtin_module_names:
            return None
        home = os.path.dirname(os.path.abspath(os.__file__))
        library = (home, os.path.join(home, "lib-dynload"))
        finder = sys.modules["_frozen_importlib_external"].PathFinder
        usual = finder.find_spec(name)
        standard: ModuleSpec | None = finder.find_spec(name, [entry for entry in sys.path if entry in library])
        if usual is None or (standard is not None and standard.origin == usual.origin):
            return None
        if standard is None:  # one of another system, such as msvcrt
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        self._shadowed.append(name)
        return standard


class _AfterImport:
    """A meta-path finder that finds nothing itself: it lets the others find a framework and wraps its loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in FRAMEWORKS and name not in _awaited:
            return own_imports.find(name)
        if name in FRAMEWORKS:
            _expect()
        for finder in sys.meta_path:
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = cast("Loader", _Loader(spec.loader))
                return spec
        return None


class _Loader:
    """Runs the real loader, and then sees to the framework. Everything else is the real loader's."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _see_to(module)


def install() -> None:
    """Waits for frameworks; those that are already there are seen to at once."""
    sys.meta_path.insert(0, _AfterImport())
    for name in FRAMEWORKS:
        if name in sys.modules:
            _see_to(sys.modules[name])
    after_import("ray", _watch_ray)


def _watch_ray(module: ModuleType) -> None:
    from msmemscope.collect.rank import ray_clusters

    ray_clusters.watch(module)


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Calls `action` with the module of this name once it has been imported, or now; what it raises is said."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _call(action, module)
    else:
        _awaited.setdefault(name, []).append(action)


def _call(action: Callable[[ModuleType], None], module: ModuleType) -> None:
    _safely(lambda: action(module))


def _expect() -> None:
    """Lets the services make themselves ready while the framework is imported (standby.py)."""
    session = os.environ.get(SESSION_VARIABLE)
    if session:
        try:
            os.close(os.open(os.path.join(session, EXPECTED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:
            return  # then they are ready a moment later


def _see_to(module: ModuleType) -> None:
    """A module that is waited for has just been imported. A framework has not allocated yet. Not earlier: while
    torch_npu is imported it looks into LD_PRELOAD too, and would change how it finds CANN's functions, and say so."""
    for action in _awaited.pop(module.__name__, ()):
        _call(action, module)
    if module.__name__ in WITH_MSTX_POOLS:
        _safely(announce)
    if module.__name__ in FRAMEWORKS:
        _safely(arm)


def announce() -> None:
    """Makes torch_npu and MindSpore tell their pools: they do when an entry of LD_PRELOAD resolves to a file of our
    name, whether or not it was preloaded. They look once, at their first allocation, into the C environment, which
    os.environ writes through to. Where mstx finds the receiver is said too, since Python loads us RTLD_LOCAL.

    When the library was really preloaded, both are so already and nothing changes: nor when it is the copy of another
    installation, for two of them in the children's LD_PRELOAD help nobody.
    """
    from msmemscope.collect.session import hook_library

    library = hook_library()
    tool = os.environ.get(INJECTION_VARIABLE)
    if tool and os.path.realpath(tool) != os.path.realpath(library):
        _say(f"{INJECTION_VARIABLE} names {tool}: pools and marks are told to that, and not recorded; unset it")
    preloaded = os.environ.get(PRELOAD_VARIABLE, "")
    entries = preloaded.replace(" ", ":").split(":")
    if any(os.path.basename(one) == os.path.basename(library) and os.path.isfile(one) for one in entries):
        return
    if not os.path.isfile(library) or ":" in library or " " in library:
        _say(f"pools of torch_npu and MindSpore are not seen: {library} cannot stand in {PRELOAD_VARIABLE}; move it")
        return
    # First and with a colon: torch_npu separates at colons alone.
    os.environ[PRELOAD_VARIABLE] = f"{library}:{preloaded}" if preloaded else library
    if not tool:
        os.environ[INJECTION_VARIABLE] = library


def arm() -> None:
    """Attaches to the session of the environment and starts recording unless the mode is deferred; without a session,
    remembers blocks until msmemscope.start()."""
    if not os.environ.get(SESSION_VARIABLE):
        from msmemscope import _native

        _native.install_hooks()
        _native.remember()
        return
    from msmemscope import _native
    from msmemscope.collect.rank.attach import attach, attached
    from msmemscope.collect.session import Session
    from msmemscope.errors import MemscopeError

    first = attached() is None
    try:
        session = attached() or Session.load(os.environ[SESSION_VARIABLE])
    except MemscopeError:
        _native.set_session(os.environ[SESSION_VARIABLE])
        _native.note_unwatched(_obstacle(os.environ[SESSION_VARIABLE]))
        raise
    attach(session)
    if first and session.config.collect_mode == "immediate":
        _native.start()


def _obstacle(session: str) -> int:
    """Why the session cannot be read."""
    try:
        os.stat(session)
    except OSError as error:
        return error.errno or errno.EACCES
    return errno.EACCES


def allocator_found() -> None:
    """The process has come by a function that allocates (native/hook/interpreter.h): it is worth watching without a
    framework too. While one is being imported, its own turn comes."""
    if not any(name in sys.modules for name in FRAMEWORKS):
        watch_now()


def watch_now() -> None:
    """Attaches to the session of the environment, if there is one, whatever is imported."""
    if os.environ.get(SESSION_VARIABLE):
        _safely(arm)


def _safely(action: Callable[[], None]) -> None:
    try:
        with own_imports:
            action()
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the program
        _say(f"this process is not watched: {error}")


def _say(text: str) -> None:
    """torch and torch_npu may meet the same fault."""
    from msmemscope.telling import warn_once

    warn_once(text)


_awaited: dict[str, list[Callable[[ModuleType], None]]] = {}
own_imports = OwnImports()

install()
