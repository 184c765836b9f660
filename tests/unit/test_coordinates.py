"""Where ranks stand by the word of their frameworks, and how fast a rank moves away from its peers."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_job import MIB, Job, Worker, at, stack

from msmemscope.analysis.coordinates import by_coordinates, only_theirs, read_coordinates
from msmemscope.analysis.peer_drift import drift
from msmemscope.vocabulary import DeviceType, Pool

NPU = {"device": 0, "device_type": DeviceType.NPU, "pool": Pool.PTA}
PLACE = (int(DeviceType.NPU), int(Pool.PTA))


@pytest.mark.parametrize("text", ["", "tp", "tp=2/2", "tp=1/2;pp=0/1", "tp=-1/2", "TP=0/2", "tp=0/0", "a b=0/2"])
def test_what_says_nothing(text: str) -> None:
    assert read_coordinates(text) == {}


def test_ranks_of_one_stage_with_the_same_groups_are_peers() -> None:
    job = Job(0)
    told = ["tp=0/2,pp=0/2", "tp=1/2,pp=0/2", "tp=0/2,pp=1/2", "tp=1/2,pp=1/2", "dp=0/4,tp=0/1"]
    for rank, text in enumerate(told):
        job.process(rank, parallel=text).next_step()
    tracked = job.tracked()
    groups = by_coordinates(tracked, list(tracked.subjects))
    assert groups is not None
    assert [[one.rank for one in group] for group in groups.values()] == [[0, 1], [2, 3], [4]]
    job.process(5).next_step()  # has said nothing
    tracked = job.tracked()
    assert by_coordinates(tracked, list(tracked.subjects)) is None


def test_what_some_ranks_have_in_common_and_no_other_has() -> None:
    job = Job(0)
    for rank in range(8):
        job.process(rank, parallel=f"ep={rank % 4}/4,dp={rank // 4}/2,cp=0/1").next_step()
    tracked = job.tracked()
    assert only_theirs(tracked, [3, 7], [0, 1, 2, 4, 5, 6]) == ["ep=3"]
    assert only_theirs(tracked, [3], [0, 1, 2, 4, 5, 6, 7]) == []  # rank 7 has it, too
    assert only_theirs(tracked, [4, 5, 6, 7], [0, 1, 2, 3]) == ["dp=1"]
    assert only_theirs(tracked, [2], [1, 3]) == ["ep=2"]
    assert only_theirs(tracked, [0], [5]) == ["ep=0", "dp=0"]


def moving(each: float, steps: int = 40) -> Job:
    """Four ranks; the first holds a block that is larger by so many bytes with each step."""
    job = Job(0)
    for rank in range(4):
        worker: Worker = job.process(rank)
        worker.alloc(stack(at(12)), 100 * MIB, **NPU)
        held = None
        for step in range(steps):
            worker.free(held)
            size = MIB + (int(each * step) if rank == 0 else step % 3 * 1024)
            held = worker.alloc(stack(at(30)), size, **NPU)
            worker.next_step()
    return job


@pytest.mark.parametrize("each", [MIB, 3 * MIB])
def test_a_rank_that_moves_away_has_the_slope(each: int) -> None:
    job = moving(each)
    assert np.isclose(drift(job.tracked().steps, PLACE, 0, [1, 2, 3], 39), each, rtol=0.01)


def test_the_number_of_a_step_costs_nothing() -> None:
    """A program may begin at step 2,000,000,000; so may a damaged record."""
    job, begin = moving(MIB).tracked().steps, 2_000_000_000
    later = {**job, "step": np.asarray(job["step"]) + begin}
    assert np.isclose(drift(later, PLACE, 0, [1, 2, 3], 39 + begin), MIB, rtol=0.01)


def test_ranks_that_stay_together_have_none() -> None:
    assert drift(moving(0).tracked().steps, PLACE, 0, [1, 2, 3], 39) == 0.0
    assert drift(moving(MIB, steps=8).tracked().steps, PLACE, 0, [1, 2, 3], 7) == 0.0  # too few
