"""Every scripted job gives the findings that were planted and no other; and the comparison tells when it does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from msmemscope.selftest import play
from msmemscope.selftest.case import Case, Expected, all_cases, differences, failures
from msmemscope.selftest.cases import inefficient
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import played
from msmemscope.selftest.script import KIB, Script

CASES = all_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.analysis}-{case.name}")
def test_says_what_was_planted_and_nothing_else(case: Case) -> None:
    assert failures(case) == []


def test_there_are_enough_of_both() -> None:
    kinds = Counter(case.is_clean for case in CASES)
    assert kinds[False] >= 60
    assert kinds[True] >= 30


LEAK = Expected("leak", ranks=(0,), place="train.py:58", bytes=24 * 4 * KIB, per_step=4 * KIB)


def keeps(job: Script) -> None:
    train(job.rank(), lambda rank, _: rank.alloc(4 * KIB, place("train.py:58")))


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ((), "one too many: leak of ranks 0 at train.py:58"),
        ((replace(LEAK, bytes=LEAK.bytes + 1),), "bytes is 98304 instead of 98305"),
        ((replace(LEAK, per_step=4097),), "bytes_per_step is 4096.0 instead of 4097"),
        ((replace(LEAK, place="train.py:59"),), "missed: leak of ranks 0 at train.py:59"),
        ((replace(LEAK, ranks=(1,)),), "missed: leak of ranks 1"),
        ((replace(LEAK, says=("no such words",)),), "it does not say 'no such words'"),
        ((replace(LEAK, evidence={"strange": 1}),), "strange of its evidence is None instead of 1"),
        ((LEAK, LEAK), "missed: leak of ranks 0 at train.py:58"),
    ],
)
def test_what_is_wrong_is_told(expected: tuple[Expected, ...], said: str) -> None:
    assert any(said in text for text in failures(Case("wrong", "leaks", keeps, expected)))


def test_without_its_fault_a_job_misses_its_finding() -> None:
    assert failures(Case("healthy", "leaks", lambda job: train(job.rank()), (LEAK,))) == [
        "missed: leak of ranks 0 at train.py:58"
    ]


def test_events_that_are_stored_nowhere_are_told() -> None:
    """A writer that says it wrote more than it did."""

    def forgets(job: Script) -> None:
        keeps(job)
        job.processes[0].events += 1

    (wrong,) = failures(Case("forgets", "leaks", forgets, (LEAK,)))
    assert "events" in wrong
    assert "are stored" in wrong


@pytest.mark.parametrize(("batch_bytes", "roll_rows"), [(500, 100), (7_000, 1_000), (1 << 22, 1 << 20)])
@pytest.mark.parametrize("name", ["one_line_of_all_and_one_of_some", "three_ranks_at_one_line", "a_leak_beside_losses"])
def test_however_events_are_cut_into_batches_and_parts_the_findings_are_the_same(
    monkeypatch: pytest.MonkeyPatch, name: str, batch_bytes: int, roll_rows: int
) -> None:
    monkeypatch.setattr(play, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(play, "ROLL_ROWS", roll_rows)
    (case,) = [one for one in CASES if one.name == name]
    assert failures(case) == []


def test_jobs_are_stored_in_several_batches_and_parts() -> None:
    """Else the way of a byte is not what is tested."""
    job = Script()
    for one in job.ranks(2):
        train(one, steps=400)
    with played(job) as made:
        assert len(list((made.run.path / "events").glob("part-*.parquet"))) > 1
        assert not differences((), made.live.summary.findings)


def test_what_two_programs_hold_in_vain_under_one_rank_is_not_added_up() -> None:
    job = Script()
    job.config["analysis"] = ("inefficient",)
    for program in ("actor.py", "critic.py"):
        process = job.process(rank=0, world_size=1, program=program)
        unused = inefficient.make(process, inefficient.SIZE, inefficient.HERE)
        inefficient.peak(process)
        process.free(unused)
    with played(job) as made:
        (found,) = made.stored.summary.findings
    assert found.ranks == ()
    assert sorted(name.partition(" ")[0] for name in found.processes) == ["actor.py", "critic.py"]
    assert [one["bytes"] for one in found.evidence["per_rank"].values()] == [inefficient.SIZE] * 2
