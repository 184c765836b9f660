"""Restarted ranks and forked or spawned workers: whose memory is whose."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from running import PROGRAMS, Watch, torchrun
from truth import differences, read_findings, read_truth

from msmemscope.tables.run import Run


def test_a_restarted_rank_is_a_new_attempt_and_never_mixed_with_the_old(watch: Watch) -> None:
    program = PROGRAMS / "elastic.py"

    # With a shared store a restarted rank may read its peer's address of the attempt before (pytorch issue 135712):
    # 3 of 6 restarts failed or hung here, none of 8 with a store of its own for each attempt.
    outcome = watch(*torchrun(2, "--max-restarts=1", program), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    # torchrun's own process has no rank; should it ever allocate a tensor, it is not one of these.
    attempts = {(p.rank, p.attempt): p for p in run.processes if p.is_main and p.rank is not None}
    assert set(attempts) == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert len({p.pid for p in attempts.values()}) == 4
    steps = _steps_by_ring(run)
    # Rank 1 died in step 7: what it had recorded until then is there, that step included.
    assert steps[attempts[1, 0].ring] == (0, 7)
    # The second attempt counts its own steps: 24 of them, and what follows the last.
    for rank in (0, 1):
        assert steps[attempts[rank, 1].ring] == (0, 25)
    # Both attempts together would show the line with other bytes or more than once.
    assert not differences(read_truth(program), read_findings(outcome.run / "cluster/leaks.csv"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_belong_to_their_rank(watch: Watch, method: str) -> None:
    # The environment that torchrun would give to rank 3; the program itself never talks to the others.
    rank = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}

    outcome = watch(sys.executable, PROGRAMS / "workers.py", method, **rank)

    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    (main,) = [p for p in run.processes if p.is_main]
    workers = [p for p in run.processes if p.parent_ring == main.ring]
    assert len(workers) == 2
    assert len(run.processes) == 3
    assert {p.rank for p in run.processes} == {3}
    assert len({p.pid for p in run.processes}) == 3
    steps = _steps_by_ring(run)
    assert set(steps) == {main.ring, *(w.ring for w in workers)}
    # Workers know their rank's steps, or a leak in one could never be told from a cache.
    assert max(steps[w.ring][1] for w in workers) > 0
    assert read_findings(outcome.run / "cluster/leaks.csv") == []


def _steps_by_ring(run: Run) -> dict[int, tuple[int, int]]:
    """Return the first and the last step that each ring recorded events of."""
    table = pa.Table.from_batches(list(run.events(columns=["ring", "step"])))
    table = table.set_column(0, "ring", table["ring"].cast(pa.uint64()))
    grouped = table.group_by("ring").aggregate([("step", "min"), ("step", "max")])
    return {row["ring"]: (row["step_min"], row["step_max"]) for row in grouped.to_pylist()}
