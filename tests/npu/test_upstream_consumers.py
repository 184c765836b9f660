"""What upstream's own readers say of our files, and what ours say: of real recorded trainings, as csv and as db.

Upstream's readers are its rules, read to the letter (tests/upstream_rules.py).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import upstream_rules as upstream
from dump_files import find_dumps
from simulated import PROGRAMS, OnNpu

import msmemscope
from msmemscope.analyzer import check_inefficient
from msmemscope.imports.inefficient_check import beside
from msmemscope.imports.memory_compare import compare_files

OPTIONS = (
    *("--events", "alloc,free,launch,access", "--level", "op,kernel", "--device", "npu", "--call-stack", "python:4"),
)


def record(on_npu: OnNpu, place: Path, rows: int) -> dict[str, Path]:
    """The card's file of a recorded training, by its format."""

    def tool(*words: str | Path) -> None:
        done = on_npu("-m", "msmemscope", *words, cwd=place)
        assert done.returncode == 0, done.stderr[-4000:]

    tool("--output-path", place, *OPTIONS, "--", sys.executable, PROGRAMS / "consumers.py", str(rows))
    (run,) = place.glob("run_*")
    tool("export", run, "--format", "db")
    files = [path for path in find_dumps(place) if path.parent.parent.name == "device_0"]
    return {path.suffix[1:]: path for path in files}


@pytest.fixture(scope="module")
def files(on_npu: OnNpu, observer: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return record(on_npu, tmp_path_factory.mktemp("consumers"), 16)


@pytest.fixture(scope="module")
def others(on_npu: OnNpu, observer: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return record(on_npu, tmp_path_factory.mktemp("others"), 48)


pytestmark = pytest.mark.xdist_group("upstream consumers")


@pytest.mark.parametrize("kind", ["csv", "db"])
def test_what_is_left_between_marks(files: dict[str, Path], kind: str) -> None:
    rows = upstream.rows_of(files[kind])
    seen = 0
    for start in range(5):
        theirs = upstream.check_leaks(rows, "epoch", start)
        ours = msmemscope.check_leaks(str(files[kind]), "epoch", start)
        found = [(one.id, f"0x{one.address:016x}", one.bytes / upstream.MIB) for one in ours]
        assert found == theirs["0"], start
        assert {one.device for one in ours} <= {"0"}
        seen += len(found)
    assert seen, "nothing is left anywhere, so nothing was compared"


@pytest.mark.parametrize("kind", ["csv", "db"])
@pytest.mark.parametrize(("mem_size", "threshold"), [(0, 3000), (0, 40), (1 << 20, 40)])
def test_which_blocks_are_inefficient(
    files: dict[str, Path], tmp_path: Path, kind: str, mem_size: int, threshold: int
) -> None:
    rows = upstream.rows_of(files[kind])
    theirs = upstream.check_inefficient(rows, mem_size=mem_size, threshold=threshold)
    path = Path(shutil.copy(files[kind], tmp_path))
    found = check_inefficient(str(path), mem_size=mem_size, idle_threshold=threshold)
    assert {(str(one.pid), one.id): ",".join(one.patterns) for one in found} == theirs
    words = {word for text in theirs.values() for word in text.split(",")}
    if threshold == 40 and not mem_size:
        assert words == {"early_allocation", "late_deallocation", "temporary_idleness"}
    # And upstream reads in the copy what it would have written there itself.
    marked = {
        (row["Process Id"], int(row["ID"])): row["Attr"]
        for row in upstream.rows_of(beside(path))
        if "inefficient_type" in row["Attr"]
    }
    assert theirs.keys() == marked.keys()
    assert all(text in marked[key] for key, text in theirs.items())


@pytest.mark.parametrize("kinds", [("csv", "csv"), ("db", "db"), ("csv", "db")])
@pytest.mark.parametrize("level", ["op", "kernel"])
def test_the_launches_of_two_files(
    files: dict[str, Path], others: dict[str, Path], kinds: tuple[str, str], level: str
) -> None:
    paths = files[kinds[0]], others[kinds[1]]
    theirs = [
        upstream.launches(upstream.rows_of(path), kernels=level == "kernel", operators=level == "op")["0"]
        for path in paths
    ]
    found = compare_files(*paths, [level]).rows
    base = [(row.name, row.event, row.base) for row in found if row.base is not None]
    compare = [(row.name, row.event, row.compare) for row in found if row.compare is not None]
    assert (base, compare) == tuple(theirs)
    assert len(base) > 50
    matched = sum(1 for row in found if row.base is not None and row.compare is not None)
    assert matched == upstream.most_matches([one[0] for one in theirs[0]], [one[0] for one in theirs[1]])
    assert all(row.diff == (row.compare or 0) - (row.base or 0) for row in found)
