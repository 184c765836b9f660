"""The observer of torch's operators: where it lies once it is built, and how it is built.

In: an installed torch, a C++ compiler, the sources of native/torch_ext. Out: a shared library in the user's cache, one
for each torch, ABI, compiler and content of the sources. A rank looks for it and, when it is not there, lets a process
beside it build one (rank/operators.py); `msmemscope build-torch-ext` builds it beforehand.

This is imported inside ranks: nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import os
import sys

from msmemscope.errors import MemscopeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "torch_ext")
COMPILERS = ("c++", "g++", "clang++")
STANDARDS = ("c++17", "c++20")  # the first that this torch's headers compile with
LIMIT_S = 600.0
OLDEST = (2, 3)  # torch's major and minor version; before, neither the observer nor the dispatch mode was ever tried
_LOCK = "lock"


class Torch:
    """The torch that an observer is built for. `key` names what its library depends on, the compiler left out."""

    def __init__(self, directory: str, abi: int, key: str) -> None:
        self.directory = directory
        self.abi = abi
        self.key = key

    @property
    def cache(self) -> str:
        chosen = os.environ.get("XDG_CACHE_HOME", "")
        base = chosen if chosen.startswith("/") else os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.join(base, "msmemscope", "torch_ext", self.key)


def torch_of(module: ModuleType) -> Torch:
    """What `module`, the imported torch, is. Raises MemscopeError when it is older than OLDEST."""
    import hashlib
    import re

    version = re.match(r"(\d+)\.(\d+)", str(module.__version__))
    if version is not None and (int(version[1]), int(version[2])) < OLDEST:
        raise MemscopeError(
            f"torch {module.__version__} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest whose operators can be "
            "recorded; everything else is recorded with it"
        )
    module_version = getattr(module, "version", None)
    abi = int(bool(module._C._GLIBCXX_USE_CXX11_ABI))
    digest = hashlib.sha256(f"{module.__version__}\0{getattr(module_version, 'git_version', '')}\0{abi}\0".encode())
    digest.update(os.uname().machine.encode())
    for name in _source_files():
        digest.update(f"\0{name}\0".encode())
        with open(os.path.join(SOURCES, name), "rb") as file:
            digest.update(file.read())
    directory = os.path.dirname(os.path.abspath(str(module.__file__)))
    return Torch(directory, abi, f"{module.__version__}-{digest.hexdigest()[:16]}")


def built(torch: Torch) -> str | None:
    """The path of an observer for `torch`: that of this machine's compiler before any other's. None: there is none."""
    path = find_compiler()
    own = _library(torch, path) if path else ""
    if own and os.path.exists(own):
        return own
    try:
        names = sorted(name for name in os.listdir(torch.cache) if name.endswith(".so") and not name.startswith("."))
    except OSError:
        return None
    return os.path.join(torch.cache, names[0]) if names else None


def refused(torch: Torch) -> str | None:
    """Why there can be none: no compiler, or what it said when it was last tried. None: it has not been tried."""
    path = find_compiler()
    if path is None:
        return "there is no C++ compiler (apt-get install g++)"
    try:
        with open(_library(torch, path) + ".refused", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def build(torch: Torch, *, wait: bool = True) -> str | None:
    """Builds the observer unless it is there, and returns its path. Of several processes one builds; the others wait
    for it, or with `wait` off return None. Raises MemscopeError when it cannot be built; that is remembered."""
    path = find_compiler()
    if path is None:
        raise MemscopeError(f"the operator observer cannot be built: {refused(torch)}")
    library = _library(torch, path)
    try:
        os.makedirs(torch.cache, exist_ok=True)
        with open(os.path.join(torch.cache, _LOCK), "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                return None
            if not os.path.exists(library):
                _compile(torch, path, library)
            return library
    except OSError as error:
        raise MemscopeError(f"the operator observer cannot be built in {torch.cache}: {error.strerror}") from None


def main(words: list[str]) -> int:
    """The process beside a rank: directory of its session, torch's directory, ABI, key."""
    _, directory, abi, key = words
    os.nice(19)
    try:
        build(Torch(directory, int(abi), key), wait=False)
    except MemscopeError as error:
        print(f"[msmemscope] Warning: {error}", file=sys.stderr)
        return 1
    return 0


def find_compiler() -> str | None:
    """CXX, or the first of the usual ones in PATH."""
    for name in filter(None, (os.environ.get("CXX"), *COMPILERS)):
        for directory in ("",) if os.sep in name else os.environ.get("PATH", "").split(os.pathsep):
            path = os.path.join(directory, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return None


def _library(torch: Torch, compiler: str) -> str:
    """Another compiler, also one that was updated in its place, makes another library."""
    from zlib import crc32

    real = os.path.realpath(compiler)
    status = os.stat(real)
    mark = crc32(f"{real}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return os.path.join(torch.cache, f"observer-{mark:08x}.so")


def _source_files() -> Iterator[str]:
    return iter(sorted(name for name in os.listdir(SOURCES) if name.endswith((".cpp", ".h", ".inc"))))


def _compile(torch: Torch, compiler: str, library: str) -> None:
    """Under the lock. Renamed when it is whole: who is ended in the middle leaves no library."""
    from subprocess import DEVNULL, PIPE, STDOUT, TimeoutExpired, run

    partial = os.path.join(torch.cache, f".{os.path.basename(library)}")
    said = ""
    for standard in STANDARDS:
        command = [
            compiler, f"-std={standard}", "-O2", "-DNDEBUG", "-w", "-fPIC", "-shared", "-fvisibility=hidden",
            f"-D_GLIBCXX_USE_CXX11_ABI={torch.abi}", f"-I{torch.directory}/include",
            os.path.join(SOURCES, "observer.cpp"), "-o", partial, f"-L{torch.directory}/lib", "-lc10", "-ltorch_cpu",
        ]  # fmt: skip
        try:
            done = run(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, check=False, timeout=LIMIT_S)
        except TimeoutExpired:
            said = f"{compiler} takes longer than {LIMIT_S:.0f} s"
            break
        if done.returncode == 0:
            os.replace(partial, library)
            if os.path.exists(library + ".refused"):
                os.unlink(library + ".refused")
            return
        errors = [line.strip() for line in done.stdout.splitlines() if "error" in line]
        said = errors[0] if errors else f"{compiler} ended with {done.returncode}"
    with open(library + ".refused", "w", encoding="utf-8") as file:
        file.write(said)
    raise MemscopeError(f"the operator observer cannot be built: {said}")
