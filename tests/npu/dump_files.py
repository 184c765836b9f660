"""Reads upstream's per-device files back, and the two checks that upstream's smoke tests make of every one of them.

`read_dumps` gives the rows of each file with Attr parsed by the rule of docs/formats.md: a comma ends a value only
when `word:` follows.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

COLUMNS = [
    "ID",
    "Event",
    "Event Type",
    "Name",
    "Timestamp(ns)",
    "Process Id",
    "Thread Id",
    "Device Id",
    "Ptr",
    "Attr",
    "Call Stack(Python)",
    "Call Stack(C)",
]
_DUMP = re.compile(r"memscope_dump_\d{1,20}\.(csv|db)")
_PAIR = re.compile(r"(\w+):(.*?)(?=,\w+:|$)", re.S)

csv.field_size_limit(sys.maxsize)


@dataclass(frozen=True)
class DumpFile:
    path: Path
    header: list[str]
    rows: list[dict[str, str]]

    @property
    def device(self) -> str:
        return self.path.parent.parent.name.removeprefix("device_")

    @property
    def process(self) -> str:
        return self.path.parent.parent.parent.name


def find_dumps(output: Path) -> list[Path]:
    """Found as upstream's smoke tests do (all the way down, by the name) and as its users' scripts do (by the names of
    the directories). Both find the same."""
    walked = [Path(folder, name) for folder, _, names in os.walk(output) for name in names if _DUMP.fullmatch(name)]
    globbed = [path for path in output.glob("msmemscope_*_ascend/device_*/dump/*") if path.suffix in (".csv", ".db")]
    globbed = [path for path in globbed if not path.name.startswith("python_trace_")]  # its own kind of file
    assert sorted(walked) == sorted(globbed)
    assert all(re.fullmatch(r"device_(\d{1,20}|cpu)", path.parent.parent.name) for path in walked)
    return walked


def read_dumps(output: Path) -> list[DumpFile]:
    """Every memscope_dump file below `output`, csv or db, in the order in which a walk finds them."""
    files = []
    for path in find_dumps(output):
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                header, *rows = list(csv.reader(file))
        else:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
                cursor = connection.execute("select * from memscope_dump")
                header = [column[0] for column in cursor.description]
                rows = [[str(cell) for cell in row] for row in cursor]
        files.append(DumpFile(path, header, [dict(zip(header, row, strict=True)) for row in rows]))
    return files


def attr(row: dict[str, str]) -> dict[str, str]:
    """The key-value pairs of a row's Attr, a JSON object in a database."""
    if row["Attr"].startswith('{"'):
        return dict(json.loads(row["Attr"]))
    return dict(_PAIR.findall(row["Attr"].strip("{}")))


def count(files: list[DumpFile], **wanted: str) -> int:
    """Rows of all files with these values; `event` and `type` stand for Event and Event Type."""
    names = {"event": "Event", "type": "Event Type", "name": "Name"}
    return sum(all(row[names[key]] == value for key, value in wanted.items()) for file in files for row in file.rows)


def check_used(file: DumpFile) -> int:
    """`used` of every pool row is the running sum of sizes in order of time. Returns how many rows were checked."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    checked = 0
    for row in sorted(file.rows, key=lambda row: int(row["Timestamp(ns)"])):
        if row["Event"] not in ("MALLOC", "FREE") or row["Event Type"] not in ("PTA", "PTA_WORKSPACE"):
            continue
        facts = attr(row)
        key = row["Device Id"], row["Event Type"]
        sums[key] += int(facts["size"]) * (1 if row["Event"] == "MALLOC" else -1)
        assert sums[key] == int(facts["used"]), (file.path, row)
        checked += 1
    return checked


def check_pairs(file: DumpFile) -> int:
    """Every allocation_id has as many FREE rows as MALLOC rows, one. Returns how many there are."""
    mallocs, frees = Counter[str](), Counter[str]()
    for row in file.rows:
        if row["Event"] in ("MALLOC", "FREE"):
            (mallocs if row["Event"] == "MALLOC" else frees)[attr(row)["allocation_id"]] += 1
    assert mallocs == frees, file.path
    assert set(mallocs.values()) <= {1}, file.path
    return len(mallocs)
