"""Out of memory: failures that are one incident, what was alive then, and what is advised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_run import SECOND, WALL_OFFSET, FakeRun, frame, process

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.blocks import event_columns, track
from msmemscope.analysis.findings import LEAK, OUT_OF_MEMORY, Finding
from msmemscope.analysis.live_lines import BEFORE, place_of
from msmemscope.analysis.source_text import Sources
from msmemscope.folds import incidents
from msmemscope.folds.incidents import Incident
from msmemscope.folds.ring_fold import COLUMNS
from msmemscope.folds.segments import GIANT_PAGES, HUGE_PAGES, Mappings
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.report.console import plain_text
from msmemscope.tables.run import Run
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool

MIB, GIB = 1 << 20, 1 << 30
NPU = {"device_type": DeviceType.NPU, "device": 4}
HAL = NPU | {"pool": Pool.HAL}
PTA = NPU | {"pool": Pool.PTA}
DRIVER_CODE, ACL_CODE = 6, 207001


class Program:
    """One rank on NPU 4: two segments of torch's pool, a block of HCCL, host memory, and a thread that fails."""

    def __init__(self, **options: Any) -> None:
        self.run = FakeRun([process(1, **options)])
        main = frame("/src/train.py", "<module>", 90)
        self.weights = self.run.frames(frame("/src/model.py", "build", 12), main)
        self.batch = self.run.frames(frame("/src/train.py", "load", 30), main)
        self.asker = self.run.frames(
            frame("/usr/lib/python3.11/site-packages/torch/functional.py", "matmul", 7),
            frame("/src/train.py", "forward", 44),
            main,
        )
        self.now = 1000
        self.event("malloc", 100 * MIB, 20 * MIB, HAL, attr=33 << 56)
        self.event("malloc", 200 * MIB, 60 * MIB, HAL, attr=33 << 56)
        self.event("malloc", 300 * MIB, 8 * MIB, HAL, attr=3 << 56)
        self.event("malloc", 100 * MIB, 12 * MIB, PTA, stack_py=self.weights, total=80 * MIB)
        self.event("malloc", 200 * MIB, 30 * MIB, PTA, stack_py=self.batch, total=80 * MIB)
        self.event("malloc", 240 * MIB, 2 * MIB, PTA, stack_py=self.batch, total=80 * MIB)
        self.run.malloc(self.now, 0x9000, 777)

    def event(self, what: str, ptr: int, size: int, place: dict[str, int], **more: int) -> None:
        self.now += 10
        getattr(self.run, what)(self.now, ptr, size, **(place | more))

    def fail(self, function: str, size: int, code: int = DRIVER_CODE, place: dict[str, int] = HAL, **more: int) -> None:
        self.now += 10
        name = self.run.text(function)
        fields = {"tid": 100, "stack_py": self.asker, "step": 3} | place | more
        self.run.add(Kind.OOM, self.now, size=size, attr=code, name=name, **fields)

    def failing_tensor(self, size: int, **more: int) -> None:
        """One allocation of torch that fails: huge pages, then small ones, ACL; empty the cache; all that again."""
        for _ in range(2):
            self.fail("halMemAlloc", size + 512, **more)
            self.fail("halMemAlloc", size + 512, **more)
            self.fail("aclrtMallocAlign32", size + 512, ACL_CODE, **more)
        self.fail("NPUCachingAllocator", size, ACL_CODE, PTA, **more)

    def incidents(self) -> tuple[Incident, ...]:
        return track(self.run).incidents  # type: ignore[arg-type]

    def finding(self) -> Finding:
        (finding,) = self.analysis().summary.of_kind(OUT_OF_MEMORY)
        return finding

    def analysis(self) -> Analysis:
        return analyse(self.run)  # type: ignore[arg-type]


def test_one_failing_tensor_is_one_incident() -> None:
    program = Program()
    program.failing_tensor(64 * GIB)
    (incident,) = program.incidents()
    assert len(incident.failures) == 7
    assert incident.asked == 64 * GIB + 512
    assert (incident.device, incident.step, incident.recovered) == (4, 3, False)


def test_what_was_alive_counts_no_byte_twice() -> None:
    program = Program()
    program.failing_tensor(64 * GIB)
    program.event("malloc", 250 * MIB, MIB, PTA)  # later: was not alive then
    (incident,) = program.incidents()
    alive = incident.alive
    # Torch's three blocks, and HCCL's; not the two segments that the blocks lie in, nor host memory.
    assert sorted(alive["size"].tolist()) == [2 * MIB, 8 * MIB, 12 * MIB, 30 * MIB]
    assert [alive["size"][row] // MIB for row in incident.largest(2)] == [30, 12]
    assert [alive["size"][row] // MIB for row in incident.newest(3)] == [2, 30, 12]
    assert len(incident.newest(100)) == 4
    assert incident.driver_bytes == 88 * MIB
    segments = dict(zip((alive["size"] // MIB).tolist(), alive["segment_allocation_id"].tolist(), strict=True))
    assert segments == {12: 1, 30: 2, 2: 2, 8: 0}


@pytest.mark.parametrize(
    ("between", "incidents"),
    [
        (lambda p: None, 1),
        (lambda p: p.event("malloc", 400 * MIB, GIB, HAL, tid=100), 2),
        (lambda p: p.event("malloc", 400 * MIB, GIB, HAL, tid=100, flags=Flag.HANDLE), 1),  # a piece of what failed
        (lambda p: p.event("malloc", 400 * MIB, GIB, HAL, tid=7), 1),  # another thread's luck
        (lambda p: p.run.malloc(p.now + 1, 0x8000, GIB), 1),  # host memory
        (lambda p: setattr(p, "now", p.now + 3 * SECOND), 2),
        (lambda p: setattr(p, "now", p.now + 1 * SECOND), 1),
    ],
)
def test_where_an_incident_ends(between: Any, incidents: int) -> None:
    program = Program()
    program.fail("halMemAlloc", GIB)
    between(program)
    program.fail("halMemAlloc", GIB)
    assert len(program.incidents()) == incidents


def test_with_native_stacks_alone_the_place_is_the_users_not_canns() -> None:
    program = Program()
    frames = [
        frame(file, "call", 12767, "native")
        for file in ("/cann/lib64/libruntime.so", "/cann/lib64/libascendcl.so", "/src/libmodel.so", "/src/train")
    ]
    native = program.run.frames(*frames)
    program.event("malloc", 500 * MIB, 70 * MIB, HAL, stack_c=native)
    program.fail("halMemAlloc", GIB, stack_py=0, stack_c=native)
    finding = program.finding()
    assert (finding.file, finding.line) == ("/src/libmodel.so", 12767)
    assert finding.place == "call() in libmodel.so"  # a native line is an offset, which tells a reader nothing
    assert finding.evidence["alive"][0]["file"] == "/src/libmodel.so"
    assert "70 MiB from call() in libmodel.so" in finding.sentence
    assert [one.file for one in finding.site] == [one.file for one in frames]


def test_two_threads_are_two_incidents() -> None:
    program = Program()
    for tid in (7, 8, 7, 8):
        program.fail("halMemAlloc", GIB, tid=tid)
    assert [len(incident.failures) for incident in program.incidents()] == [2, 2]


def test_a_framework_that_does_not_know_its_device_joins() -> None:
    program = Program()
    program.fail("halMemAlloc", GIB)
    program.fail("torch", GIB, ACL_CODE, {"device_type": DeviceType.NPU, "device": -1, "pool": Pool.PTA})
    program.fail("halMemAlloc", GIB, place=HAL | {"device": 5})
    assert [(one.device, len(one.failures)) for one in program.incidents()] == [(4, 2), (5, 1)]


def test_pieces_of_the_failing_request_are_not_what_was_alive() -> None:
    """Expandable segments: physical memory is created piece by piece, and mapped when all of it is there."""
    program = Program()
    for number in range(4):
        program.event("malloc", 0x5000 + number, 20 * MIB, HAL, flags=Flag.HANDLE, tid=100)
        if number == 0:  # of an earlier request
            program.run.add(Kind.MAP, program.now, ptr=700 * MIB, size=20 * MIB, attr=0x5000, **HAL)
    program.event("malloc", 0x6000, 20 * MIB, HAL, flags=Flag.HANDLE, tid=7)  # another thread's
    program.fail("halMemCreate", 20 * MIB, used=64 * GIB, total=64 * GIB)
    (incident,) = program.incidents()
    assert incident.piece_bytes == 60 * MIB
    assert sorted((incident.alive["size"] // MIB).tolist()) == [2, 8, 12, 20, 20, 30]
    assert program.finding().evidence["others_bytes"] == 64 * GIB - (88 + 100) * MIB


@pytest.mark.parametrize(("page", "taken"), [(0, 12 * 1024), (HUGE_PAGES, 4 * MIB), (GIANT_PAGES, GIB)])
def test_own_memory_is_counted_in_whole_pages_as_the_driver_counts(page: int, taken: int) -> None:
    """aclrtMalloc asks for a little more than its caller: two huge pages for 2 MiB."""
    program = Program()
    size = 2 * MIB + 32 if page else 8 * 1024 + 32
    program.event("malloc", 0x7000, size, HAL, attr=page)
    program.fail("halMemAlloc", GIB, used=64 * GIB, total=64 * GIB)
    assert program.finding().evidence["others_bytes"] == 64 * GIB - 88 * MIB - taken


def test_memory_at_the_next_attempt_is_no_error() -> None:
    program = Program()
    program.fail("halMemAlloc", 4 * MIB)
    program.event("malloc", 400 * MIB, 4 * MIB, HAL, tid=100)
    finding = program.finding()
    assert finding.severity == "warning"
    assert "got it at the next attempt" in finding.sentence
    smaller = Program()
    smaller.fail("halMemAlloc", 4 * MIB)
    smaller.event("malloc", 400 * MIB, 2 * MIB, HAL, tid=100)  # the program was content with less
    assert smaller.finding().severity == "error"


def test_the_finding_says_who_what_and_why() -> None:
    program = Program(rank=3, world_size=8)
    # The driver said 61 of 64 GiB were used; 88 MiB of them are ours.
    program.fail("halMemAlloc", 40 * MIB, used=61 * GIB, total=64 * GIB)
    finding = program.finding()
    assert (finding.kind, finding.ranks, finding.device, finding.pool) == ("out_of_memory", (3,), "npu:4", "HAL")
    assert (finding.file, finding.line, finding.bytes, finding.first_step) == ("/src/train.py", 44, 40 * MIB, 3)
    evidence = finding.evidence
    assert evidence["failures"] == [{"function": "halMemAlloc", "code": 6, "bytes": 40 * MIB, "pool": "HAL"}]
    assert [(row["line"], row["pool"], row["owner"], row["bytes"], row["blocks"]) for row in evidence["alive"]] == [
        (30, "PTA", "PTA", 32 * MIB, 2),
        (12, "PTA", "PTA", 12 * MIB, 1),
        (0, "HAL", "CANN@HCCL", 8 * MIB, 1),
    ]
    assert evidence["pools"] == [
        {"pool": "PTA", "used": 44 * MIB, "reserved": 80 * MIB, "free": 36 * MIB, "largest_free": 18 * MIB}
    ]
    assert evidence["others_bytes"] == 61 * GIB - 88 * MIB
    text = finding.sentence
    for part in ("Rank 3 ran out of memory on npu:4 in step 3", "40 MiB asked for at train.py:44",
                 "52 MiB in 4 blocks were alive", "32 MiB from train.py:30", "36 MiB were cached"):  # fmt: skip
        assert part in text
    assert "another process" in finding.advice
    assert evidence["cause"] == {
        "name": "neighbour",
        "clause": "others held 60.9 GiB of the device",
        "others_bytes": 61 * GIB - 88 * MIB,
    }


def test_a_neighbour_that_came_meanwhile_is_told() -> None:
    program = Program()
    program.run.sample(1, "npu:4", used=3 * GIB, total=64 * GIB, process_used=2 * GIB)
    program.run.sample(program.now - 5, "npu:4", used=60 * GIB, total=64 * GIB, process_used=10 * GIB)
    program.fail("halMemAlloc", 8 * GIB)
    finding = program.finding()
    assert finding.evidence["cause"]["others_at_first"] == GIB
    assert "others held 50 GiB of the device, 49 GiB more than at the start" in finding.sentence


def test_advice_names_fragmentation_only_when_enough_is_free() -> None:
    program = Program()
    program.fail("halMemAlloc", 36 * MIB, used=2 * GIB, total=64 * GIB)
    assert "expandable_segments:True" in program.finding().advice
    assert "largest piece 18 MiB" in program.finding().advice
    program = Program()
    program.fail("halMemAlloc", 36 * MIB + 1, used=2 * GIB, total=64 * GIB)
    assert program.finding().advice.startswith("62 GiB of the device were free: look for a limit")


def test_advice_on_one_tensor_too_large() -> None:
    program = Program()
    program.failing_tensor(200 * GIB, used=2 * GIB, total=64 * GIB)
    assert "larger than the device" in program.finding().advice
    program = Program()
    program.failing_tensor(40 * GIB, used=2 * GIB, total=64 * GIB)
    assert "more than half" in program.finding().advice


def leaking(program: Program, asked: int, **more: int) -> Finding:
    """24 steps keep 1 MiB each, 22 of which count as a leak; then a request fails, with 14 MiB free in the pool."""
    loop = program.run.frames(frame("/src/train.py", "<module>", 90))
    for step in range(24):
        program.event("malloc", (1000 + step) * MIB, MIB, PTA, stack_py=program.weights, step=step, total=82 * MIB)
        program.run.add(Kind.STEP, program.now + 5, step=step + 1, attr=step + 1, stack_py=loop)
    program.fail("halMemAlloc", asked, step=24, **more)
    assert [leak.kind for leak in program.analysis().summary.leaks] == [LEAK]
    return program.finding()


def test_a_leak_is_the_cause_where_the_request_would_have_fitted_without_it() -> None:
    finding = leaking(Program(), 36 * MIB)
    assert finding.advice == "Mend the leak at model.py:12 first: it keeps 1.0 MiB per step."
    assert finding.evidence["cause"] == {
        "name": "leak",
        "clause": "22 MiB had leaked, most of it at model.py:12",
        "leaked_bytes": 22 * MIB,
        "largest_leak": "model.py:12",
        "largest_leak_bytes": 22 * MIB,
    }
    assert "cause: 22 MiB had leaked, most of it at model.py:12" in finding.sentence


def test_a_leak_that_is_too_small_is_not_the_cause() -> None:
    assert leaking(Program(), 36 * MIB + 1).evidence["cause"]["name"] == "full"


def test_a_leak_is_not_the_cause_where_the_driver_had_as_much_free() -> None:
    finding = leaking(Program(), 36 * MIB, used=2 * GIB, total=64 * GIB)
    assert finding.evidence["cause"]["name"] == "refused"


def test_a_leak_in_a_full_device_is_the_cause() -> None:
    finding = leaking(Program(), 40 * MIB, used=64 * GIB - 4 * MIB, total=64 * GIB)
    assert finding.evidence["cause"]["name"] == "leak"


def test_samples_tell_what_the_driver_did_not() -> None:
    program = Program()
    program.run.sample(program.now - 5, "npu:4", used=30 * GIB, total=64 * GIB, process_used=10 * GIB)
    program.fail("halMemAlloc", 40 * MIB)
    program.run.sample(program.now + 5, "npu:4", used=31 * GIB, total=64 * GIB, process_used=1 * GIB)
    evidence = program.finding().evidence
    assert (evidence["device_used"], evidence["others_bytes"]) == (30 * GIB, 20 * GIB)


def test_blocks_from_before_recording_have_no_line() -> None:
    program = Program()
    program.event("malloc", 210 * MIB, 0, PTA)  # nothing
    program.event("malloc", 232 * MIB, 5 * MIB, PTA, flags=Flag.SHADOW)
    program.fail("halMemAlloc", 40 * MIB)
    rows = program.finding().evidence["alive"]
    assert [row["bytes"] for row in rows if row["function"] == BEFORE] == [5 * MIB]


def test_ranks_that_fail_at_the_same_line_are_one_finding() -> None:
    run = FakeRun([process(ring, rank=ring - 1, world_size=4, pid=100 + ring) for ring in range(1, 5)])
    asker = run.frames(frame("/src/train.py", "forward", 44))
    for ring in (1, 2, 4):
        for time in range(ring):
            run.add(Kind.OOM, 10 * SECOND * time + ring, ring=ring, size=GIB, attr=6, stack_py=asker, **HAL)
    (finding,) = analyse(run).summary.of_kind(OUT_OF_MEMORY)  # type: ignore[arg-type]
    assert finding.ranks == (0, 1, 3)
    assert {rank: entry["incidents"] for rank, entry in finding.evidence["per_rank"].items()} == {
        "0": 1,
        "1": 2,
        "3": 4,
    }
    assert "Ranks 0-1,3 ran out of memory" in finding.sentence
    assert "7 times in all" in finding.sentence


def job(*fails: tuple[int, float, int], **fields: Any) -> FakeRun:
    """Four ranks with clocks of their own; fails: (rank, seconds after the first, line)."""
    offsets = [WALL_OFFSET + 1000 * SECOND * rank for rank in range(4)]
    run = FakeRun(
        [
            process(rank + 1, rank=rank, world_size=4, pid=100 + rank, wall_offset_ns=offsets[rank],
                    **{name: values[rank] for name, values in fields.items()})
            for rank in range(4)
        ]
    )  # fmt: skip
    for rank, after_s, line in fails:
        asker = run.frames(frame("/src/train.py", "forward", line))
        ts = 9000 * SECOND + int(after_s * SECOND) - 1000 * SECOND * rank
        run.add(Kind.OOM, ts, ring=rank + 1, size=(rank + 1) * GIB, attr=6, stack_py=asker, **HAL)
    return run


def test_ranks_that_fail_within_seconds_are_one_incident_of_the_first() -> None:
    run = job((3, 1.5, 70), (2, 0, 44), (0, 9, 80))
    (finding,) = analyse(run).summary.of_kind(OUT_OF_MEMORY)  # type: ignore[arg-type]
    assert (finding.ranks, finding.line, finding.bytes) == ((0, 2, 3), 44, 3 * GIB)
    assert finding.evidence["first"] == "2"
    assert [(row["who"], row["after_s"], row["place"], row["asked_bytes"]) for row in finding.evidence["order"]] == [
        ("2", 0.0, "/src/train.py:44", 3 * GIB),
        ("3", 1.5, "/src/train.py:70", 4 * GIB),
        ("0", 9.0, "/src/train.py:80", GIB),
    ]
    assert finding.sentence.startswith("Ranks 0,2-3 ran out of memory, rank 2 first, on npu:4 in step 0;")
    assert "+1.5 s  rank 3 in step 0: 4.0 GiB at /src/train.py:70" in finding.details


def test_a_rank_that_fails_later_at_another_line_is_another_incident() -> None:
    run = job((2, 0, 44), (3, 10.5, 70))
    found = analyse(run).summary.of_kind(OUT_OF_MEMORY)  # type: ignore[arg-type]
    assert sorted((one.ranks, one.line) for one in found) == [((2,), 44), ((3,), 70)]


def test_ranks_that_end_after_the_first_failure_are_told_and_not_accused() -> None:
    """Rank 0 ends 4 s after it on its own clock, rank 1 two minutes later, rank 3 goes on."""
    end = 9000 * SECOND
    ended = [end + 4 * SECOND, end + 120 * SECOND - 1000 * SECOND, end - 2000 * SECOND + SECOND, 0]
    run = job((2, 0, 44), ended_ns=ended)
    (finding,) = analyse(run).summary.of_kind(OUT_OF_MEMORY)  # type: ignore[arg-type]
    assert (finding.ranks, finding.evidence["ended"]) == ((2,), {"0": 4.0})
    assert "rank 0 ended within 4.0 s of it" in finding.sentence


def test_nobody_ended_of_a_failure_that_was_survived() -> None:
    end = 9000 * SECOND
    run = job((2, 0, 44), ended_ns=[end + 4 * SECOND, 0, end - 2000 * SECOND + 3 * SECOND, 0])
    run.add(Kind.STEP, 7001 * SECOND, ring=3, step=5, attr=5)
    (finding,) = analyse(run).summary.of_kind(OUT_OF_MEMORY)  # type: ignore[arg-type]
    assert finding.evidence["ended"] == {}


def test_a_rank_that_the_kernel_killed_takes_the_others_along() -> None:
    """Rank 1 is killed at its control group's limit; rank 3 fails 2 s later."""
    end = 9000 * SECOND - 1000 * SECOND
    run = job((3, 2, 70), ended_ns=[0, end, 0, 0], ended_for_memory=[0, 1, 0, 0])
    run.malloc(end - SECOND, 0x1000, 8 * MIB, ring=2, stack_py=run.frames(frame("/src/train.py", "load", 30)))
    run.sample(end - 5, "cpu", ring=2, used=GIB, total=GIB, process_used=GIB - MIB)
    (finding,) = analyse(run).summary.of_kind(OUT_OF_MEMORY)  # type: ignore[arg-type]
    assert (finding.ranks, finding.evidence["first"], finding.line) == ((1, 3), "1", 30)
    assert finding.evidence["cause"] == {"name": "limit", "clause": "its control group has no more", "group_limit": GIB}
    assert finding.sentence.startswith(
        "Ranks 1,3 were out of memory, rank 1 first: it was killed by the kernel in step"
    )
    assert "control group had reached its memory limit of 1.0 GiB" in finding.sentence


def test_a_line_without_a_file_goes_by_what_else_is_known() -> None:
    row = {"file": "", "line": 0, "function": "", "native": False, "owner": ""}
    assert place_of(row | {"function": "hcclAllReduce", "owner": "CANN@HCCL"}, Sources()) == "hcclAllReduce"
    assert place_of(row | {"owner": "CANN@HCCL"}, Sources()) == "CANN@HCCL"
    assert place_of(row, Sources()) == "an unknown line"


def test_a_limit_of_the_address_space_is_the_cause() -> None:
    program = Program()
    host = {"device_type": DeviceType.CPU, "device": 0, "pool": Pool.HOST}
    program.fail("", 4 * GIB, 0, host, total=3 * GIB)
    finding = program.finding()
    assert finding.evidence["cause"]["address_space_limit"] == 3 * GIB
    assert "the process may map 3.0 GiB in all (RLIMIT_AS)" in finding.sentence
    assert "1 failed call" in finding.details  # nobody tells a function or a code of the host's memory


def test_what_was_alive_by_owner_is_that_of_the_failure() -> None:
    program = Program()
    label = program.run.text("kv_cache")
    program.run.add(Kind.LABEL_PUSH, program.now + 1, name=label, aux=5)
    program.event("malloc", 220 * MIB, 6 * MIB, PTA)
    program.run.add(Kind.LABEL_POP, program.now + 1, name=label, aux=5)
    program.fail("halMemAlloc", 40 * MIB)
    program.event("free", 220 * MIB, 6 * MIB, PTA)
    owners = {row["owner"]: row["bytes"] for row in program.finding().evidence["owners"]}
    assert owners["PTA@kv_cache"] == 6 * MIB
    assert sum(owners.values()) == 50 * MIB


def test_a_program_that_goes_on_and_on_is_bounded() -> None:
    run = FakeRun([process(1)], batch_rows=1000)
    for number in range(150):
        run.add(Kind.OOM, 10 * SECOND * number, size=GIB, attr=6, **HAL)
    tracked = track(run)  # type: ignore[arg-type]
    assert (len(tracked.incidents), tracked.left_out_incidents) == (100, 50)


def test_what_was_alive_is_kept_of_so_many_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first incident all of it."""
    monkeypatch.setattr(incidents, "MAX_ALIVE", 25)
    run = FakeRun([process(1)], batch_rows=1000)
    for number in range(20):
        run.add(Kind.MALLOC, number, ptr=64 * (number + 1), size=64, **HAL)
    for number in range(1, 11):
        run.add(Kind.OOM, 10 * SECOND * number, size=GIB, attr=6, **HAL)
    tracked = track(run)  # type: ignore[arg-type]
    assert [len(one.alive["ts"]) for one in tracked.incidents] == [20, 20, 20]
    assert tracked.left_out_incidents == 7


def test_a_program_that_tries_again_without_end_is_bounded() -> None:
    """The figures of an incident are those of all its failures; only the first are told one by one."""
    run = FakeRun([process(1)], batch_rows=1000)
    for number in range(500):
        size = 7 * GIB if number == 300 else GIB
        run.add(Kind.OOM, SECOND * number, size=size, attr=6, **HAL)
    run.add(Kind.MALLOC, 500 * SECOND, ptr=64, size=GIB, **HAL)
    (incident,) = track(run).incidents  # type: ignore[arg-type]
    assert (len(incident.failures), incident.more_failures, incident.asked) == (100, 400, 7 * GIB)
    assert incident.recovered


def test_threads_that_fail_and_are_never_heard_of_again_are_bounded() -> None:
    fold = incidents.IncidentFold(1)
    run = FakeRun([process(1)], batch_rows=1000)
    for number in range(3000):
        run.add(Kind.OOM, number, tid=number, size=GIB, attr=6, **HAL)
    tracker = BlockTracker()
    for batch in run.events():
        columns = event_columns(batch, COLUMNS)
        for row in range(len(columns["ts"])):
            fold.fail(columns, row, tracker, Mappings())
    assert len(fold._open) == incidents.MAX_OPEN
    assert len(fold.found) + fold.left_out == 3000


def test_the_console_tells_it_first(tmp_path: Path) -> None:
    program = Program(rank=0)
    program.failing_tensor(40 * GIB, used=2 * GIB, total=64 * GIB)
    run = Run(program.run.save(tmp_path / "run"))
    text = plain_text(analyse(run))
    lines = text.splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("OUT OF MEMORY 1  Rank 0 ran out of memory")]
    part = lines[at : lines.index("", at)]
    assert any("/src/train.py(44): forward" in line for line in part)
    assert any("7 failed calls: halMemAlloc (code 6), aclrtMallocAlign32 (code 207001)" in line for line in part)
    alive = "32 MiB alive in 2 blocks of PTA: /src/train.py(30): load"
    assert any(line.strip() == alive for line in part)
    assert any(line.strip() == "8.0 MiB alive in 1 block of CANN@HCCL: no stack" for line in part)
    assert any("36 MiB free in PTA of 80 MiB, the largest piece 18 MiB" in line for line in part)
    assert "LEAK" not in text
    assert [line for line in lines if line][-1].startswith("msMemScope: rank 0 ran out of memory at train.py:44; ")
    assert analyse(run, {"analysis": []}).summary.of_kind(OUT_OF_MEMORY) == ()
    summary = analyse(run).summary.as_json()
    assert (summary["leaks"], summary["out_of_memory"]) == (0, 1)
    assert np.isclose(summary["findings"][0]["confidence"], 1.0)
