"""The text of a line beside its place: of the file as it was when the run began, or none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from msmemscope.report.analysed import analyse
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import played
from msmemscope.selftest.script import BEGIN_NS, WALL_OFFSET_NS, Script
from msmemscope.tables.run import Run

BEGAN_NS = BEGIN_NS + WALL_OFFSET_NS
CHANGED = "(its file was written to since the run began)"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text("losses = []\n" * 9 + "losses.append(loss)  # the tenth\n")
    return path


def job_of(source: Path) -> Script:
    job = Script()
    train(job.rank(), lambda rank, _: rank.alloc(1 << 20, place(f"{source}:10 hoard")))
    return job


def said_of(run: Run) -> str:
    return "\n".join(one.sentence for one in analyse(run).summary.findings)


def sentences(source: Path) -> str:
    with played(job_of(source)) as made:
        return said_of(made.run)


def begun_later(run: Run, by_s: int) -> Run:
    """The same, as if it had been recorded at another time."""
    info = json.loads((run.path / "run.json").read_text())
    for process in info["processes"]:
        process["wall_offset_ns"] += by_s * 10**9
    (run.path / "run.json").write_text(json.dumps(info))
    return Run(run.path)


@pytest.mark.parametrize(("written_s", "is_shown"), [(-3600, True), (3600, False)])
def test_a_line_is_quoted_only_while_nobody_has_written_to_its_file(
    source: Path, written_s: int, is_shown: bool
) -> None:
    at = BEGAN_NS + written_s * 10**9
    os.utime(source, ns=(at, at))
    said = sentences(source)
    assert "job.py:10" in said
    assert ("job.py:10 `losses.append(loss) # the tenth`" in said) == is_shown
    assert (f"job.py:10 {CHANGED}" in said) != is_shown


def test_a_file_that_changes_while_it_is_judged_is_not_quoted_as_it_was_read_before(source: Path) -> None:
    for text in ("first", "second"):
        source.write_text("\n" * 9 + f"{text}\n")
        at = BEGAN_NS - 3600 * 10**9 - len(text)
        os.utime(source, ns=(at, at))
        assert f"job.py:10 `{text}`" in sentences(source)


def test_of_runs_that_are_judged_in_turns_each_quotes_what_stood_there_in_its_own_time(source: Path) -> None:
    with played(job_of(source)) as before, played(job_of(source)) as made:
        since = begun_later(made.run, 7200)
        at = BEGAN_NS + 3600 * 10**9  # between the two
        os.utime(source, ns=(at, at))
        for _ in range(2):
            assert f"job.py:10 {CHANGED}" in said_of(before.run)
            assert "job.py:10 `losses.append(loss) # the tenth`" in said_of(since)
