"""Opens a file of PyTorch's memory snapshot and takes its tables out of it.

In: a path. Out: `Snapshot`. The pickle is read natively by a reader that knows plain data and nothing else
(native/kernel/pickle_data.h), so nothing in it can run; one that grows without end when it is unpacked meets a limit.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from msmemscope._kernel import PickleError, read_torch_snapshot
from msmemscope.errors import InputError
from msmemscope.imports.regular_file import open_regular

Table = dict[str, npt.NDArray[Any]]

LEAST_BYTES = 256 << 20
MOST_BYTES = 32 << 30  # of what a snapshot may come to in memory
_CODECS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class Snapshot:
    """The tables of native/kernel/torch_snapshot.h."""

    path: Path
    traces: Table
    segments: Table
    blocks: Table
    annotations: Table
    definitions: dict[str, dict[str, bytes]]
    settings: dict[str, str]
    unknown_actions: list[str]
    left_out: int
    first_left_out: str


class _Readable(Protocol):
    def read(self, n: int, /) -> bytes: ...


def read_snapshot(path: Path, max_bytes: int | None = None) -> Snapshot:
    """Raises InputError, naming the file, for one that is no memory snapshot, is damaged or hostile, or too large.

    max_bytes: what it may take in memory while it is read; None: half of what the machine has free.
    """
    limit = _room() if max_bytes is None else max_bytes
    try:
        with open_regular(path) as file:
            found = read_torch_snapshot(_unpacked(file).read, limit)
    except PickleError as error:
        raise InputError(f"{path}: {error}") from None
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, pa.ArrowException) as error:
        raise InputError(f"{path}: it cannot be unpacked ({error}): it is cut off or damaged") from None
    except OSError as error:
        why = error.strerror or f"it cannot be unpacked ({error}): it is cut off or damaged"
        raise InputError(f"{path}: {why}") from None
    except MemoryError:
        raise InputError(f"{path}: there is not enough memory to read it") from None
    definitions = {
        kind: {name: column if isinstance(column, bytes) else column.tobytes() for name, column in columns.items()}
        for kind, columns in found.pop("definitions").items()
    }
    return Snapshot(path=path, definitions=definitions, **found)


def _unpacked(file: IO[bytes]) -> _Readable:
    begin = file.read(8)
    file.seek(0)
    codec = next((name for magic, name in _CODECS.items() if begin.startswith(magic)), "")
    if codec == "gzip":
        return gzip.GzipFile(fileobj=file)
    if codec == "bz2":
        return bz2.BZ2File(file)
    if codec == "xz":
        return lzma.LZMAFile(file)
    if codec == "zstd":
        stream: _Readable = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
        return stream
    return file


def _room() -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        return min(max(free // 2, LEAST_BYTES), MOST_BYTES)
    return min(max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2, LEAST_BYTES), MOST_BYTES)
