"""Files as upstream writes them, of any number of rows: a training job, written as fast as a disk takes it.

In: how many rows, and how many of them a step has. Out: a csv, or a db of the same rows. A step is a template of bytes
in which the digits of IDs, times and allocation ids are written over for each step, so that 100 million rows (11 GB)
are made a step at a time.

Of six rows four are of a block (allocation with its call stack, two accesses, release), two of the operator that made
it. The rows of a block come when it ends, as upstream writes them; every tenth ends in the step behind its own. A step
begins with a mark "epoch", has a block that is never released, and ends with a row of msmemscope.step().
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
OPERATORS, SITES = 200, 2_000
VARIANTS = 8  # of the steps of an edited file
_ID, _TIME, _BLOCK, _ADDRESS = b"@" * 9, b"&" * 10, b"^" * 9, b"~" * 9
_FIRST_ID = 200_000_000  # so that all have nine digits
_LEAKED = 0x2_0000_0000


class _Line(NamedTuple):
    """number, block: of the row and its block among those of the step; below 0 of the step before."""

    number: int
    block: int
    text: str


def write_csv(path: Path, rows: int, per_step: int, edits: float = 0.0) -> int:
    """Returns how many rows it has: whole steps. edits: of each operator, the chance that its name is another one (half
    of them) or that it is not there."""
    written = 0
    with path.open("wb", buffering=0) as file:
        file.write(HEADER.encode() + b"\n")
        for text, count in _steps(rows, per_step, edits):
            file.write(text)
            written += count
    return written


def write_db(path: Path, rows: int, per_step: int) -> int:
    """The same rows, with the types of upstream's columns and as its writer fills them."""
    names = HEADER.split(",")
    whole = ("ID", "Timestamp(ns)", "Process Id", "Thread Id")
    columns = ", ".join(f'"{name}" {"INTEGER" if name in whole else "TEXT"}' for name in names)
    written = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=OFF")
        database.execute("PRAGMA synchronous=OFF")
        database.execute(f"CREATE TABLE memscope_dump ({columns})")
        for text, count in _steps(rows, per_step, 0.0):
            database.execute("BEGIN")
            database.executemany(f"INSERT INTO memscope_dump VALUES ({','.join('?' * len(names))})", _cells(text))
            database.execute("COMMIT")
            written += count
    return written


def _cells(text: bytes) -> Iterator[list[str]]:
    # A call stack has line ends of its own: rows are told apart by what they end with.
    for line in text.decode().replace('main",\n', 'main",\0').replace(",,\n", ",,\0").split("\0")[:-1]:
        cells, quoted = line.partition('"')[0].split(","), line.split('"')
        attr = quoted[1] if len(quoted) > 1 else ""
        stack = quoted[3] if len(quoted) > 3 else ""
        yield [*cells[:9], attr, stack, ""]


def _steps(rows: int, per_step: int, edits: float) -> Iterator[tuple[bytes, int]]:
    chance = random.Random(2)
    steps = [_Step(per_step, edits, seed) for seed in range(VARIANTS if edits else 1)]
    for number in range(max(rows // per_step, 1)):
        step = chance.choice(steps)
        yield step.text(number), step.rows


class _Step:
    """A step as bytes. Every variant of it numbers its rows and blocks alike, so that each follows each."""

    def __init__(self, per_step: int, edits: float, seed: int) -> None:
        self._per_step, self._blocks = per_step, (per_step - 3) // 6
        lines = list(self._lines(random.Random(seed), edits))
        self.rows = len(lines)
        text = "\n".join(line.text for line in lines) + "\n"
        self._bytes = np.frombuffer(text.encode(), np.uint8).copy()
        numbers = np.array([line.number for line in lines], np.int64)
        blocks = np.array([line.block for line in lines if _BLOCK.decode() in line.text], np.int64)
        self._fields = [
            (_places(text.encode(), _ID), numbers + _FIRST_ID, per_step),
            (_places(text.encode(), _TIME), (numbers + per_step) * 10, per_step * 10),
            (_places(text.encode(), _BLOCK), blocks + _FIRST_ID, self._blocks + 1),
        ]
        self._leaked = _places(text.encode(), _ADDRESS)

    def text(self, number: int) -> bytes:
        for places, first, each in self._fields:
            _write_digits(self._bytes, places, first + each * number)
        address = np.frombuffer(f"{_LEAKED + number * 4096:09x}".encode(), np.uint8)
        for start, end in self._leaked.tolist():
            self._bytes[start:end] = address
        return self._bytes.tobytes()

    def _lines(self, chance: random.Random, edits: float) -> Iterator[_Line]:
        """In the order of the file."""
        yield _Line(0, 0, _row("MSTX", "Mark", "epoch"))
        ended: list[_Line] = []
        for block in range(self._blocks):
            at = 1 + block * 6
            name = f"aten::op_{block * 7 % OPERATORS}"
            is_edited = chance.random() < edits
            if is_edited:
                name = f"aten::other_{chance.randrange(OPERATORS)}"
            if not is_edited or chance.random() < 0.5:
                yield _Line(at, 0, _row("OP_LAUNCH", "ATEN_START", name))
                yield _Line(at + 3, 0, _row("OP_LAUNCH", "ATEN_END", name))
            of_block = list(_block_rows(block, at))
            if block % 10 == 9:
                of_block = [
                    _Line(one.number - self._per_step, one.block - self._blocks - 1, one.text) for one in of_block
                ]
            ended += of_block
            if len(ended) > 100:
                yield from ended
                ended = []
        yield from ended
        attr = f'"{{allocation_id:{_BLOCK.decode()},size:1024,used:20480,total:2097152}}"'
        stack = '"model.py(7): keep\ntrain.py(9): main",'
        address = f"0x0000000{_ADDRESS.decode()}"
        yield _Line(self._per_step - 2, self._blocks, _row("MALLOC", "PTA", "N/A", address, attr, stack))
        yield _Line(self._per_step - 1, 0, _row("SYSTEM", "STEP", "N/A"))


def _block_rows(block: int, at: int) -> Iterator[_Line]:
    pool = "PTA" if block % 50 else "HAL"
    address, size = f"0x{0x12C041400000 + block * 4096:016x}", 512 * (1 + block % 7)
    own = f"{{allocation_id:{_BLOCK.decode()},size:{size}"
    stack = f'"model.py({10 + block % SITES}): forward_{block % SITES}\ntrain.py(9): main",'
    made, ended, used = (
        f'"{own},used:20480,total:2097152}}"',
        f'"{own},used:16384,total:2097152}}"',
        f'"{own},type:{pool},dtype:float32}}"',
    )
    yield _Line(at + 1, block, _row("MALLOC", pool, "N/A", address, made, stack))
    yield _Line(at + 2, block, _row("ACCESS", "WRITE", "N/A", address, used))
    yield _Line(at + 4, block, _row("ACCESS", "READ", "N/A", address, used))
    yield _Line(at + 5, block, _row("FREE", pool, "N/A", address, ended))


def _row(event: str, kind: str, name: str, address: str = "N/A", attr: str = "", stacks: str = ",") -> str:
    time = f"179500{_TIME.decode()}000"
    return f"{_ID.decode()},{event},{kind},{name},{time},4711,4711,0,{address},{attr},{stacks}"


def _places(text: bytes, field: bytes) -> npt.NDArray[np.int64]:
    """Where a field begins and ends."""
    places, at = [], text.find(field)
    while at >= 0:
        places.append((at, at + len(field)))
        at = text.find(field, at + len(field))
    return np.array(places, np.int64).reshape(-1, 2)


def _write_digits(text: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> None:
    left = values
    for back in range(1, int(places[0, 1] - places[0, 0]) + 1):
        left, digit = np.divmod(left, 10)
        text[places[:, 1] - back] = digit + ord("0")
