"""What upstream's own readers of its files say of one: its rules read to the letter, slowly, and with none of our code.

Rows are dicts of texts by the columns of upstream's files, from csv or db. check_leaks, check_inefficient and compare
are told apart from ours by what they look at: whole files, row by row, as often as the rule says.
"""

from __future__ import annotations

import csv
import re
import sqlite3
import sys
from collections import defaultdict
from pathlib import Path

Row = dict[str, str]
MIB = 1 << 20
UNSET = (1 << 64) - 1
csv.field_size_limit(sys.maxsize)


def rows_of(path: Path) -> list[Row]:
    """Of a csv, or of the table memscope_dump of a db."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        cursor = database.execute("SELECT * FROM memscope_dump")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, map(str, row), strict=True)) for row in cursor]


def attr(row: Row) -> dict[str, str]:
    """ "{a:1,b:2}" or a JSON text, by plain commas, as upstream splits it."""
    text = row["Attr"].strip().strip("{}")
    pairs = (part.partition(":") for part in text.split(","))
    return {key.strip(' "'): value.strip(' "') for key, colon, value in pairs if colon}


def by_id(rows: list[Row]) -> list[Row]:
    return sorted((row for row in rows if re.fullmatch(r"-?\d+", row["ID"])), key=lambda row: int(row["ID"]))


# --- check_leaks ----------------------------------------------------------------------------------------------------


def check_leaks(rows: list[Row], mark: str, start: int) -> dict[str, list[tuple[int, str, float]]]:
    """By device (ID of the MALLOC, pointer, MB) of what is left."""
    left: dict[str, list[tuple[int, str, float]]] = {}
    for device in sorted({row["Device Id"] for row in rows} - {"N/A"}):
        mine = by_id([row for row in rows if row["Device Id"] == device])
        marks = [
            int(row["ID"])
            for row in mine
            if (row["Event"], row["Event Type"], row["Name"].strip('"')) == ("MSTX", "Mark", mark)
        ]
        if len(marks) < 3 or start + 2 >= len(marks):
            continue
        a, b, c = marks[start : start + 3]
        tracked: dict[int, tuple[str, float]] = {}
        for row in mine:
            number = int(row["ID"])
            if row["Event Type"] != "HAL" or number > c:
                continue
            if row["Event"] == "MALLOC" and a <= number <= b:
                tracked[number] = (row["Ptr"], int(attr(row)["size"]) / MIB)
            if row["Event"] == "FREE" and number >= a:
                tracked = {one: block for one, block in tracked.items() if block[0] != row["Ptr"]}
        left[device] = [(number, pointer, size) for number, (pointer, size) in tracked.items()]
    return left


# --- check_inefficient ----------------------------------------------------------------------------------------------


class _Block:
    def __init__(self, row: Row | None) -> None:
        self.malloc = row
        self.events: list[tuple[str, int]] = []  # what, api
        self.found: list[str] = []


class _Pool:
    """One framework's pool of one process."""

    def __init__(self) -> None:
        self.api = 0
        self.is_open = False
        self.collected: list[str] = []
        self.last_malloc = self.last_free = UNSET
        self.blocks: dict[str, _Block] = {}

    def op(self, is_start: bool) -> None:
        if is_start:
            self.is_open = True
            self.api += 1
            return
        self.is_open = False
        if "MALLOC" in self.collected:
            self.last_malloc = self.api
        if "FREE" in self.collected:
            self.last_free = self.api
        self.collected = []

    def memory(self, row: Row, threshold: int) -> _Block | None:
        """A block that ends."""
        what = row["Event"]
        if self.is_open:
            self.collected.append(what)
        else:
            self.api += 1
            if what == "MALLOC":
                self.last_malloc = self.api
            if what == "FREE":
                self.last_free = self.api
        key = attr(row)["allocation_id"]
        if what == "MALLOC":
            self.blocks[key] = _Block(row)
        block = self.blocks.setdefault(key, _Block(None))
        block.events.append((what, self.api))
        self._look(block, threshold)
        return self.blocks.pop(key) if what == "FREE" else None

    def _look(self, block: _Block, threshold: int) -> None:
        what, api = block.events[-1]
        if block.events[0][0] != "MALLOC" or len(block.events) < 2:
            return
        before, api_before = block.events[-2]
        made = block.events[0][1]
        if what == "ACCESS":
            if before == "ACCESS" and api - api_before > threshold:
                self._say(block, "temporary_idleness")
            first = next((one for kind, one in block.events if kind == "ACCESS" and one != made), None)
            if first is not None and self.last_free not in (UNSET, made) and made < self.last_free < first:
                self._say(block, "early_allocation")
        is_used_before = before == "ACCESS" and api_before != api
        if what == "FREE" and is_used_before and self.last_malloc != UNSET and api_before < self.last_malloc < api:
            self._say(block, "late_deallocation")

    @staticmethod
    def _say(block: _Block, word: str) -> None:
        if word not in block.found:
            block.found.append(word)


def check_inefficient(rows: list[Row], *, mem_size: int = 0, threshold: int = 3000) -> dict[tuple[str, int], str]:
    """By process and ID of the MALLOC row what is written to its inefficient_type."""
    pools: dict[tuple[str, str], _Pool] = defaultdict(_Pool)
    every: list[_Block] = []
    for row in by_id(rows):
        pid, event, kind = row["Process Id"], row["Event"], row["Event Type"]
        if event == "OP_LAUNCH":
            framework, _, end = kind.partition("_")
            pools[pid, "ATB" if framework == "ATB" else "PTA"].op(end == "START")
            continue
        pool = attr(row).get("type", "") if event == "ACCESS" else kind
        if event in ("MALLOC", "FREE", "ACCESS") and pool in ("PTA", "ATB"):
            one = pools[pid, pool]
            if event == "MALLOC":
                one.memory(row, threshold)
                every.append(one.blocks[attr(row)["allocation_id"]])
            else:
                one.memory(row, threshold)
    return {
        (block.malloc["Process Id"], int(block.malloc["ID"])): ",".join(block.found)
        for block in every
        if block.malloc is not None and block.found and int(attr(block.malloc)["size"]) >= mem_size
    }


# --- compare --------------------------------------------------------------------------------------------------------


def launches(rows: list[Row], *, kernels: bool, operators: bool) -> dict[str, list[tuple[str, str, int]]]:
    """By device every element of its sequence: name, event, and the size of the next row of the framework's pool."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    framework = next(row["Event Type"] for row in rows if row["Event Type"] in ("PTA", "MINDSPORE"))
    wanted = ({"KERNEL_LAUNCH"} if kernels else set()) | ({"ATEN_END", "ATB_END"} if operators else set())
    for device in sorted({row["Device Id"] for row in rows if row["Device Id"].isdigit()}):
        mine = [row for row in rows if row["Device Id"] == device]
        mine.sort(key=lambda row: int(row["Timestamp(ns)"]))
        sequence = []
        for at, row in enumerate(mine):
            if row["Event Type"] in wanted:
                size = next((attr(one)["size"] for one in mine[at:] if one["Event Type"] == framework), "0")
                sequence.append((row["Name"], row["Event"], int(size)))
        if sequence:
            found[device] = sequence
    return found


def most_matches(a: list[str], b: list[str]) -> int:
    """Of how many names the longest common subsequence is: what a shortest edit script matches."""
    row = [0] * (len(b) + 1)
    for name in a:
        diagonal = 0
        for at, other in enumerate(b, 1):
            diagonal, row[at] = row[at], diagonal + 1 if name == other else max(row[at], row[at - 1])
    return row[-1]
