"""The journal: what was acknowledged but does not stand in a table yet.

A directory of segments, each a sequence of frames, little-endian:

    offset  0         4           8           12                16                  20
            "msJ2"    u32 number  u32 length  u32 crc32 of the  u32 crc32 of bytes  message: `length` bytes, the
                                              message           0 to 16             msgpack map as it came

`number` counts the frames of a segment from 0. A message is appended before it is acknowledged, with a plain write and
no fsync: it survives SIGKILL of every process of ours, not the loss of the machine (nor would the rings, which live in
memory).

A writer killed inside an append leaves a torn frame at the end of a segment: the agent got no ack and sends it again.
Anything else that is no frame is damage: the replay goes on at the next header whose checksum is right, and the numbers
say how many frames are lost. Nothing is written to a segment that is replayed. It is deleted when everything in it
stands in tables, a damaged one moved to `damaged/` beside the journal instead: it is the only trace of what is lost.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from msmemscope.wire.messages import MAX_MESSAGE_BYTES
from msmemscope.wire.reports import Damage

DAMAGED = "damaged"  # directory
_MAGIC = b"msJ2"
_HEADER = struct.Struct("<4sIIII")
_UNCHECKED = _HEADER.size - 4  # the last field is the checksum of those before
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True)
class _Frame:
    at: int
    number: int
    length: int
    checksum: int

    @property
    def end(self) -> int:
        return self.at + _HEADER.size + self.length


class Journal:
    """Appends to one segment after the other. One process at a time."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._segments = segments(directory)
        # A name is never used twice: run.json remembers damage by the name of the segment.
        self._number = max(map(_number, [*self._segments, *segments(directory.parent / DAMAGED)]), default=0)
        self._file = -1
        self._bytes = 0
        self._frames = 0
        self.torn_bytes = 0
        self.damage: dict[str, Damage] = {}  # by name of the segment, once it is replayed

    def replay(self) -> Iterator[tuple[str, bytes]]:
        """Every whole message of the segments found at the start, oldest first, with the name of its segment."""
        for path in list(self._segments):
            with path.open("rb") as file:
                for message in self._read(file, path.name):
                    yield path.name, message

    def note_damage(self, segment: str, frames: int, size: int) -> None:
        """Counts what is no message, although its frame is whole, or no frame."""
        before = self.damage.get(segment, Damage(0, 0))
        self.damage[segment] = Damage(before.frames + frames, before.bytes + size)

    def append(self, message: bytes | memoryview) -> None:
        """Stores one message, or raises OSError (disk full) and leaves the journal as it was."""
        if self._file < 0:
            path = self._directory / f"segment-{self._number + 1:06d}.journal"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._number += 1
            self._bytes = self._frames = 0
            self._segments.append(path)
        checked = _HEADER.pack(_MAGIC, self._frames, len(message), zlib.crc32(message), 0)[:_UNCHECKED]
        parts = [memoryview(checked + struct.pack("<I", zlib.crc32(checked))), memoryview(message)]
        end = self._bytes + len(parts[0]) + len(parts[1])
        try:
            while parts:  # a short write is how a full disk begins; the next one says why
                written = os.writev(self._file, parts)
                while parts and written >= len(parts[0]):
                    written -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][written:]
        except OSError:
            os.ftruncate(self._file, self._bytes)
            os.lseek(self._file, self._bytes, os.SEEK_SET)
            raise
        self._bytes = end
        self._frames += 1

    def rotate(self) -> list[Path]:
        """Ends the current segment. Returns all segments so far, to be discarded once their content is in tables."""
        self.close()
        ended, self._segments = self._segments, []
        return ended

    def discard(self, ended: Iterable[Path]) -> None:
        """Deletes segments, and keeps the damaged ones aside."""
        for path in ended:
            if path.name not in self.damage:
                path.unlink(missing_ok=True)
            elif path.exists():
                aside = self._directory.parent / DAMAGED
                aside.mkdir(mode=0o700, exist_ok=True)
                path.replace(aside / path.name)

    @property
    def is_there(self) -> bool:
        """Is the directory there, or has somebody deleted it?"""
        return self._directory.is_dir()

    def begin_again(self) -> None:
        """After somebody deleted the directory: makes it, and begins a new segment."""
        self.close()
        self._directory.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        """Closes the current segment; the next append begins another."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # --- below: reading one segment -----------------------------------------------------------------------

    def _read(self, file: BinaryIO, segment: str) -> Iterator[bytes]:
        size = os.fstat(file.fileno()).st_size
        at = expected = 0
        while at < size:
            frame = _header(file, at)
            if frame is not None and frame.end <= size:
                self._count_gap(segment, expected, frame.number, 0)
                file.seek(at + _HEADER.size)
                message = file.read(frame.length)
                if zlib.crc32(message) == frame.checksum:
                    yield message
                else:
                    self.note_damage(segment, 1, frame.end - at)
                at, expected = frame.end, max(expected, frame.number) + 1
                continue
            following = _next_header(file, at + 1, size)
            if following is not None:
                self._count_gap(segment, expected, following.number, following.at - at)
                at, expected = following.at, max(expected, following.number)
                continue
            if frame is not None or size - at < _HEADER.size:
                self.torn_bytes += size - at
            else:
                self.note_damage(segment, 1, size - at)
            return

    def _count_gap(self, segment: str, expected: int, number: int, size: int) -> None:
        lost = max(number - expected, 0)
        if lost or size:
            self.note_damage(segment, max(lost, 1), size)


def segments(directory: Path) -> list[Path]:
    """The segments of a journal directory, oldest first."""
    return sorted(directory.glob("segment-*.journal"), key=_number) if directory.is_dir() else []


def _header(file: BinaryIO, at: int) -> _Frame | None:
    """The frame that begins at `at`, when its header is one."""
    file.seek(at)
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        return None
    _, number, length, checksum, own = _HEADER.unpack(head)
    if own != zlib.crc32(head[:_UNCHECKED]) or length > MAX_MESSAGE_BYTES:
        return None
    return _Frame(at, number, length, checksum)


def _next_header(file: BinaryIO, at: int, size: int) -> _Frame | None:
    """The first whole frame's header at or behind `at`."""
    while at < size:
        file.seek(at)
        data = file.read(_SEARCH_BYTES)
        found = data.find(_MAGIC)
        while found >= 0:
            frame = _header(file, at + found)
            if frame is not None and frame.end <= size:
                return frame
            found = data.find(_MAGIC, found + 1)
        at += max(len(data) - len(_MAGIC) + 1, 1)
    return None


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("segment-")
    return int(digits) if digits.isdigit() else 0
