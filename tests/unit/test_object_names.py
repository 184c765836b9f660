"""Names of native frames: an object is a file that anybody may have written."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

NAMES = """
import struct, sys
from msmemscope._native import ObjectNames
from msmemscope.vocabulary import Kind

MASK = (1 << 64) - 1

def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)

EMPTY = mix((int(Kind.STRING) * 0x9E3779B97F4A7C15 + 1) & MASK)  # native/record/record.h: text_id
path = sys.argv[1].encode()
ids = struct.pack("<64Q", *range(1, 65))
cut = {
    "strings": {"id": struct.pack("<Q", 7), "bytes": struct.pack("<I", len(path)), "text": path},
    "frames": {"id": ids, "file": struct.pack("<64Q", *[7] * 64), "function": struct.pack("<64Q", *[EMPTY] * 64),
               "line": struct.pack("<64I", *range(1, 65)), "kind": struct.pack("<64I", *[1] * 64)},
}
ObjectNames().add(cut)
print("done")
"""
SYMBOLS = 1 << 22


@pytest.mark.parametrize("symbol", ["nothing", "everything"])
def test_an_object_of_many_large_tables_holds_nobody_up(tmp_path: Path, symbol: str) -> None:
    sections = 60_000
    size = SYMBOLS * 24
    at = 4096 + size
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, at, 0, 64, 56, 1, 64, sections, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 4096, 4096, 4096)
    section = struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, 4096, size, 0, 0, 8, 24)
    path = tmp_path / "hostile.so"
    with path.open("wb") as file:
        file.write(header + segment)
        if symbol == "everything":  # a function of the whole address space
            file.seek(4096)
            file.write(struct.pack("<IBBHQQ", 1, 2, 0, 1, 0, 1 << 63) * SYMBOLS)
        file.seek(at)
        file.write(section * sections)
    command = [sys.executable, "-c", NAMES, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "done\n"
