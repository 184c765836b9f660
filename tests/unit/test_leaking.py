"""What a process is told of its leaks, and what becomes of its answer: tables whose truth we planted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import FakeRun, leaky_job

from msmemscope.aggregate.leaking import LeakingFiles
from msmemscope.analysis.holders import UNSEEN
from msmemscope.collect.session import LEAKING
from msmemscope.report.analysed import analyse

LOSS = {((iteration + 1) << 24) + 0x100000 for iteration in range(24)}  # addresses of what line 58 keeps
HOARD = {((iteration + 1) << 24) + 0x200000 for iteration in range(24)}  # of line 61, on rank 2


def told(directory: Path) -> dict[int, list[set[int]]]:
    """By ring the addresses of each call stack."""
    return {
        int(path.name.removeprefix(LEAKING), 16): [set(one) for one in json.loads(path.read_text())["blocks"].values()]
        for path in directory.glob(f"{LEAKING}*")
    }


def answer(text: str, **more: object) -> str:
    return json.dumps({"text": text, "found": 20, "of": 24, "passes": 0, **more})


def sentences(run: FakeRun) -> list[str]:
    return [one.sentence for one in analyse(run).summary.findings if one.headline]


def test_each_process_is_told_addresses_of_its_own_leaks(tmp_path: Path) -> None:
    LeakingFiles(tmp_path).write(analyse(leaky_job()))
    files = told(tmp_path)
    assert sorted(files) == [1, 2, 3, 4]
    for ring, stacks in files.items():
        assert len(stacks) == (2 if ring == 3 else 1)
        assert all(len(one) >= 8 and (one <= LOSS or one <= HOARD) for one in stacks)


def test_a_process_in_which_nothing_leaks_is_told_so_and_one_that_was_not_judged_nothing(tmp_path: Path) -> None:
    LeakingFiles(tmp_path).write(analyse(leaky_job(steps=5)))
    assert told(tmp_path) == {}
    LeakingFiles(tmp_path).write(analyse(leaky_job(leaking=False)))
    assert told(tmp_path) == {1: [], 2: [], 3: [], 4: []}


def test_a_process_is_told_how_many_of_its_steps_were_judged(tmp_path: Path) -> None:
    LeakingFiles(tmp_path).write(analyse(leaky_job(steps=39)))
    judged = {json.loads(path.read_text())["judged"] for path in tmp_path.glob(f"{LEAKING}*")}
    assert len(judged) == 1
    assert 32 <= judged.pop() <= 38


def test_a_session_directory_that_is_gone_is_no_fault_of_the_verdict(tmp_path: Path) -> None:
    LeakingFiles(tmp_path / "gone").write(analyse(leaky_job()))


def test_answers_of_ranks_are_one_whatever_their_containers_hold() -> None:
    run = leaky_job()
    for rank in range(4):
        text = answer(f"list `losses` ({24 + rank} items), a global of train.py", at=sorted(LOSS)[:8])
        run.processes[rank] = replace(run.processes[rank], holders=(text,))
    loss = next(one for one in analyse(run).summary.findings if one.line == 58)
    assert "; held by list `losses` (24 items), a global of train.py; " in loss.sentence
    assert [one["processes"] for one in loss.evidence["holders"]] == [4]
    assert loss.row is not None
    assert loss.row.cells["holders"] == "list `losses` (24 items), a global of train.py"
    assert not any("held by" in one for one in sentences(run) if "train.py:61" in one)


def test_the_call_stack_says_it_as_well_as_addresses_do() -> None:
    run = leaky_job()
    hoard = next(one for one in analyse(run).summary.findings if one.line == 61)
    (stack,) = hoard.evidence["stacks"]
    run.processes[2] = replace(run.processes[2], holders=(answer("dict `kept`", stack=stack),))
    assert ["held by dict `kept`" in one for one in sentences(run)] == ["train.py:61" in one for one in sentences(run)]


def test_a_graph_holds_what_no_variable_does() -> None:
    run = leaky_job()
    graph = answer("the autograd graph of `total`", at=[], passes=24)
    unseen = answer("", at=sorted(LOSS)[:8])
    run.processes[0] = replace(run.processes[0], holders=(unseen, graph))
    assert any("held by the autograd graph of `total`" in one for one in sentences(run))
    run.processes[0] = replace(run.processes[0], holders=(unseen, answer("a small graph", at=[], passes=3)))
    assert any(f"held by {UNSEEN}" in one for one in sentences(run))
    run.processes[0] = replace(run.processes[0], holders=(answer("list `x`", at=sorted(LOSS)[:8]), graph))
    assert any("held by list `x`" in one for one in sentences(run))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"text": 1}', answer("x", at="no"), answer("x", stack="none"), answer("x", at=[-1])],
)
def test_an_answer_that_no_process_gives_is_no_answer(text: str) -> None:
    run = leaky_job()
    run.processes[0] = replace(run.processes[0], holders=(text,))
    assert not any("held by" in one for one in sentences(run))
