"""Host memory near its limit: one event per approach, in the agent's samples and in the findings."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_run import SECOND, FakeRun, frame, process

from msmemscope.analysis.findings import Finding
from msmemscope.analysis.near_limit import NEAR_LIMIT
from msmemscope.collect.agent.memory_group import MemoryGroup
from msmemscope.collect.agent.usage import Recorded, Usage
from msmemscope.memory_limit import is_near
from msmemscope.report.analysed import analyse
from msmemscope.report.console import plain_text
from msmemscope.vocabulary import Kind, StepSource

GIB = 1 << 30
LIMIT = 100 * GIB


def test_near_begins_at_95_percent_and_ends_below_90() -> None:
    near, seen = False, []
    for used in (0, 94, 95, 93, 90, 89, 94, 95, 100):
        near = is_near(near, used, 100)
        seen.append(near)
    assert seen == [False, False, True, True, True, False, False, True, True]
    assert not is_near(True, 5, 0)  # no limit


class Group:
    """Files of a directory that stands for a control group."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        (place / "memory.max").write_text(f"{LIMIT}\n")
        self.hold(10)

    def hold(self, gib: float, cached: float = 0) -> None:
        (self.place / "memory.current").write_text(f"{int((gib + cached) * GIB)}\n")
        (self.place / "memory.stat").write_text(f"anon 1\ninactive_file {int(cached * GIB)}\nactive_file 0\n")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    # As on a node with more memory than the group may have, of a process that holds the same all the time.
    monkeypatch.setattr("msmemscope.collect.agent.usage._node_memory", lambda: (GIB, 1000 * GIB))
    monkeypatch.setattr("msmemscope.collect.agent.usage._resident", lambda _: (7 * GIB, 0, 0))
    return Group(tmp_path / "group")


def test_the_agent_sends_a_row_when_the_group_comes_near_and_when_it_is_far_again(group: Group) -> None:
    usage = Usage(0.1, print, group_of=lambda _: MemoryGroup(group.place, is_old=False))
    sent = []
    for gib, cached in ((10, 0), (94, 0), (60, 39), (95.5, 0), (97, 0), (93, 0), (89, 0), (96, 0)):
        group.hold(gib, cached)
        message = usage.message([Recorded(1, os.getpid(), frozenset())])
        sent += [(row[4] / GIB, row[5]) for row in (message or {"rows": []})["rows"]]
    # The first, then the moments of coming and leaving alone: files that the kernel caches do not count.
    assert sent == [(10, LIMIT), (95.5, LIMIT), (89, LIMIT), (96, LIMIT)]


def run_of(samples: list[tuple[int, float]], ranks: int = 1, **fields: Any) -> FakeRun:
    """samples: second, GiB in use. A step begins with every second and keeps a block."""
    run = FakeRun([process(n + 1, rank=n, world_size=ranks, pid=100 + n, **fields) for n in range(ranks)])
    stack = run.frames(frame("/src/train.py", "keep", 7))
    for ring in range(1, ranks + 1):
        for second in range(1, 12):
            run.add(Kind.STEP, second * SECOND, ring=ring, step=second, aux=StepSource.API)
            run.malloc(second * SECOND + 1, second << 32, GIB, ring=ring, step=second, stack_py=stack)
        for second, used in samples:
            ts = second * SECOND + SECOND // 2
            run.sample(ts, "cpu", ring=ring, used=int(used * GIB), total=LIMIT, process_used=3 * GIB, rss=3 * GIB)
    return run


def found(run: FakeRun) -> list[Finding]:
    return list(analyse(run).summary.of_kind(NEAR_LIMIT))  # type: ignore[arg-type]


def test_each_approach_is_counted_once() -> None:
    (one,) = found(run_of([(1, 50), (3, 95), (4, 99), (5, 93), (6, 80), (8, 96), (9, 91), (10, 60)]))
    assert (one.evidence["approaches"], one.evidence["is_near"]) == (2, False)
    assert (one.evidence["used"], one.evidence["limit"]) == (99 * GIB, LIMIT)
    assert one.evidence["per_rank"] == {"0": {"resident": 3 * GIB, "step": 4}}
    assert (one.ranks, one.first_step, one.severity, one.bytes) == ((0,), 4, "warning", 99 * GIB)
    assert one.sentence == (
        "Rank 0 came near the memory limit of the host in step 4: 99 GiB of 100 GiB (99 %) were in use, 2 times in "
        "all; 3.0 GiB were resident in it."
    )


def test_the_nearest_of_several_hosts_is_told_first() -> None:
    run = run_of([(1, 50), (10, 97)], ranks=2)
    run.processes[1] = replace(run.processes[1], host="host-b")
    for one in run.samples:
        if one["ring"] == 2:  # 9.9 of 10 GiB in the end
            one["total"], one["used"] = LIMIT // 10, one["used"] // 10 + GIB // 5
    assert [one.ranks for one in found(run)] == [(1,), (0,)]


def test_while_it_is_near_the_lines_are_told_that_hold_memory() -> None:
    run = run_of([(1, 50), (10, 97)], ranks=2)
    (one,) = found(run)
    assert (one.ranks, one.evidence["is_near"]) == ((0, 1), True)
    assert (one.file, one.line, one.evidence["alive_bytes"]) == ("/src/train.py", 7, 22 * GIB)
    assert "NEAR THE MEMORY LIMIT" in plain_text(analyse(run))  # type: ignore[arg-type]


def test_ninety_four_percent_is_not_near() -> None:
    assert found(run_of([(1, 94), (5, 94.9)])) == []


def test_who_was_killed_for_it_has_the_finding_of_that() -> None:
    assert found(run_of([(1, 50), (10, 97)], ended_for_memory=1, ended_by=9, ended_ns=11 * SECOND)) == []
