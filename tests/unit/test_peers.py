"""Ranks that use more than their peers: simulated jobs in which we planted who, where and how much."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated_job import MIB, TRAIN, Job, Worker, at, stack, train

from msmemscope.analysis.analyzer import Tables
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.leaks import find_leaks
from msmemscope.analysis.options import make_options
from msmemscope.analysis.outliers import outliers
from msmemscope.analysis.peer_groups import by_stage, read_degrees
from msmemscope.analysis.peer_stages import STAGES_DIFFER
from msmemscope.analysis.peer_use import SiteLevels
from msmemscope.analysis.peer_words import DIFFERS, MAY_USE_MORE, UNKNOWN_STAGES, USES_LESS, USES_MORE
from msmemscope.analysis.peers import PeerOptions, _chance, judge
from msmemscope.errors import UsageError
from msmemscope.vocabulary import DeviceType, Pool

SAVE = 88  # the line in train.py that plants allocate at
STEPS = 12
NPU = {"device_type": DeviceType.NPU, "pool": Pool.PTA}
HAL = {"device_type": DeviceType.NPU, "pool": Pool.HAL}
WEIGHTS = stack(at(12))


def found(job: Job, *, earlier: tuple[Finding, ...] = (), **options: Any) -> list[Finding]:
    return judge(tables(job, earlier), PeerOptions(**options))


def tables(job: Job, earlier: tuple[Finding, ...] = ()) -> Tables:
    return Tables(job.tracked(), job.stack, str, lambda _: None, dict, dict, earlier=earlier)  # type: ignore[arg-type]


def cards(ranks: int, per_rank: Any, *, steps: int = STEPS, seed: int = 0) -> Job:
    """Ranks with a card each, whose loops are `per_rank(worker, rank, iteration)`; they hold 256 MiB of weights."""
    job = Job(seed)
    for rank in range(ranks):
        worker = job.process(rank)
        worker.alloc(WEIGHTS, 256 * MIB, device=rank % 8, **NPU)
        for iteration in range(steps):
            worker.free(worker.alloc(stack(at(20)), 32 * MIB, device=rank % 8, **NPU))
            per_rank(worker, rank, iteration)
            worker.next_step()
        for block in list(worker.live):
            worker.free(block)
    return job


def gather(who: int, size: int, *, when: int = 3, line: int = SAVE) -> Any:
    """From an iteration on, one rank keeps a block."""

    def loop(worker: Worker, rank: int, iteration: int) -> None:
        if rank == who and iteration == when:
            worker.alloc(stack(at(line, TRAIN, "save")), size, device=rank % 8, **NPU)

    return loop


# --- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_names_the_rank_the_line_and_the_bytes(ranks: int) -> None:
    who = ranks - 2
    (one,) = found(cards(ranks, gather(who, 100 * MIB)))

    assert (one.kind, one.severity, one.ranks, one.scope) == (USES_MORE, "warning", (who,), "single")
    assert (one.file, one.line, one.function, one.bytes) == (TRAIN, SAVE, "save", 100 * MIB)
    assert (one.device, one.pool) == (f"npu:{who % 8}", "PTA")
    assert [(line["line"], line["bytes"]) for line in one.evidence["lines"]] == [(SAVE, 100 * MIB)]
    assert one.evidence["unexplained_bytes"] == one.evidence["other_bytes"] == 0
    assert one.sentence == (
        f"Rank {who} uses 100 MiB more than its {ranks - 1} peers on npu:{who % 8} (388 against 288 MiB at the peak): "
        "100 MiB of it at train.py:88."
    )
    assert one.row is not None
    assert (one.row.cells["excess_bytes"], one.row.cells["line_bytes"]) == (100 * MIB, 100 * MIB)


def test_who_is_on_the_host_already_is_not_sent_there() -> None:
    def gathers(device: int) -> list[str]:
        where = NPU if device >= 0 else {"device_type": DeviceType.CPU, "pool": Pool.HOST}
        job = Job(0)
        for rank in range(4):
            worker = job.process(rank)
            for iteration in range(STEPS):
                worker.free(worker.alloc(stack(at(20)), 32 * MIB, device=max(device, 0), **where))
                if rank == 1 and iteration == 3:
                    worker.alloc(stack(at(SAVE, TRAIN, "save")), 100 * MIB, device=max(device, 0), **where)
                worker.next_step()
        return [one.advice for one in found(job)]

    assert gathers(0) == [
        "Do in pieces, or on the host, what only rank 1 does at train.py:88; or spread it over the ranks."
    ]
    assert gathers(-1) == ["Do in pieces what only rank 1 does at train.py:88; or spread it over the ranks."]


def test_of_two_ranks_a_large_difference_is_a_note() -> None:
    (one,) = found(cards(2, gather(1, 100 * MIB)))
    assert (one.kind, one.is_note, one.ranks, one.line) == (DIFFERS, True, (1,), SAVE)
    assert one.evidence["per_rank"]["1"]["bytes"] == 100 * MIB
    assert "cannot be judged" in one.sentence
    assert not found(cards(2, gather(1, 57 * MIB)))  # 20 % and less
    assert not found(cards(2, gather(1, 100 * MIB)), pair_bytes=101 * MIB)
    assert found(cards(2, gather(1, 57 * MIB)), pair_share=0.1, pair_bytes=MIB)


def test_a_line_holds_nothing_at_the_end_of_a_step_before_its_first_block() -> None:
    levels = SiteLevels(tables(cards(2, gather(1, 100 * MIB, when=6))).tracked)
    keys = np.unique(levels.keys)
    place = (int(DeviceType.NPU), int(Pool.PTA))
    before, after = (levels.by_key(1, place, step, keys)[0] for step in (4, 9))
    assert before.sum() == 256 * MIB
    assert sorted((after - before).tolist())[-2:] == [0, 100 * MIB]


def test_chance_is_twice_the_usual_swing_of_peers_and_what_any_but_one_has_shown() -> None:
    assert _chance(np.array([1, 5, 5, 5, 9])) == 10
    assert _chance(np.array([1, 1, 1, 9, 10])) == 9


def test_a_peak_within_one_step_names_the_line_that_made_it_and_what_was_less_by_then() -> None:
    def save(worker: Worker, rank: int, iteration: int) -> None:
        if rank == 0 and iteration == 5:
            worker.free(worker.alloc(stack(at(SAVE, TRAIN, "save")), 200 * MIB, device=0, **NPU))

    (one,) = found(cards(8, save))
    # The gather lies on the weights alone: the activations are free by then.
    assert (one.ranks, one.bytes, one.evidence["figure"]) == ((0,), 168 * MIB, "peak")
    (line,) = one.evidence["lines"]
    assert (one.line, line["line"], line["bytes"], line["only_here"]) == (SAVE, SAVE, 200 * MIB, True)
    assert (one.evidence["less_bytes"], one.evidence["unexplained_bytes"]) == (32 * MIB, 0)
    assert [(less["line"], less["bytes"]) for less in one.evidence["less"]] == [(20, -32 * MIB)]
    assert one.sentence.endswith(": 200 MiB of it at train.py:88, 32 MiB less at train.py:20.")
    assert one.row is not None
    assert one.row.cells["line_bytes"] == 200 * MIB


def test_a_peak_of_which_little_is_left_at_the_ends_of_steps_has_the_lines_of_the_peak() -> None:
    def batches(worker: Worker, rank: int, iteration: int) -> None:
        factor = 3 if rank == 1 else 1
        if iteration == 0:
            worker.alloc(stack(at(30)), factor * 20 * MIB, device=rank % 8, **NPU)
        worker.free(worker.alloc(stack(at(40)), factor * 100 * MIB, device=rank % 8, **NPU))

    (one,) = found(cards(4, batches))
    assert (one.ranks, one.bytes) == ((1,), 240 * MIB)
    assert {figure["figure"] for figure in one.evidence["pools"]} == {"peak", "end"}
    assert [(line["line"], line["bytes"]) for line in one.evidence["lines"]] == [(40, 200 * MIB), (30, 40 * MIB)]
    assert one.evidence["unexplained_bytes"] == 0


def test_the_largest_lines_are_told_until_nine_tenths_and_the_rest_as_a_number() -> None:
    def pieces(worker: Worker, rank: int, iteration: int) -> None:
        if rank == 3 and iteration == 3:
            for line, size in ((1, 60), (2, 30), (3, 4), (4, 4), (5, 2)):
                worker.alloc(stack(at(100 + line)), size * MIB, device=3, **NPU)

    (one,) = found(cards(8, pieces))
    assert [(line["line"], line["bytes"]) for line in one.evidence["lines"]] == [(101, 60 * MIB), (102, 30 * MIB)]
    assert (one.evidence["other_bytes"], one.evidence["other_lines"]) == (10 * MIB, 3)
    assert "10 MiB more in 3 other lines" in one.sentence


def test_the_drivers_pool_that_moves_with_the_frameworks_is_no_second_finding() -> None:
    def both(worker: Worker, rank: int, iteration: int) -> None:
        gather(2, 100 * MIB)(worker, rank, iteration)
        if iteration == 3:
            worker.alloc((), (500 if rank == 2 else 380) * MIB, device=rank, **HAL)

    (one,) = found(cards(8, both))
    assert (one.pool, one.bytes) == ("PTA", 100 * MIB)
    assert {(pool["pool"], pool["figure"]) for pool in one.evidence["pools"]} == {
        (pool, figure) for pool in ("PTA", "HAL") for figure in ("peak", "end")
    }
    assert any(line.startswith("HAL at the peak: 500 against 380 MiB") for line in one.details)


def test_ranks_that_exceed_at_the_same_line_are_one_finding() -> None:
    def loop(worker: Worker, rank: int, iteration: int) -> None:
        gather(3, 100 * MIB)(worker, rank, iteration)
        gather(12, 120 * MIB)(worker, rank, iteration)

    (one,) = found(cards(16, loop))
    assert (one.ranks, one.bytes, one.line) == ((3, 12), 220 * MIB, SAVE)
    assert {rank: figures["bytes"] for rank, figures in one.evidence["per_rank"].items()} == {
        "3": 100 * MIB,
        "12": 120 * MIB,
    }


def test_a_rank_that_uses_less_is_a_note() -> None:
    def loop(worker: Worker, rank: int, iteration: int) -> None:
        if rank != 5 and iteration == 3:
            worker.alloc(stack(at(SAVE)), 100 * MIB, device=rank, **NPU)

    (one,) = found(cards(8, loop))
    assert (one.kind, one.is_note, one.ranks, one.bytes) == (USES_LESS, True, (5,), 100 * MIB)
    assert "uses 100 MiB less than its 7 peers" in one.sentence


def test_a_leak_that_is_known_is_not_a_second_mistake() -> None:
    def keep(worker: Worker, rank: int, iteration: int) -> None:
        if rank == 2:
            worker.alloc(stack(at(50)), 8 * MIB, device=2, **NPU)

    job = cards(4, keep, steps=24)
    leaks = tuple(find_leaks(job.tracked(), job.stack))  # type: ignore[arg-type]
    assert [(one.ranks, one.line) for one in leaks if not one.is_note] == [((2,), 50)]
    (alone,) = found(job)
    assert (alone.kind, alone.is_note, alone.line) == (USES_MORE, False, 50)
    (one,) = found(job, earlier=leaks)
    assert one.is_note
    assert one.sentence.endswith("it is the leak at train.py:50.")


# --- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_clean_jobs_are_silent(seed: int) -> None:
    """Sequences of random lengths, the first rank with some more, warm-ups of different height."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice([2, 3, 4, 5, 7, 8, 16]))

    def loop(worker: Worker, rank: int, iteration: int) -> None:
        length = int(rng.integers(64, 512))
        if iteration == 0:
            worker.free(worker.alloc(stack(at(60)), int(rng.integers(1, 600)) * MIB, device=rank % 8, **NPU))
        if rank == 0 and iteration == 2:
            worker.alloc(stack(at(61)), 6 * MIB, device=0, **NPU)
        layers = [worker.alloc(stack(at(40 + n)), length * MIB // 2, device=rank % 8, **NPU) for n in range(4)]
        for block in layers:
            worker.free(block)

    assert found(cards(ranks, loop, steps=int(rng.integers(10, 40)), seed=seed)) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_training_loop_on_the_host_is_silent(seed: int) -> None:
    assert found(train(Job(seed), ranks=4, churn=64 * MIB)) == []


def test_limits_of_what_is_worth_a_word() -> None:
    assert not found(cards(8, gather(1, 14 * MIB)))
    assert found(cards(8, gather(1, 14 * MIB)), min_bytes=MIB, min_share=0.01)
    assert not found(cards(8, gather(1, 100 * MIB)), min_bytes=200 * MIB)
    assert not found(cards(8, gather(1, 100 * MIB)), min_share=0.5)


def test_too_few_steps_say_nothing() -> None:
    assert not found(cards(8, gather(1, 100 * MIB), steps=8))
    assert found(cards(8, gather(1, 100 * MIB), steps=9))


@pytest.mark.parametrize(("ranks", "steps"), [(3, 4), (4, 6), (8, 6), (64, 8)])
def test_of_few_steps_a_rank_that_is_far_from_its_peers_in_each_is_a_candidate(ranks: int, steps: int) -> None:
    (one,) = found(cards(ranks, gather(1, 100 * MIB, when=0), steps=steps))
    assert (one.kind, one.is_note, one.headline, one.confidence) == (MAY_USE_MORE, False, "MAY USE MORE", 0.5)
    assert (one.ranks, one.bytes, one.line) == ((1,), 100 * MIB, SAVE)
    assert one.row is not None
    assert one.row.cells["kind"] == MAY_USE_MORE  # a reader of the file knows it from one that is sure
    assert one.sentence.endswith(
        f"100 MiB of it at train.py:88. So it is in each of {steps - 1} steps: too few to be sure."
    )
    assert not found(cards(ranks, gather(1, 100 * MIB, when=0), steps=3))


def test_of_few_steps_what_grows_or_happens_once_is_no_candidate() -> None:
    assert not found(cards(8, gather(1, 100 * MIB, when=2), steps=6))

    def growing(worker: Worker, rank: int, iteration: int) -> None:
        if rank == 1 and iteration:
            worker.alloc(stack(at(SAVE)), 14 * MIB, device=1, **NPU)

    assert not found(cards(8, growing, steps=6))


def test_of_few_steps_ranks_that_lie_apart_by_themselves_are_no_candidates() -> None:
    """Two of fifteen peers are 300 MiB from the others: one that is 500 MiB from them is no further than that."""

    def keeping(more: dict[int, int]) -> list[Finding]:
        def keep(worker: Worker, rank: int, iteration: int) -> None:
            if rank in more and iteration == 0:
                worker.alloc(stack(at(SAVE)), more[rank] * MIB, device=rank % 8, **NPU)

        return found(cards(16, keep, steps=6))

    assert not keeping({1: 500, 2: 300, 3: 300})
    (one,) = keeping({1: 1000, 2: 300, 3: 300})
    assert (one.kind, one.ranks) == (MAY_USE_MORE, (1,))


def test_of_few_steps_two_ranks_that_differ_are_a_note() -> None:
    (one,) = found(cards(2, gather(1, 100 * MIB, when=0), steps=6))
    assert (one.kind, one.is_note) == (DIFFERS, True)
    assert one.sentence.endswith(
        "Two ranks cannot be judged by each other. So it is in each of 5 steps: too few to be sure."
    )


@pytest.mark.parametrize("seed", range(60))
def test_of_few_steps_clean_ranks_are_silent(seed: int) -> None:
    """Sequences of random lengths, and what ranks keep differs by some hundredths from rank to rank."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice([2, 3, 4, 5, 7, 8, 16]))
    kept = rng.normal(100, 10, ranks)

    def loop(worker: Worker, rank: int, iteration: int) -> None:
        if iteration == 0:
            worker.alloc(stack(at(61)), int(kept[rank] * MIB), device=rank % 8, **NPU)
        worker.free(worker.alloc(stack(at(40)), int(rng.integers(64, 512)) * MIB, device=rank % 8, **NPU))

    assert found(cards(ranks, loop, steps=int(rng.integers(4, 9)), seed=seed)) == []


# --- groups ----------------------------------------------------------------------------------------------------------


def pipeline(worker: Worker, rank: int, iteration: int) -> None:
    """Two stages of four ranks, and the first of the stage 1 holds some more; all of one call stack."""
    if iteration == 2:
        worker.alloc(stack(at(70)), (900 if rank < 4 else 100) * MIB, device=rank, **NPU)


def test_stages_of_a_pipeline_are_no_outliers_of_each_other() -> None:
    assert found(cards(8, pipeline), parallel="tp=2,dp=2,pp=2") == []

    def loop(worker: Worker, rank: int, iteration: int) -> None:
        pipeline(worker, rank, iteration)
        gather(6, 100 * MIB)(worker, rank, iteration)

    (one,) = found(cards(8, loop), parallel="tp=4,pp=2")
    assert (one.ranks, one.bytes, one.line, one.evidence["peers"]) == ((6,), 100 * MIB, SAVE, "4-5,7")


def test_one_stage_that_stands_out_is_a_note_when_the_stages_are_told() -> None:
    def loop(worker: Worker, rank: int, iteration: int) -> None:
        if iteration == 2:
            worker.alloc(stack(at(70)), (900 if rank < 4 else 100) * MIB, device=rank % 8, **NPU)

    job = cards(32, loop)
    assert [one.ranks for one in found(job)] == [(0, 1, 2, 3)]
    (note,) = found(job, parallel="tp=2,dp=2,pp=8")
    assert (note.kind, note.is_note, note.ranks, note.bytes) == (STAGES_DIFFER, True, (0, 1, 2, 3), 800 * MIB)
    stages = note.evidence["stages"]
    assert [row["ranks"] for row in stages[:2]] == ["0-3", "4-7"]
    # Weights and what stays: 356 MiB; what the first stage has within its steps, 32 MiB, falls by an eighth a stage.
    assert [row["predicted_bytes"] // MIB for row in stages] == [388 - 4 * stage for stage in range(8)]
    assert [row["peak_bytes"] // MIB for row in stages] == [1188] + [388] * 7


def test_sizes_that_are_not_this_jobs_are_said_and_nothing_is_compared() -> None:
    (one,) = found(cards(8, gather(1, 100 * MIB)), parallel="tp=2,pp=2")
    assert (one.kind, one.is_note) == (UNKNOWN_STAGES, True)
    assert "tp=2,pp=2 is a job of 4 ranks, and this run has 8" in one.sentence


@pytest.mark.parametrize("text", ["tp", "tp=0", "tp=2,tp=2", "xp=2", "tp=2;pp=2", "tp=-1"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="parallel takes sizes of tp, cp, dp, pp"):
        make_options("peers", PeerOptions, {"parallel": text})


def test_ranks_of_other_work_are_no_peers() -> None:
    """Four that train and four that sample, with other lines and other needs."""

    def loop(worker: Worker, rank: int, iteration: int) -> None:
        if rank >= 4:
            for line in range(20):
                worker.free(worker.alloc(stack(at(200 + line)), MIB, device=rank, **NPU))
        if rank == 4 and iteration == 2:
            worker.alloc(stack(at(SAVE)), 300 * MIB, device=rank, **NPU)

    (one,) = found(cards(8, loop))
    assert (one.ranks, one.evidence["peers"]) == ((4,), "5-7")


def test_order_of_ranks() -> None:
    class Rank:
        def __init__(self, rank: int) -> None:
            self.rank = rank

    groups = by_stage([Rank(rank) for rank in range(16)], read_degrees("pp=4,dp=2,tp=2"))  # type: ignore[misc]
    assert [[one.rank for one in group] for group in groups] == [[*range(n, n + 4)] for n in (0, 4, 8, 12)]


# --- the tests for outliers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "signs"),
    [
        ([1, 9], [0, 0]),
        ([10, 10, 10], [0, 0, 0]),
        ([0, 3, 100], [0, 0, 0]),  # Q = 0.97, the critical value itself
        ([0, 2, 100], [0, 0, 1]),
        ([100, 97, 0], [0, 0, 0]),
        ([100, 99, 0], [0, 0, -1]),
        # Q = 0.57 and 0.56; the critical value of seven is 0.568.
        ([0, 10, 20, 30, 40, 43, 100], [0, 0, 0, 0, 0, 0, 1]),
        ([0, 10, 20, 30, 40, 44, 100], [0, 0, 0, 0, 0, 0, 0]),
        ([5] * 7 + [6], [0] * 7 + [1]),
        ([5] * 5 + [6] * 3, [0] * 8),  # more than a quarter: another kind
        ([1, 2, 3, 4, 5, 6, 7, 8, 50], [0] * 8 + [1]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], [0] * 9),
    ],
)
def test_outliers(numbers: list[int], signs: list[int]) -> None:
    assert outliers(numbers).tolist() == signs
