"""A text file that is made beside its final name: a reader never meets half of it, and writing again replaces it."""

from __future__ import annotations

import os
from pathlib import Path


def beside(path: Path) -> Path:
    """Where a file is made before it has its name."""
    return path.with_name(f".{path.name}.part")


class NewFile:
    """finish() completes it, put() puts it in place, discard() removes what was begun. OSError: there is no room."""

    def __init__(self, path: Path, header: str) -> None:
        self.path = path
        self._temporary = beside(path)
        self._temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._temporary, flags, 0o600), "wb", 0)
        self._file.write(header.encode())

    def finish(self) -> None:
        self._file.close()

    def put(self) -> None:
        self._temporary.replace(self.path)

    def discard(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)
