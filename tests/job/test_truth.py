"""The comparison of truth and findings must itself be able to fail, in each way in which a tool can be wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from truth import Found, Truth, differences, fold, read_findings, read_truth

PROGRAM = """
TRUTH = {
    "nproc": 4,
    "steps": 24,
    "leaks": [
        {"mark": "LEAK", "ranks": "all", "bytes_per_step": 100, "tolerance": 0.1},
        {"mark": "LEAK 2", "ranks": [0, 1, 3], "bytes_per_step": 64, "first_step": 11},
    ],
}
x = make()  # KEPT
loss = f(x)  # LEAK-ALLOC
losses.append(loss)  # LEAK
other()  # LEAK-ALT
cache(x)  # LEAK 2
"""
LOSS = Found("leak", "0-3", 100.0, 1, "/some/where/program.py", 11)
CACHE = Found("leak", "0-1,3", 64.0, 11, "/some/where/program.py", 14)


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return read_truth(path)


def test_reads_marks_and_literal(truth: Truth) -> None:
    loss, cache = truth.leaks

    assert (loss.line, set(loss.lines), set(loss.kept)) == (11, {11, 13}, {10, 11, 13})
    assert (cache.line, cache.ranks, cache.first_step) == (14, (0, 1, 3), 11)


def test_accepts_the_truth(truth: Truth) -> None:
    assert differences(truth, [LOSS, CACHE]) == []
    assert differences(truth, [CACHE, replace(LOSS, bytes_per_step=109.0, line=13)]) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([LOSS], "missed: line 14"),
        ([], "missed: line 11"),
        ([LOSS, CACHE, replace(LOSS, line=10)], "not a leak"),
        ([LOSS, CACHE, LOSS], "not a leak"),
        ([LOSS, CACHE, replace(LOSS, file="other.py")], "not a leak"),
        ([replace(LOSS, line=12), CACHE], "missed: line 11"),
        ([replace(LOSS, ranks="0-2"), CACHE], "ranks '0-2' instead of '0-3'"),
        ([replace(LOSS, bytes_per_step=111.0), CACHE], "111.0 bytes per step"),
        ([LOSS, replace(CACHE, bytes_per_step=65.0)], "65.0 bytes per step"),
        ([LOSS, replace(CACHE, first_step=1)], "first step 1 instead of 11"),
    ],
)
def test_refuses_what_differs(truth: Truth, found: list[Found], words: str) -> None:
    assert any(words in problem for problem in differences(truth, found))


def test_refuses_marks_without_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text('TRUTH = {"nproc": 1, "steps": 1, "leaks": []}\nx = 1  # LEAK\n')

    with pytest.raises(ValueError, match="marks without an entry"):
        read_truth(path)


def test_reads_rows_of_leaks_csv(tmp_path: Path) -> None:
    path = tmp_path / "leaks.csv"
    path.write_text(
        "kind,confidence,ranks,scope,device,pool,bytes,bytes_per_step,blocks,first_step,last_step,file,line,function,owner,stack\n"
        'leak,0.99,"0-1,3",group,cpu,c10,1408,64.0,22,11,23,/some/where/program.py,14,main,,"a, b"\n'
    )

    assert read_findings(path) == [CACHE]


def test_folds_ranks() -> None:
    assert fold([7, 0, 1, 2, 3]) == "0-3,7"
    assert fold([5]) == "5"
    assert fold([]) == ""
