"""Keeps the user's modules out of our own processes: `import select` must not run a select.py of hers.

`python isolated.py MODULE ARGUMENTS…` runs MODULE's main() so (`-c CODE ARGUMENTS…`: a text), and every service is
started this way. The command line isolates itself before it imports anything else.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NO_CHILD = "-n"  # before MODULE: it runs in a child of this process, which ends at once
_SERVICES = {"msmemscope.aggregate.server": "aggregator"}  # the others are called as their modules
USER_PATH_VARIABLE = "MSMEMSCOPE_USER_PATH"  # sys.path of who started a service
# Found wherever they are: what we import, and what we only tell the version of.
_WANTED = ("numpy", "zmq", "msgpack", "pyarrow", "click", "rich", "torch", "torch_npu", "mindspore")
# Variables of Python that say where the interpreter lives; the others are meant for the program.
_KEPT = {
    "PYTHONCOERCECLOCALE",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "PYTHONPLATLIBDIR",
    "PYTHONPYCACHEPREFIX",
    "PYTHONUSERBASE",
    "PYTHONUTF8",
}


def isolate(from_user: Iterable[str]) -> None:
    """Takes the directories `from_user` off sys.path. One of them comes back, behind all others, when it alone has a
    package that we need: an installation by `pip --target`. Our own package stays the one that this file is part of."""
    ours = os.path.dirname(os.path.abspath(__file__))
    standard = os.path.dirname(os.path.abspath(os.__file__))
    suspects = dict.fromkeys(filter(None, map(_absolute, from_user)))
    for directory in (standard, os.path.join(standard, "lib-dynload")):
        suspects.pop(directory, None)
    sys.path[:] = [entry for entry in sys.path if _absolute(entry) not in ("", *suspects)]
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    if "msmemscope" not in sys.modules:
        spec = find_spec("msmemscope")
        if spec is None or spec.origin is None or not os.path.samefile(os.path.dirname(spec.origin), ours):
            spec = spec_from_file_location("msmemscope", os.path.join(ours, "__init__.py"))
            assert spec is not None
            assert spec.loader is not None
            sys.modules["msmemscope"] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules["msmemscope"])
    for name in _WANTED:
        if find_spec(name) is None:
            found = (directory for directory in suspects if PathFinder.find_spec(name, [directory]) is not None)
            sys.path.extend(list(found)[:1])


def isolate_command(*, by_module: bool) -> None:
    """isolate() for a process that the user's shell started: PYTHONPATH is hers, and under `python -m` (`by_module`)
    Python has put her directory in front."""
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    isolate([*path, _absolute(".")] if by_module else path)


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path) if path else ""
    except FileNotFoundError:  # the current directory has been deleted, and nothing is found below it
        return ""


def isolated_command(*words: str) -> list[str]:
    """The command line that runs a module of ours, or `-c` a text, in an isolated Python; its environment is
    environment_of_service()."""
    return [sys.executable, os.path.abspath(__file__), *words]


def environment_of_service() -> dict[str, str]:
    """The variables for such a process: it is not watched, and no PYTHON* that is meant for the program
    (PYTHONWARNINGS=error, PYTHONINSPECT, ...) reaches it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD"
        and not name.startswith("MSMEMSCOPE_")
        and (name in _KEPT or not name.startswith("PYTHON"))
    }
    if not _is_at_home(kept.get("PYTHONHOME", "")):
        kept.pop("PYTHONHOME", None)
    if sys.flags.no_user_site:
        kept["PYTHONNOUSERSITE"] = "1"
    kept["OPENBLAS_NUM_THREADS"] = "1"  # numpy would start one for each core when it is imported, for nothing of ours
    kept[USER_PATH_VARIABLE] = os.pathsep.join(filter(None, sys.path))
    return kept


def _is_at_home(home: str) -> bool:
    """Is this where this interpreter lives? Else it was started without a look at it (`python -I`), or the program has
    set it for somebody else; no Python of ours would find its standard library there."""
    try:
        return any(os.path.samefile(home.partition(os.pathsep)[0], here) for here in (sys.base_prefix, sys.prefix))
    except OSError:
        return False


def run_module(name: str, arguments: list[str]) -> int:
    """Imports a module of ours and runs its main(); the exit status."""
    from importlib import import_module

    try:
        module = import_module(name)
    except Exception as error:  # noqa: BLE001 - one line and a status that says: trying again is no use
        what, why = _SERVICES.get(name, name.rpartition(".")[2]), " ".join(str(error).split())
        print(f"[msmemscope] {what}: cannot be imported ({why}); see: msmemscope doctor", file=sys.stderr)
        return 4
    return int(module.main(arguments))


def _main() -> int:
    del sys.path[0]  # the directory of this file; Python has put it there
    hers = os.environ.pop(USER_PATH_VARIABLE, "").split(os.pathsep)
    isolate(entry for entry in hers if entry and entry not in sys.path)
    what, *arguments = sys.argv[1:]
    if what == NO_CHILD:
        try:
            if os.fork():
                return 0
        except OSError:  # no process more: then in this one
            pass
        what, *arguments = arguments
    if what == "-c":
        sys.argv = arguments
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
        return 0
    from signal import SIG_DFL, SIGCHLD, signal

    signal(SIGCHLD, SIG_DFL)  # ignored, it would take us the exit status of every child
    sys.argv = [what, *arguments]
    return run_module(what, arguments)


if __name__ == "__main__":
    _status = _main()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # closed before we began
                stream.flush()
        except OSError:
            pass  # nobody reads it any more
    os._exit(_status)  # taking the interpreter apart would only make the user wait
