"""Upstream's own comparison of two files gives the rows that ours gives.

It is upstream's code, which is not here: UPSTREAM_SOURCE names a checkout of it. Its memory_compare.cpp is compiled
with what stands in upstream_compare/ for the rest of upstream. docs/compare.md says in what the two differ: of several
scripts of the same length each takes one, and of an aligned stretch each writes removals and insertions in an order of
its own; the order of devices is nobody's promise.
"""

from __future__ import annotations

import csv
import os
import random
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
from built_once import built_once
from compilers import cxx_compiler

from msmemscope.cli.main import main
from msmemscope.export.per_device import write_dumps
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import played
from msmemscope.selftest.script import Process, Script
from msmemscope.vocabulary import Kind

DATA = Path(os.environ.get("MSMEMSCOPE_UPSTREAM_FILES", Path(__file__).parents[3] / "shared" / "data")) / "upstream"
STANDS_IN = Path(__file__).with_name("upstream_compare")
LEVELS = {"op": 1, "kernel": 2}
LAUNCHES = ("ATEN_END", "ATB_END", "KERNEL_LAUNCH")
HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)


class Row(NamedTuple):
    event: str
    name: str
    device: str
    base: str
    compare: str
    diff: str


Compare = Callable[[Path, Path, Sequence[str]], list[Row]]
FIRST_LINES = [
    ",,,Base,Compare",
    ",".join(("Event", "Name", "Device Id", *["Allocated Memory(byte)"] * 2, "Diff Memory(byte)")),
]


def rows_of(written: Path) -> list[Row]:
    lines = written.read_text().splitlines()
    assert lines[:2] == FIRST_LINES
    return [Row(*cells) for cells in csv.reader(lines[2:])]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    source = os.environ.get("UPSTREAM_SOURCE")
    if not source:
        pytest.skip("UPSTREAM_SOURCE names no checkout of upstream")
    compiler, native = cxx_compiler("upstream's comparison"), Path(source) / "csrc"
    headers = [STANDS_IN, native, *(native / room for room in ("analysis", "framework", "utility", "event_trace"))]
    parts = [STANDS_IN / "main.cpp", native / "analysis" / "memory_compare.cpp", native / "utility" / "ustring.cpp"]

    def build(directory: Path) -> Path:
        made = directory / "compare"
        subprocess.run([compiler, "-std=c++17", *(f"-I{one}" for one in headers), *parts, "-o", made], check=True)
        return made

    program = built_once(tmp_path_factory, "upstream_compare", build)

    def compare(base: Path, other: Path, levels: Sequence[str]) -> list[Row]:
        written = base.parent / "theirs.csv"
        bits = sum(LEVELS[level] for level in levels)
        done = subprocess.run([program, written, str(bits), base, other], capture_output=True, text=True, check=True)
        assert done.stdout == ""  # where it says that it failed
        assert "error" not in done.stderr
        return rows_of(written)

    return compare


@pytest.fixture
def ours(tmp_path: Path) -> Compare:
    def compare(base: Path, other: Path, levels: Sequence[str]) -> list[Row]:
        output = tmp_path / f"ours{len(list(tmp_path.glob('ours*')))}"
        words = ["--compare", f"--input-path={base},{other}", "--level", ",".join(levels), "-o", str(output)]
        assert main(words) == 0
        (written,) = output.rglob("memory_compare_*.csv")
        return rows_of(written)

    return compare


def in_order(rows: Sequence[Row]) -> list[Row]:
    """By device; in each stretch of launches that one side alone has, the base's first."""
    ordered: list[Row] = []
    for _, stretch in groupby(sorted(rows, key=lambda row: int(row.device)), key=lambda row: "N/A" in row):
        ordered += sorted(stretch, key=lambda row: (int(row.device), row.base == "N/A"))
    return ordered


def agree(mine: Sequence[Row], other: Sequence[Row]) -> bool:
    """Both tell of each side the same launches with the same figures, in the same order, and find as many alike.
    Whether the rows are equal as well."""
    for missing in ("base", "compare"):
        told = [
            [(row.device, row.name, getattr(row, missing)) for row in in_order(rows) if getattr(row, missing) != "N/A"]
            for rows in (mine, other)
        ]
        assert told[0] == told[1]
    assert len(mine) == len(other)  # as many removed and inserted
    for row in (*mine, *other):
        base, compare = (0 if cell == "N/A" else int(cell) for cell in (row.base, row.compare))
        assert int(row.diff) == compare - base
    return in_order(mine) == in_order(other)


def shortest_scripts(a: Sequence[str], b: Sequence[str]) -> int:
    """How many ways there are to pair as many equal names as can be paired, in order."""

    @cache
    def best(i: int, j: int) -> tuple[int, int]:
        if not i or not j:
            return 0, 1
        above, left, both = best(i - 1, j), best(i, j - 1), best(i - 1, j - 1)
        paired = both[0] + 1 if a[i - 1] == b[j - 1] else -1
        longest = max(above[0], left[0], paired)
        ways = sum(count for length, count in (above, left) if length == longest)
        ways -= both[1] if both[0] == longest else 0  # those were counted twice
        return longest, ways + (both[1] if paired == longest else 0)

    for i in range(len(a)):
        best(i, 0)
        for j in range(len(b)):
            best(i, j)
    return best(len(a), len(b))[1]


def write_pair(directory: Path, seed: int) -> tuple[Path, Path, dict[str, tuple[list[str], list[str]]]]:
    """Two jobs on two cards, and by device the names of what each launched: operators of two frameworks and kernels,
    between them blocks of the pool that counts and of others, rows of the host, of no device, and out of order. The
    second job leaves out, adds and renames some of what the first does, which launches something at least."""
    chance = random.Random(seed)
    names = [f"op{n}" for n in range(chance.choice((2, 6, 40)))]
    launched: dict[str, tuple[list[str], list[str]]] = {"0": ([], []), "1": ([], [])}
    script = [(chance.choice("001"), chance.choice(names)) for _ in range(chance.randint(1, 60))]
    paths = []
    for side in range(2):
        rows: list[list[str | int]] = []

        def add(event: str, kind: str, name: str = "N/A", device: str = "N/A", attr: str = "") -> None:
            number = len(rows)  # noqa: B023  (called within the round alone)
            rows.append([number, event, kind, name, 10**18 + 1000 * number, 7, 7, device, "N/A", attr, "", ""])  # noqa: B023

        if side:
            script = [step for step in script if chance.random() > 0.15]
            script = [(one, chance.choice(names) if chance.random() < 0.1 else name) for one, name in script]
            for _ in range(chance.randint(0, 5)):
                script.insert(chance.randint(0, len(script)), (chance.choice("01"), chance.choice(names)))
        for device in "01":  # so that each side has both
            add("MALLOC", "PTA", device=device, attr="{allocation_id:1,addr:0x1,size:512,used:512,total:1024}")
        for number, (device, name) in enumerate(script):
            for _ in range(chance.randint(0, 3)):
                pool, event = (
                    chance.choice(("PTA", "PTA", "HAL", "PTA_WORKSPACE", "ATB")),
                    chance.choice(("MALLOC", "FREE")),
                )
                size = 512 * chance.randint(1, 5)
                where = chance.choice((device, device, device, "host", "N/A"))
                add(event, pool, device=where, attr=f"{{allocation_id:1,addr:0x1,size:{size},used:{size},total:4096}}")
            kind = chance.choice(LAUNCHES if side == number == 0 else ("ATEN_START", *LAUNCHES))
            add("KERNEL_LAUNCH" if kind == "KERNEL_LAUNCH" else "OP_LAUNCH", kind, name, device)
            if kind != "ATEN_START":
                launched[device][side].append(name)
        if chance.random() < 0.5:
            chance.shuffle(rows)
        paths.append(directory / f"memscope_dump_{side}.csv")
        with paths[-1].open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEADER.split(","))
            writer.writerows(rows)
    return paths[0], paths[1], launched


def test_the_scripts_of_two_short_sequences() -> None:
    assert shortest_scripts("abc", "abc") == 1
    assert shortest_scripts("ab", "ba") == 2
    assert shortest_scripts("aaa", "a") == 3
    assert shortest_scripts("", "ab") == 1


@pytest.mark.parametrize("seed", range(50))
def test_random_pairs(tmp_path: Path, theirs: Compare, ours: Compare, seed: int) -> None:
    base, other, launched = write_pair(tmp_path, seed)
    equal = agree(ours(base, other, ["op", "kernel"]), theirs(base, other, ["op", "kernel"]))
    if all(shortest_scripts(*sides) == 1 for sides in launched.values()):
        assert equal


def test_most_random_pairs_have_one_script_or_few(tmp_path: Path) -> None:
    ways = []
    for seed in range(50):
        launched = write_pair(tmp_path, seed)[2]
        ways.append(max(shortest_scripts(*sides) for sides in launched.values()))
    assert ways.count(1) >= 10  # so that the test above compares rows
    assert max(ways) > 10


@pytest.mark.skipif(not DATA.is_dir(), reason="upstream's files are not here")
@pytest.mark.parametrize(
    ("names", "level"),
    [
        (("memscope_dump_20250428113810.csv", "memscope_dump_20250428113811.csv"), "kernel"),
        (("baseline.csv", "leaks.csv"), "op"),
    ],
)
def test_upstreams_samples(tmp_path: Path, theirs: Compare, ours: Compare, names: tuple[str, str], level: str) -> None:
    base, other = ((tmp_path / name) for name in names)
    for path in (base, other):
        path.write_bytes((DATA / path.name).read_bytes())
    rows = theirs(base, other, [level])
    assert len(rows) > 10
    assert in_order(ours(base, other, [level])) == in_order(rows)


def dumped(directory: Path, changed: bool) -> Path:
    """Our own csv of the card, of a job of which another one leaves out an operator, renames a kernel, and takes more
    memory."""
    job = Script()

    def each(rank: Process, n: int) -> None:
        block = rank.alloc(4096 * (1 + n % 3) * (2 if changed else 1), place("model.py:40 attention"))
        rank.launch("MatMul")
        for name in ("aten::mm", "aten::relu")[: 1 if changed and n % 2 else 2]:
            number = rank.text(name)
            for kind in (Kind.OP_START, Kind.OP_END):
                rank.event(kind, name=number, device_type=rank.device_type, device=rank.device)
        rank.launch(f"Gelu{n}" if changed and n == 4 else f"Add{n}")
        rank.free(block)

    for rank in job.ranks(1):
        train(rank, each, steps=6)
    job.config = {"level": ("op", "kernel"), "dump_events": ("alloc", "free", "launch"), "output_path": str(directory)}
    with played(job) as made:
        write_dumps(made.run, directory)
    (written,) = (path for path in directory.rglob("memscope_dump_*.csv") if path.parent.parent.name == "device_0")
    with written.open(newline="") as file:
        rows = list(csv.reader(file))
    for row in rows[1:]:
        row[10] = row[11] = ""  # upstream's comparison reads no call stacks
    bare = directory / written.name
    with bare.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return bare


@pytest.mark.parametrize("levels", [["op"], ["kernel"], ["op", "kernel"]])
def test_our_own_files(tmp_path: Path, theirs: Compare, ours: Compare, levels: list[str]) -> None:
    base, other = dumped(tmp_path / "a", changed=False), dumped(tmp_path / "b", changed=True)
    rows = ours(base, other, levels)
    assert in_order(rows) == in_order(theirs(base, other, levels))
    assert any(row.compare == "N/A" for row in rows)
    assert any(row.base == "N/A" for row in rows) == ("kernel" in levels)
    assert any(row.diff != "0" for row in rows if "N/A" not in row)
