"""SIGKILL at a random moment, fifty times: every event whose call had returned is in the run's tables, once, in order.

The processes allocate from the simulated driver (libascend_hal.so of simulator/, compiled here), so neither torch nor
CANN is needed.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compilers import cxx_compiler
from running import PROGRAMS, ROOT, run_tool

from msmemscope.tables.run import Run
from msmemscope.vocabulary import DeviceType, Kind, Pool

KILLS = 50
THREADS, KEPT, DEVICES = 3, 5, 2  # as in allocate.cpp
COLUMNS = ("kind", "tid", "size", "ptr", "device_type", "device", "pool", "pid")
Columns = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def allocate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, beside the simulated driver that it is linked to."""
    place = tmp_path_factory.mktemp("allocate")
    compiler = [cxx_compiler("the simulated driver"), "-std=gnu++17", "-fPIC", "-pthread", f"-I{ROOT / 'simulator'}"]

    def compile_one(source: Path) -> str:
        made = place / f"{source.stem}.o"
        subprocess.run([*compiler, "-fvisibility=hidden", "-c", str(source), "-o", str(made)], check=True)
        return str(made)

    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(compile_one, sorted((ROOT / "simulator" / "ascend_hal").glob("*.cpp"))))
    library, program = place / "libascend_hal.so", place / "allocate"
    subprocess.run([*compiler, "-shared", f"-Wl,-soname,{library.name}", *objects, "-ldl", "-o", library], check=True)
    source = PROGRAMS / "killed" / "allocate.cpp"
    subprocess.run([*compiler, source, library, f"-Wl,-rpath,{place}", "-o", program], check=True)
    return program


def calls(thread: int, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Kind and size of the first `count` calls of a thread."""
    at = np.arange(count)
    later = np.maximum(at - KEPT, 0)  # from here on by turns
    frees = (at >= KEPT) & (later % 2 == 0)
    n = np.where(at < KEPT, at, np.where(frees, later // 2, KEPT + later // 2)) + 1
    return np.where(frees, int(Kind.FREE), int(Kind.MALLOC)), n * THREADS + thread


def driver_events(run: Run) -> dict[int, Columns]:
    """By pid, in the order in which they were recorded."""
    found: dict[int, list[Columns]] = {}
    for batch in run.events(columns=COLUMNS, kinds=(Kind.MALLOC, Kind.FREE)):
        columns = {name: batch.column(name).to_numpy() for name in COLUMNS}
        for pid in np.unique(columns["pid"]).tolist():
            rows = columns["pid"] == pid
            found.setdefault(pid, []).append({name: column[rows] for name, column in columns.items()})
    return {
        pid: {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS} for pid, parts in found.items()
    }


def by_thread(kill: dict[str, Any], events: Columns) -> Iterator[tuple[int, int, Columns]]:
    """(thread, its calls that had returned, its events)"""
    for thread, (tid, returned) in enumerate(kill["at_death"]):
        rows = events["tid"] == tid
        yield thread, returned, {name: column[rows] for name, column in events.items()}


def test_every_call_that_had_returned_is_in_the_tables(tmp_path: Path, allocate: Path) -> None:
    seed = secrets.randbits(32)
    job = [sys.executable, PROGRAMS / "killed" / "kill.py", allocate, tmp_path, str(seed), str(KILLS)]
    outcome = run_tool(
        tmp_path / "out", job, LD_LIBRARY_PATH=str(allocate.parent), NPUSIM_STATE=str(tmp_path / "cards")
    )
    print(f"seed {seed}")
    assert outcome.status == 0, outcome.stderr
    kills = json.loads((tmp_path / "kills.json").read_text())
    assert len(kills) == KILLS

    # They died in the midst of it: nobody ended by himself, and all had gone on until then, most to another point.
    assert {kill["status"] for kill in kills} == {-signal.SIGKILL}
    waited = [kill for kill in kills if not kill["at_once"]]
    assert all(returned > 0 for kill in waited for _, returned in kill["at_death"])
    assert all(kill["at_death"] != kill["before"] for kill in waited)
    assert len({tuple(returned for _, returned in kill["at_death"]) for kill in waited}) > len(waited) // 2

    run = Run(outcome.run)
    events = driver_events(run)
    assert not run.skipped
    for kill in kills:
        if not any(returned for _, returned in kill["at_death"]):
            continue  # it may have made no ring yet
        recorded = events[kill["pid"]]
        assert set(recorded["tid"].tolist()) <= {tid for tid, _ in kill["at_death"]}
        for thread, returned, mine in by_thread(kill, recorded):
            count = len(mine["kind"])
            # One more: its call had done its work and not returned.
            assert returned <= count <= returned + 1, f"thread {thread} of {kill}: {count} events"
            kinds, sizes = calls(thread, count)
            np.testing.assert_array_equal(mine["kind"], kinds)
            np.testing.assert_array_equal(mine["size"], sizes)
            # Each free is of the block that was allocated with that size.
            blocks = dict(zip(mine["size"][kinds == Kind.MALLOC], mine["ptr"][kinds == Kind.MALLOC], strict=True))
            frees = kinds == Kind.FREE
            assert [blocks[size] for size in mine["size"][frees]] == mine["ptr"][frees].tolist()
            where = {(DeviceType.NPU, thread % DEVICES, Pool.HAL)} if count else set()
            assert set(zip(mine["device_type"], mine["device"], mine["pool"], strict=True)) == where

    processes = {process.pid: process for process in run.processes}
    assert set(processes) <= {kill["pid"] for kill in kills}
    assert not any(process.closed or process.lost for process in processes.values())
    losses = run.info["losses"]
    assert losses["gaps"] == {}
    assert losses["missing_bytes"] == losses["invalid_records"] == losses["invalid_batches"] == 0
