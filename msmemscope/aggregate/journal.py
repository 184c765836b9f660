"""The journal: what was acknowledged but does not stand in a table yet.

A directory of segments, each a sequence of frames ``[u32 length][u32 crc32][message]``, little-endian; the
message is the msgpack map as it came over the wire. A message is appended before it is acknowledged, with a
plain write and no fsync: it survives SIGKILL of every process of ours, not the loss of the machine (nor would
the rings, which live in memory).

A segment is deleted when everything in it stands in tables. A writer killed inside an append leaves a torn
frame at the end of the last segment; the replay cuts it off, and the agent, which got no ack, sends it again.
A frame damaged in place is skipped and counted: what was acknowledged in it is lost, and said to be.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msmemscope.aggregate.wire import MAX_MESSAGE_BYTES

_FRAME = struct.Struct("<II")


class Journal:
    """Appends to one segment after the other. One process at a time."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._segments = segments(directory)
        self._number = max((_number(path) for path in self._segments), default=0)
        self._file = -1
        self._bytes = 0
        self.torn_bytes = 0
        self.damaged_frames = 0

    def replay(self) -> Iterator[bytes]:
        """Every whole message of the segments found at the start, oldest first."""
        for path in list(self._segments):
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                good = 0
                while good < size:
                    message, end = self._read_frame(file, good, size)
                    if end > size:
                        self.torn_bytes += size - good
                        break
                    good = end
                    if message is not None:
                        yield message
            if good < size:
                os.truncate(path, good)

    def append(self, message: bytes | memoryview) -> None:
        """Stores one message, or raises OSError (disk full) and leaves the journal as it was."""
        if self._file < 0:
            path = self._directory / f"segment-{self._number + 1:06d}.journal"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._number += 1
            self._bytes = 0
            self._segments.append(path)
        parts = [memoryview(_FRAME.pack(len(message), zlib.crc32(message))), memoryview(message)]
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

    def rotate(self) -> list[Path]:
        """Ends the current segment. Returns all segments so far, to be deleted once their content is in tables."""
        self.close()
        ended, self._segments = self._segments, []
        return ended

    def close(self) -> None:
        """Closes the current segment; the next append begins another."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read_frame(self, file: BinaryIO, at: int, size: int) -> tuple[bytes | None, int]:
        """The message at `at` (None: damaged) and where the next frame begins; past `size` when it is torn."""
        head = file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return None, size + 1
        length, checksum = _FRAME.unpack(head)
        end = at + _FRAME.size + length
        if length > MAX_MESSAGE_BYTES or end > size:
            return None, size + 1
        message = file.read(length)
        if zlib.crc32(message) != checksum:
            self.damaged_frames += 1
            return None, end
        return message, end


def segments(directory: Path) -> list[Path]:
    """The segments of a journal directory, oldest first."""
    return sorted(directory.glob("segment-*.journal"), key=_number) if directory.is_dir() else []


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("segment-")
    return int(digits) if digits.isdigit() else 0
