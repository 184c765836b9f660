"""The spool: committed bytes of one ring on disk, while the aggregator is away.

A file of a 32-byte head (magic, ring id, offset of the first byte) and then the ring's bytes verbatim, whole records
one after the other. The agent appends first and releases the ring after, so after a crash everything past the
ring's acknowledged offset is still in the ring: a restarted agent cuts the file there, and with that any torn
append, without looking into it.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HEAD = struct.Struct("<8sQQQ")
_MAGIC = b"MSCSPOL1"
_FREE_SHARE = 0.8  # of the free space may be taken


def spool_directory(session_dir: Path, session: Mapping[str, Any]) -> Path:
    """Where the spools of a session lie: beside its outputs, else among temporary files; not in memory. Those of a
    session that was moved into its run moved with it."""
    if (moved := session_dir / "spool").is_dir():
        return moved
    output = Path(str(session.get("output") or ""))
    there = next((place for place in (output, *output.parents) if place.exists()), output)  # made by who writes first
    parent = output if output.is_absolute() and os.access(there, os.W_OK) else Path(tempfile.gettempdir())
    return parent / f".{session_dir.name}-spool"


class Spool:
    """False while it holds nothing. Offsets are the ring's."""

    def __init__(self, path: Path, ring: int) -> None:
        self._path = path
        self._ring = ring
        self._file = -1
        self.start = 0
        self.end = 0

    def __bool__(self) -> bool:
        return self._file >= 0

    @property
    def size(self) -> int:
        return self.end - self.start

    def resume(self, released: int) -> None:
        """Takes up the file of an earlier agent. released: the ring's acked offset."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        head = os.pread(file, _HEAD.size, 0)
        bytes_inside = os.fstat(file).st_size - _HEAD.size
        if len(head) == _HEAD.size:
            magic, ring, start, _ = _HEAD.unpack(head)
            if magic == _MAGIC and ring == self._ring and start < released and bytes_inside > 0:
                self._file, self.start = file, start
                self.end = min(start + bytes_inside, released)
                os.ftruncate(file, _HEAD.size + self.size)
                return
        os.close(file)  # killed before anything of it was released: the ring has it all
        self._path.unlink(missing_ok=True)

    def append(self, offset: int, data: bytes) -> None:
        """Adds bytes; the first begins at the current end. OSError leaves the spool as it was."""
        if not self:
            self._create(offset)
        elif offset != self.end:  # damaged, it ends early; what it lacks is given up when reading comes to it
            raise OSError(errno.EIO, f"the spool ends at {self.end}, not at {offset}")
        place = _HEAD.size + self.size
        try:
            if len(data) > shutil.disk_usage(self._path.parent).free * _FREE_SHARE:
                raise OSError(errno.ENOSPC, "no space left there")
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, memoryview(data)[written:], place + written)
        except OSError:
            os.ftruncate(self._file, place)
            if self.size == 0:
                self.remove()
            raise
        self.end += len(data)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Up to max_bytes from offset on; b"" when they are not here."""
        if not self or not self.start <= offset < self.end:
            return b""
        return os.pread(self._file, min(max_bytes, self.end - offset), _HEAD.size + offset - self.start)

    def remove(self) -> None:
        """Forgets everything."""
        if self:
            self.close()
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        if self:
            os.close(self._file)
        self._file = -1
        self.start = self.end = 0

    def _create(self, offset: int) -> None:
        self._path.parent.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.pwrite(file, _HEAD.pack(_MAGIC, self._ring, offset, 0), 0) != _HEAD.size:
                raise OSError(errno.ENOSPC, "no space left there")
        except OSError:  # without its head a successor would not take it up
            os.close(file)
            self._path.unlink(missing_ok=True)
            raise
        self._file = file
        self.start = self.end = offset
