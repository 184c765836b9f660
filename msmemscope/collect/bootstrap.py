"""Brings a launched program under watch without touching its code.

msmemscope.pth imports this module at the start of every Python process that has MSMEMSCOPE_SESSION. Most of those
are not worth watching (pip, a compiler driver, an elastic agent), so it only waits for the import of a framework
and attaches then. A fault here must never show in the program: it is said once on stderr and recording stays off.
"""

from __future__ import annotations

import os
import sys

FRAMEWORKS = ("torch", "mindspore")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import cast
else:

    def cast(_type, value):
        return value


class _AfterImport:
    """A meta-path finder that finds nothing itself: it lets the others find a framework and wraps its loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in FRAMEWORKS:
            return None
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
    """Runs the real loader, then attaches. Everything else is the real loader's."""

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
        attach_now()


def attach_now() -> None:
    """Attaches to the session of the environment and starts recording unless the mode is deferred."""
    try:
        from msmemscope import _native
        from msmemscope.collect.attach import attach
        from msmemscope.collect.session import SESSION_VARIABLE, Session

        session = Session.load(os.environ[SESSION_VARIABLE])
        attach(session)
        if session.config.collect_mode == "immediate":
            _native.start()
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the program
        print(f"[msmemscope] Warning: this process is not watched: {error}", file=sys.stderr)


def install() -> None:
    """Waits for a framework; attaches at once when one is already there."""
    if any(name in sys.modules for name in FRAMEWORKS):
        attach_now()
    else:
        sys.meta_path.insert(0, _AfterImport())


install()
