"""Upstream's rows on runs with every kind of event and every sort of value: to the byte as they were.

The goldens were made by the writer in Python that was there first. Those of one run are readable; of the others there
are digests.
"""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wild_run import wild_run

from msmemscope._kernel import RowLedger, RowTexts, SqliteTable, UpstreamRows
from msmemscope.analysis.blocks import track
from msmemscope.export import files, order, process_rows
from msmemscope.export.per_device import write_dumps
from msmemscope.export.selection import Selection
from msmemscope.vocabulary import EVENT_COLUMNS, Kind

GOLDEN = Path(__file__).parent / "golden"
DIGESTS = json.loads((GOLDEN / "upstream_rows.json").read_text())
READABLE = 3  # the seed of the goldens that can be read


def lines_of(path: Path) -> list[str]:
    if path.suffix == ".csv":
        return path.read_bytes().decode().split("\n")
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [json.dumps(row, ensure_ascii=False) for row in db.execute("SELECT * FROM memscope_dump")]


def all_lines(files: list[Path]) -> str:
    """Those of every file below the pid of its process and its device."""
    lines = []
    for path in sorted(files, key=lambda path: (path.parts[-4].split("_")[1], path.parts[-3])):
        lines += [f"{path.parts[-4].split('_')[1]} {path.parts[-3]}", *lines_of(path)]
    return "\n".join(lines)


@pytest.fixture
def without_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no SQLite library is found by its name: Python's module writes."""

    class Nothing(files.SqliteTable):
        @staticmethod
        def is_available() -> bool:
            return False

    monkeypatch.setattr(files, "SqliteTable", Nothing)


@pytest.mark.usefixtures("without_sqlite")
@pytest.mark.parametrize("name", [name for name in DIGESTS if name.endswith("db")])
def test_rows_by_pythons_sqlite_are_the_same(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_rows_are_as_they_were(tmp_path, name, monkeypatch)


@pytest.mark.parametrize("name", DIGESTS)
def test_rows_are_as_they_were(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, file_format = name.split()
    wild = wild_run(int(seed))
    monkeypatch.setattr(process_rows, "_ROWS_AT_ONCE", wild.rows_at_once)
    monkeypatch.setattr(order.Chronology.__init__, "__defaults__", (wild.window,))

    report = write_dumps(
        wild.run,  # type: ignore[arg-type]
        tmp_path,
        file_format=file_format,
        selection=Selection(**wild.selection),
        incidents=track(wild.run).incidents,  # type: ignore[arg-type]
        accelerators=wild.accelerators,
    )

    text = all_lines(report.files)
    if int(seed) == READABLE:
        golden = (GOLDEN / f"upstream_rows_{file_format}.txt").read_bytes().decode()
        assert text.split("\n") == golden.split("\n")
    assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[name]


ROW_COLUMNS = {
    **EVENT_COLUMNS,
    "ts": "<i8",
    **dict.fromkeys(("id", "allocation_id", "pool_live", "process_used", "device_used", "device_total"), "<i8"),
    "owner": "<u8",
    "inefficient": "u1",
}


def marks(n: int, **values: object) -> dict[str, np.ndarray[Any, Any]]:
    columns = {name: np.zeros(n, dtype) for name, dtype in ROW_COLUMNS.items()}
    columns["kind"][:] = Kind.MARK
    for name, value in values.items():
        columns[name][:] = value
    return columns


def rows_of(source: Callable[[int, int], bytes], limit: int = 1 << 20) -> UpstreamRows:
    return UpstreamRows(RowTexts(source, limit), pid=7, json=False, owners=False, python_stacks=False)


def written(rows: UpstreamRows, columns: dict[str, np.ndarray[Any, Any]], path: Path, chosen: Any = None) -> list[str]:
    with path.open("wb") as file:
        size = rows.write_csv(file.fileno(), len(columns["kind"]), columns, "0", chosen)
    assert path.stat().st_size == size
    return path.read_text().splitlines()


def test_numbers_of_every_length_are_written_as_python_does(tmp_path: Path) -> None:
    numbers = {sign * (10**power + more) for power in range(19) for more in (-1, 0, 1, 7) for sign in (1, -1)}
    numbers |= {1 << power for power in range(63)} | {0, (1 << 63) - 1, -(1 << 63)}
    numbers |= {(0x9E3779B97F4A7C15 * n) % (1 << 62) >> n % 60 for n in range(5000)}
    values = np.array(sorted(number for number in numbers if -(1 << 63) <= number < 1 << 63), np.int64)
    columns = marks(len(values), id=values, ts=values[::-1], tid=np.abs(values).astype(np.uint32) | 1)
    columns["kind"][:] = Kind.MALLOC
    columns["ptr"][:] = values.view(np.uint64)
    cells = [line.split(",") for line in written(rows_of(lambda *_: b""), columns, tmp_path / "rows")]
    assert [int(row[0]) for row in cells] == values.tolist()
    assert [row[0] for row in cells] == list(map(str, values.tolist()))
    assert [row[4] for row in cells] == list(map(str, values[::-1].tolist()))
    assert [row[6] for row in cells] == list(map(str, columns["tid"].tolist()))
    assert [row[8] for row in cells] == [f"0x{ptr:016x}" for ptr in columns["ptr"].tolist()]


def test_texts_are_asked_for_once_and_kept_within_the_limit(tmp_path: Path) -> None:
    asked: list[int] = []

    def text(_form: int, id: int) -> bytes:
        asked.append(id)
        return b"%d" % id * 5000

    names = np.tile(np.arange(1, 11, dtype=np.uint64), 3)
    lines = written(rows_of(text), marks(30, name=names), tmp_path / "rows")
    assert asked == list(range(1, 11))
    assert [line.split(",")[3] for line in lines] == [str(name) * 5000 for name in names.tolist()]

    asked.clear()
    lines = written(rows_of(text, limit=12_000), marks(30, name=names), tmp_path / "rows")
    assert len(asked) > 20  # no more than two or three are kept
    assert [line.split(",")[3] for line in lines] == [str(name) * 5000 for name in names.tolist()]


def test_a_text_that_cannot_be_had_is_the_callers_error(tmp_path: Path) -> None:
    def text(_form: int, _id: int) -> bytes:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        written(rows_of(text), marks(3, name=5), tmp_path / "rows")


def test_wrong_columns_are_refused(tmp_path: Path) -> None:
    rows = rows_of(lambda *_: b"x")
    columns = marks(3)
    for name, column in (
        ("size", None),
        ("size", columns["size"][:2]),
        ("size", columns["size"].astype(np.int32)),
        ("size", np.zeros(6, np.int64)[::2]),
        ("size", np.frombuffer(bytes(33), np.uint8)[1:25].view(np.int64)),
    ):
        wrong = {**columns, name: column}
        if column is None:
            del wrong[name]
        with pytest.raises(ValueError, match="column 'size'"):
            written(rows, wrong, tmp_path / "rows")
    for chosen in ([3], [-1], [1 << 40]):
        with pytest.raises(IndexError):
            written(rows, columns, tmp_path / "rows", np.array(chosen, np.int64))
    with pytest.raises(ValueError, match="'home'"):
        RowLedger(0).settle(3, {**columns, "ts": columns["name"]}, np.zeros(2, np.uint16))


def test_a_disk_without_room_is_an_oserror(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full, pytest.raises(OSError, match="No space left"):
        rows_of(lambda *_: b"x").write_csv(full.fileno(), 3, marks(3), "0")
    with pytest.raises(OSError, match="unable to open"):
        SqliteTable(str(tmp_path / "absent.db"), "INSERT INTO t VALUES (?)")
    path = tmp_path / "small.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (a, b, c, d, e, f, g, h, i, j, k, l)")
    table = SqliteTable(str(path), f"INSERT INTO t VALUES ({','.join('?' * 12)})")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
    try:
        with pytest.raises(OSError, match="disk"):
            rows_of(lambda *_: b"x" * 500).insert(table, 1000, marks(1000, name=1), "0")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    table.close()
    with pytest.raises(OSError, match="closed"):
        rows_of(lambda *_: b"x").insert(table, 1, marks(1), "0")
