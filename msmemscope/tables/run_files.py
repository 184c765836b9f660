"""A run directory may come from somebody else: how its files are reached without being led out of it.

A link in the place of a journal would have its target truncated, one in the place of cluster/ would have files written
where it points, a FIFO would hang whoever opens it. So commands look through the whole directory before they work on
one (`inspect`), and what is read is opened below the directory's descriptor, no link followed (`Anchor`).
"""

from __future__ import annotations

import fnmatch
import json
import os
import stat
import weakref
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msmemscope.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 3  # of the tables, as run.json says it
READABLE_SCHEMAS = (2, SCHEMA_VERSION)  # of 2 no record says a stream
DEEPEST = 8  # directories below a run; its own deepest file lies four down
LARGEST_JSON_BYTES = 1 << 30
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a FIFO is waited for by its very opening.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Anchor:
    """A directory held by its descriptor: whatever is renamed or linked meanwhile, what it opens lies below it.

    Names are relative, with "/" between components. Links on the way to `path` itself are the caller's own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)

    def open(self, name: str) -> IO[bytes]:
        """The file for reading. OSError when it is not there or no regular file, or a link stands on the way."""
        *folders, last = name.split("/")
        folder = self._folder(folders)
        try:
            file = os.open(last, _FILE, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(f"{name} is not a regular file")
        return os.fdopen(file, "rb")

    def open_native(self, name: str) -> pa.NativeFile:
        """As `open`, for what Arrow reads with threads of its own: they let go of a file of Python's when they come to
        it, and one that does so while the interpreter ends takes the process with it."""
        import pyarrow as pa

        with self.open(name) as file:
            return pa.OSFile(f"/proc/self/fd/{file.fileno()}")

    def names(self, folder: str, pattern: str) -> list[str]:
        """The names in `folder` ("" for the directory itself) that match, sorted, with the folder before each; none
        when it is not there or no directory."""
        try:
            opened = self._folder(folder.split("/") if folder else [])
        except OSError:
            return []
        try:
            found = fnmatch.filter(os.listdir(opened), pattern)  # noqa: PTH208 - a descriptor has no Path
        finally:
            os.close(opened)
        return sorted(f"{folder}/{name}" if folder else name for name in found)

    def json(self, name: str) -> Any:
        """A decoded JSON file. FileNotFoundError when there is none, RunError when it cannot be used."""
        try:
            with self.open(name) as file:
                if os.fstat(file.fileno()).st_size > LARGEST_JSON_BYTES:
                    raise RunError(f"{self.path}: {name} is larger than {LARGEST_JSON_BYTES >> 30} GiB")
                return json.loads(file.read().decode("utf-8"))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RunError(f"{self.path}: {name} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
            raise RunError(f"{self.path}: {name} is damaged ({why}): take it from a copy of the run") from error

    def _folder(self, names: list[str]) -> int:
        opened = os.open(".", _DIRECTORY, dir_fd=self._fd)
        for name in names:
            try:
                deeper = os.open(name, _DIRECTORY, dir_fd=opened)
            finally:
                os.close(opened)
            opened = deeper
        return opened


def inspect(run: Path, *, to_write: bool) -> None:
    """Raises RunError, naming the first fault, unless there is nothing but directories and regular files below `run`.

    to_write: each directory must also be one that nobody else can change meanwhile.
    """
    try:
        top = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(f"{run} cannot be opened: {error.strerror}") from None
    try:
        _inspect(top, run, to_write, DEEPEST)
    except OSError as error:
        raise RunError(f"{run} cannot be looked through: {error.strerror}") from None
    finally:
        os.close(top)


def _inspect(folder: int, path: Path, to_write: bool, deeper: int) -> None:
    facts = os.fstat(folder)
    copy = "copy the run (cp -r) and use the copy"
    if to_write and facts.st_uid != os.geteuid():
        raise RunError(f"{path} belongs to another user, who could change it meanwhile: {copy}")
    if to_write and facts.st_mode & stat.S_IWOTH:
        raise RunError(f"{path} can be written by everybody: chmod o-w, or {copy}")
    if deeper == 0:
        raise RunError(f"{path} lies deeper than any directory of a run: it was not written by msmemscope")
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue  # the run is still being recorded
        if stat.S_ISDIR(mode):
            inner = os.open(name, _DIRECTORY, dir_fd=folder)
            try:
                _inspect(inner, path / name, to_write, deeper - 1)
            finally:
                os.close(inner)
        elif not stat.S_ISREG(mode):
            kind = next((word for test, word in _KINDS if test(mode)), "a device")
            raise RunError(f"{path / name} is {kind}: a run holds directories and regular files alone; remove it")


_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)
