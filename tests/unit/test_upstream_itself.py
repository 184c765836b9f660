"""Upstream's own check_leaks() and check_inefficient() find in a file what ours find.

They are upstream's code, which is not here: UPSTREAM_SOURCE names a checkout of it. tests/upstream_rules.py says the
same rules in words of this project, and is what the other tests go by.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import random
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

import msmemscope

HEADER = (
    *("ID", "Event", "Event Type", "Name", "Timestamp(ns)", "Process Id", "Thread Id", "Device Id", "Ptr", "Attr"),
    *("Call Stack(Python)", "Call Stack(C)"),
)
SIZES = (512, 4096, 1 << 20)


@pytest.fixture(scope="module")
def upstream() -> ModuleType:
    """The package with upstream's analyzers. It is pure Python and imports nothing else of upstream."""
    source = os.environ.get("UPSTREAM_SOURCE")
    if not source:
        pytest.skip("UPSTREAM_SOURCE names no checkout of upstream")
    package = Path(source) / "python" / "msmemscope" / "analyzer"
    spec = importlib.util.spec_from_file_location(
        "upstreams_analyzer", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def write_job(path: Path, seed: int) -> Path:
    """One process on two cards: blocks of three pools, operators of two frameworks, accesses, marks. An address has one
    block at a time: upstream takes another one's release for an older block's."""
    chance, is_open = random.Random(seed), {"ATEN": False, "ATB": False}
    rows: list[list[str | int]] = []
    alive: dict[int, tuple[str, str, int, str]] = {}

    def add(event: str, kind: str, name: str = "N/A", device: str = "0", ptr: str = "N/A", attr: str = "") -> None:
        rows.append([len(rows) + 1, event, kind, name, 10**18 + 1000 * len(rows), 7, 7, device, ptr, attr, "", ""])

    blocks = 0
    for _ in range(chance.randint(20, 300)):
        what = chance.random()
        if what < 0.3:
            blocks += 1
            pool, device, size = chance.choice(("HAL", "PTA", "PTA", "ATB")), chance.choice("01"), chance.choice(SIZES)
            taken = {block[1] for block in alive.values()}
            ptr = f"{next(at for at in range(4096, 1 << 30, 4096) if f'{at:#x}' not in taken):#x}"
            alive[blocks] = pool, ptr, size, device
            add("MALLOC", pool, device=device, ptr=ptr, attr=f"{{allocation_id:{blocks},size:{size}}}")
        elif what < 0.5 and alive:
            number = chance.choice(list(alive))
            pool, ptr, size, device = alive.pop(number)
            add("FREE", pool, device=device, ptr=ptr, attr=f"{{allocation_id:{number},size:{size}}}")
        elif what < 0.75 and alive:
            number = chance.choice(list(alive))
            pool, ptr, size, device = alive[number]
            if pool != "HAL":
                kind, name = chance.choice(("READ", "WRITE")), "torch._ops.aten.add.Tensor"
                add("ACCESS", kind, name, device, ptr, f"{{shape:[1],type:{pool},allocation_id:{number}}}")
        elif what < 0.88:
            framework = chance.choice(("ATEN", "ATEN", "ATB"))
            is_open[framework] = not is_open[framework]
            add("OP_LAUNCH", f"{framework}_{'START' if is_open[framework] else 'END'}", "torch._ops.aten.add.Tensor")
        else:
            add("MSTX", "Mark", chance.choice(("epoch", "epoch", "other")), chance.choice("01"))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(rows)
    return path


def patterns(path: Path) -> dict[str, frozenset[str]]:
    """By ID of a row what was found of its block."""
    with path.open(newline="") as file:
        found = {row["ID"]: re.search(r"inefficient_type:([\w,]*)", row["Attr"]) for row in csv.DictReader(file)}
    return {id: frozenset(one[1].split(",")) - {""} if one else frozenset() for id, one in found.items()}


def test_there_is_something_to_agree_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marked = leaking = 0
    for seed in range(25):
        path = write_job(tmp_path / f"memscope_dump_{seed}.csv", seed)
        for start in range(3):
            msmemscope.check_leaks(str(path), "epoch", start)
            leaking += "MALLOC with ID" in capsys.readouterr().out
        msmemscope.check_inefficient(str(path), mem_size=(0, 4096)[seed % 2], idle_threshold=1, in_place=True)
        marked += sum(bool(one) for one in patterns(path).values())
    assert leaking > 25  # of 75
    assert marked > 100


@pytest.mark.parametrize("seed", range(25))
def test_blocks_are_inefficient_to_both(tmp_path: Path, upstream: ModuleType, seed: int) -> None:
    theirs, ours = write_job(tmp_path / "theirs.csv", seed), tmp_path / "ours.csv"
    shutil.copy(theirs, ours)
    idle, size = (1, 3, 3000)[seed % 3], (0, 4096)[seed % 2]

    upstream.check_inefficient(str(theirs), mem_size=size, idle_threshold=idle)
    msmemscope.check_inefficient(str(ours), mem_size=size, idle_threshold=idle, in_place=True)

    assert patterns(ours) == patterns(theirs)


@pytest.mark.parametrize("seed", range(25))
def test_blocks_have_leaked_to_both(
    tmp_path: Path, upstream: ModuleType, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_job(tmp_path / "memscope_dump.csv", seed)
    for start in range(3):
        upstream.check_leaks(str(path), "epoch", start)
        theirs = re.findall(r" in Index (\d+)", capsys.readouterr().out)
        msmemscope.check_leaks(str(path), "epoch", start)
        ours = re.findall(r"MALLOC with ID (\d+)", capsys.readouterr().out)
        assert sorted(ours) == sorted(theirs)
