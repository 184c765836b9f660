"""Memory snapshots of PyTorch as runs. Objects of CUDA cannot exist here: the snapshots are built as its allocator
writes them, four are real ones where they are at hand, and tests/npu has torch_npu's own."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch_snapshots import Allocator, frames, save, training

from msmemscope.cli.main import main
from msmemscope.errors import InputError, UsageError
from msmemscope.imports.job import Request, import_job
from msmemscope.imports.ranks import ranks_of
from msmemscope.imports.torch_events import events_of
from msmemscope.imports.torch_snapshot import read_snapshot
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.report.console import terminal_text
from msmemscope.tables.run import Run
from msmemscope.vocabulary import STREAM_SHIFT, Flag, Kind, Pool

REAL = Path(os.environ.get("MSMEMSCOPE_SNAPSHOTS", Path(__file__).parents[3] / "shared" / "data" / "snapshots"))


def imported(tmp_path: Path, snapshots: list[Any], **wishes: Any) -> Analysis:
    paths = [save(one, tmp_path / f"snapshot_rank{rank}.pickle") for rank, one in enumerate(snapshots)]
    import_job(Request(tuple(paths), tmp_path / "run", **wishes))
    return analyse(Run(tmp_path / "run"))


def leaks(analysis: Analysis) -> list[tuple[str, tuple[int, ...], int]]:
    return [(one.kind, one.ranks, round(one.bytes_per_step)) for one in analysis.summary.findings if not one.is_note]


def test_a_leak_of_one_rank_is_found_from_the_rhythm_alone(tmp_path: Path) -> None:
    cards = [training(steps=24, kept=1 << 20 if rank == 2 else 0) for rank in range(4)]
    analysis = imported(tmp_path, [card.snapshot() for card in cards])
    assert leaks(analysis) == [("leak", (2,), 1 << 20)]
    text = terminal_text(analysis)
    assert "train.py:58" in text
    assert "ranks 0-3 of 4" in text
    assert analysis.summary.last_step == 24


def test_a_rank_that_uses_more_in_each_of_few_steps_is_a_candidate(tmp_path: Path) -> None:
    """Files of ranks have names of their own, and the ranks are peers all the same."""
    cards = []
    for rank in range(4):
        card = Allocator()
        if rank == 1:
            card.alloc(200 << 20, frames("save.py:88 gather", "train.py:3 main"))
        for _ in range(7):
            block = card.alloc(8 << 20, frames("train.py:5 main"))
            card.alloc(0, frames("train.py:6 main"))
            card.free(block)
        cards.append(card)
    analysis = imported(tmp_path, [card.snapshot() for card in cards])
    (one,) = [one for one in analysis.summary.findings if not one.is_note]
    assert (one.kind, one.ranks, one.bytes, one.line) == ("may_use_more", (1,), 200 << 20, 88)


def test_what_ran_out_of_memory_is_told_with_what_was_free(tmp_path: Path) -> None:
    card = training(steps=4)
    held = card.alloc(64 << 20, frames("train.py:60 hoard", "train.py:3 main"))
    asked = {
        "action": "oom",
        "device_free": 100 << 20,
        "size": 512 << 20,
        "stream": 0,
        "frames": frames("model.py:7 forward"),
    }
    card.now += 1
    card.trace.append(asked | {"time_us": card.now})
    analysis = imported(tmp_path, [card.snapshot()])
    (one,) = [one for one in analysis.summary.findings if one.kind == "out_of_memory"]
    assert (one.bytes, one.line, one.evidence["device_free"]) == (512 << 20, 7, 100 << 20)
    assert one.evidence["alive"][0]["bytes"] == card.live[held][0]
    assert any("100 MiB free on the device" in line for line in one.details)
    kinds = [kind for batch in analysis.run.events() for kind in batch["kind"].to_pylist()]
    assert (kinds.count(Kind.OOM), kinds.count(Kind.SNAPSHOT)) == (1, 1)


def test_clean_ranks_have_no_finding(tmp_path: Path) -> None:
    assert leaks(imported(tmp_path, [training(steps=24).snapshot() for _ in range(2)])) == []


def test_what_is_held_at_the_end_is_what_the_snapshot_holds(tmp_path: Path) -> None:
    card = training(steps=9, kept=700)
    analysis = imported(tmp_path, [card.snapshot()])
    live = analysis.run.processes[0]
    rows = list(analysis.run.events(rings=[live.ring]))
    columns = {
        name: np.concatenate([batch[name].to_numpy() for batch in rows]) for name in ("kind", "pool", "used", "total")
    }
    of_pool = (columns["pool"] == Pool.CUDA) & np.isin(columns["kind"], [Kind.MALLOC, Kind.FREE])
    assert columns["used"][of_pool][-1] == sum(size for size, _ in card.live.values())
    assert columns["total"][of_pool][-1] == sum(size for size, _ in card.segments.values())
    assert not live.not_seen


def test_what_was_there_before_the_history_is_seeded(tmp_path: Path) -> None:
    card = Allocator()
    kept = card.alloc(1000, frames("model.py:1 weight"), told=False)
    going = card.alloc(3000, frames("model.py:2 scratch"), told=False)
    card.free(going)
    process = events_of(read_snapshot(save(card.snapshot(), tmp_path / "s.pickle")))
    shadows = process.columns["flags"] & Flag.SHADOW != 0
    pool = process.columns["pool"] == Pool.CUDA
    seeded = dict(zip(*(process.columns[name][shadows & pool].tolist() for name in ("ptr", "size")), strict=True))
    assert seeded == {kept: 1000, going: 3000}
    assert process.columns["used"][pool][-1] == 1000
    assert shadows[:3].all()  # two blocks and their segment come first
    assert not shadows[3:].any()


def test_blocks_say_their_streams_by_numbers_that_ranks_share(tmp_path: Path) -> None:
    """The handles are of another process in each file. What was there before takes its stream from its segment."""
    numbers = []
    for side, comm in ((0x5581, 0x77AA), (0x9000, 0x1000)):
        card = Allocator()
        old = card.alloc(1000, frames("model.py:1 weight"), told=False)
        blocks = [card.alloc(2048, frames("train.py:2 step")) for _ in range(3)]
        snapshot = card.snapshot()
        on = dict(zip(blocks, (0, side, comm), strict=True))
        for entry in snapshot["device_traces"][card.device]:
            entry["stream"] = on.get(entry["addr"], 0)
        for segment in snapshot["segments"]:
            segment["stream"] = comm
        columns = events_of(read_snapshot(save(snapshot, tmp_path / f"{side}.pickle"))).columns
        made = (columns["kind"] == Kind.MALLOC) & (columns["pool"] == Pool.CUDA)
        told = dict(zip(columns["ptr"][made].tolist(), (columns["aux"][made] >> STREAM_SHIFT).tolist(), strict=True))
        assert not columns["attr"][made].any()
        assert not columns["aux"][~made].any()
        numbers.append([told[block] - 1 for block in (*blocks, old)])
    assert numbers == [[0, 1, 2, 2]] * 2


def test_marks_of_a_profiler_tell_the_steps(tmp_path: Path) -> None:
    analysis = imported(tmp_path, [training(steps=15, kept=4096, marks=True).snapshot()])
    assert "ProfilerStep" in analysis.run.info["imported"]["steps"]
    assert analysis.summary.last_step == 14  # that a step is over is only known when the next begins
    assert leaks(analysis) == [("leak", (0,), 4096)]


def test_times_tell_the_steps(tmp_path: Path) -> None:
    card = training(steps=16, kept=4096)
    loads = [one["time_us"] for one in card.trace if one["frames"] and "data.py" in one["frames"][0]["filename"]]
    analysis = imported(tmp_path, [card.snapshot()], steps_at=tuple(map(str, loads)))
    assert analysis.summary.last_step == 14  # the first begins with the history, so that nothing lies before it
    assert leaks(analysis) == [("leak", (0,), 4096)]
    path = tmp_path / "snapshot_rank0.pickle"
    with pytest.raises(UsageError, match="none of the times"):
        import_job(Request((path,), tmp_path / "c", steps_at=("1", "2")))
    with pytest.raises(UsageError, match="--steps-at takes"):
        import_job(Request((path,), tmp_path / "c", steps_at=("soon",)))
    assert not (tmp_path / "c").exists()


def test_there_are_no_steps_without_a_rhythm(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    card = Allocator()
    for _ in range(600):
        card.alloc(int(random.integers(1, 5000)), frames(f"noise.py:{random.integers(1, 40)} f"))
        if len(card.live) > 20:
            card.free(list(card.live)[int(random.integers(0, 20))])
    analysis = imported(tmp_path, [card.snapshot()])
    assert analysis.summary.last_step is None
    assert "no rhythm" in analysis.run.info["imported"]["steps"]
    with pytest.raises(InputError, match="no rhythm"):
        import_job(Request((tmp_path / "snapshot_rank0.pickle",), tmp_path / "again", steps_by="rhythm"))


@pytest.mark.parametrize("times", [True, False])
def test_a_shorter_history_is_aligned_with_the_longer(tmp_path: Path, times: bool) -> None:
    long, short = training(steps=20), training(steps=20)
    begin = [i for i, one in enumerate(short.trace) if one["frames"] and "data.py" in one["frames"][0]["filename"]][6]
    cut, whole = short.snapshot(), long.snapshot()
    cut["device_traces"][0] = short.trace[begin:]
    if not times:
        for one in (*short.trace, *long.trace):
            del one["time_us"]
    analysis = imported(tmp_path, [whole, cut])
    last = {analysis.tracked.processes[p].rank: step for p, step in analysis.tracked.last_complete_step.items()}
    assert last == {0: 20, 1: 20}


def test_expandable_segments_are_cut_where_they_are_unmapped_in_other_pieces(tmp_path: Path) -> None:
    card, page, base = Allocator(), 2 << 20, 0x7000_0000_0000
    for action, first, pages in (("map", 0, 4), ("map", 4, 2), ("unmap", 3, 2), ("map", 3, 1)):
        card._tell(f"segment_{action}", base + first * page, pages * page, [])
    card.segments = {base: (4 * page, []), base + 5 * page: (page, [])}
    snapshot = card.snapshot()
    for one in snapshot["segments"]:
        one["is_expandable"] = True
    process = events_of(read_snapshot(save(snapshot, tmp_path / "s.pickle")))
    driver = process.columns["pool"] == Pool.CUDA_DRIVER
    assert process.columns["used"][driver][-1] == 5 * page
    assert not process.doubts


def test_what_the_allocator_notes_beside_blocks_has_its_levels(tmp_path: Path) -> None:
    card = training(steps=14)
    held, reserved = sum(size for size, _ in card.live.values()), sum(size for size, _ in card.segments.values())
    for action, more in (
        ("oom", {"size": 5 << 30, "device_free": 1 << 20, "frames": frames("train.py:99 big")}),
        ("snapshot", {"addr": 0, "size": 0}),
        ("user_defined", {"addr": 0, "size": 0, "user_metadata": "epoch 1"}),
    ):
        card.now += 1
        card.trace.append({"action": action, "time_us": card.now, "frames": [], **more})
    analysis = imported(tmp_path, [card.snapshot()])
    (failure,) = [one for one in analysis.summary.findings if one.kind == "out_of_memory"]
    assert "5.0 GiB asked for at train.py:99" in failure.sentence
    rows = [row for batch in analysis.run.events(kinds=[Kind.SNAPSHOT, Kind.MARK]) for row in batch.to_pylist()]
    assert [(row["used"], row["total"], analysis.run.string(row["name"])) for row in rows] == [
        (held, reserved, "out of memory"),
        (held, reserved, "snapshot"),
        (-1, -1, "epoch 1"),
    ]
    assert (rows[0]["attr"], rows[1]["attr"]) == (1 << 20, 0)
    assert rows[1]["ptr"] > held  # the peak


def test_frames_of_cpp_are_the_native_stack(tmp_path: Path) -> None:
    mixed = [
        {"name": "at::empty", "filename": "aten/Empty.cpp", "line": 31},
        {"name": "unwind", "filename": "??", "line": 0},
        {"name": "step", "filename": "/src/train.py", "line": 5},
        {"name": "forward", "filename": "<eval_with_key>.1", "line": 2},
    ]
    card = training(steps=14)
    for _ in range(14):
        card.alloc(100, mixed)
    run = imported(tmp_path, [card.snapshot()]).run
    stacks = {
        (batch["stack_py"][row].as_py(), batch["stack_c"][row].as_py())
        for batch in run.events(kinds=[Kind.MALLOC])
        for row in range(batch.num_rows)
        if batch["size"][row].as_py() == 100
    }
    ((python, native),) = stacks
    assert [(one.file, one.line, one.kind) for one in run.stack(python)] == [
        ("/src/train.py", 5, "python"),
        ("<eval_with_key>.1", 2, "python"),
    ]
    assert [(one.file, one.function, one.kind) for one in run.stack(native)] == [
        ("aten/Empty.cpp:31", "at::empty", "native"),
        ("??", "unwind", "native"),
    ]


def test_blocks_that_the_history_and_the_snapshot_tell_differently_are_told(tmp_path: Path) -> None:
    card = training(steps=5)
    snapshot = card.snapshot()
    snapshot["segments"][0]["blocks"] = snapshot["segments"][0]["blocks"][:2]
    process = events_of(read_snapshot(save(snapshot, tmp_path / "s.pickle")))
    assert "that the history leaves alive are not in the snapshot" in process.doubts["blocks"]


def test_damaged_entries_are_left_out_and_counted(tmp_path: Path) -> None:
    card = training(steps=6)
    card.trace[3] = dict(card.trace[3], size="big")
    card.trace[4] = ["alloc"]  # type: ignore[call-overload]
    card.trace[5] = dict(card.trace[5], action="teleport")
    card.trace[6] = dict(card.trace[6], size=1 << 70)
    analysis = imported(tmp_path, [card.snapshot()])
    assert analysis.run.info["losses"]["invalid_records"] == 4
    assert (
        "device_traces[0][3]: size is missing or no number of 64 bits" in analysis.run.processes[0].not_seen["snapshot"]
    )
    assert "teleport" in analysis.run.processes[0].not_seen["snapshot"]


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress, lambda raw: pa.compress(raw, "zstd", True)]
)
def test_packed_files_are_read(tmp_path: Path, pack: Any) -> None:
    whole = save(training(steps=8).snapshot(), tmp_path / "s.pickle").read_bytes()
    packed = tmp_path / "packed"
    packed.write_bytes(pack(whole))
    assert len(read_snapshot(packed).traces["action"]) == len(read_snapshot(tmp_path / "s.pickle").traces["action"])
    packed.write_bytes(pack(whole)[:-20])
    with pytest.raises(InputError, match=r"packed: .*cut off"):
        read_snapshot(packed)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_protocols_say_the_same(tmp_path: Path, protocol: int) -> None:
    snapshot = training(steps=8).snapshot()
    snapshot["device_traces"][0][0]["addr"] = (1 << 64) - 4096
    tables = [read_snapshot(save(snapshot, tmp_path / "s.pickle", p)).traces for p in (4, protocol)]
    assert all(np.array_equal(tables[0][name], tables[1][name]) for name in tables[0])
    assert int(tables[1]["addr"][0]) == (1 << 64) - 4096


def test_ranks_come_from_names() -> None:
    def ranks(*names: str) -> list[int]:
        return ranks_of([Path(name) for name in names])

    assert ranks("snapshot_rank0.pickle.xz", "snapshot_rank10.pickle.xz") == [0, 10]
    assert ranks("mem_3.pickle", "mem_12.pickle.gz") == [3, 12]
    assert ranks("job7_rank2.pkl", "job7_rank3.pkl") == [2, 3]
    assert ranks("dump.pickle") == [0]
    assert ranks_of([Path("a"), Path("b")], [4, 5]) == [4, 5]
    with pytest.raises(UsageError, match="both of rank 1"):
        ranks("x_1.pickle", "y_1.pickle")
    with pytest.raises(UsageError, match="tells no rank"):
        ranks("a.pickle", "b.pickle")


def test_nothing_is_overwritten_and_nothing_half_is_left(tmp_path: Path) -> None:
    path = save(training(steps=6).snapshot(), tmp_path / "s_0.pickle")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    with pytest.raises(UsageError, match="is there already"):
        import_job(Request((path,), tmp_path / "taken"))
    damaged = tmp_path / "s_1.pickle"
    damaged.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="cut off"):
        import_job(Request((path, damaged), tmp_path / "half"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s_0.pickle", "s_1.pickle", "taken"]


@pytest.mark.parametrize("by", ["auto", "rhythm"])
def test_the_real_job_of_four_ranks(tmp_path: Path, by: str) -> None:
    """GPT-2 on four ranks: rank 2 keeps 1 MiB each step, rank 3 its logits."""
    paths = tuple(sorted(REAL.glob("snapshot_rank*.pickle.xz")))
    if len(paths) != 4:
        pytest.skip(f"no real snapshots in {REAL} (MSMEMSCOPE_SNAPSHOTS names another place)")
    import_job(Request(paths, tmp_path / "run", steps_by=by))
    analysis = analyse(Run(tmp_path / "run"))
    assert leaks(analysis) == [("leak_candidate", (3,), 4 << 20), ("leak_candidate", (2,), 1 << 20)]
    screen = terminal_text(analysis).splitlines()[:24]
    assert any("Rank 3: 4.0 MiB per step" in line and "train_gpt2_ddp.py:14" in line for line in screen)
    assert any("Rank 2: 1.0 MiB per step" in line and "train_gpt2_ddp.py:15" in line for line in screen)
    assert analysis.summary.last_step == 6
    assert not any(process.not_seen for process in analysis.run.processes)


def test_the_command_prints_the_verdict_and_its_run_can_be_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = [training(steps=16, kept=1 << 20 if rank else 0) for rank in range(2)]
    paths = [str(save(one.snapshot(), tmp_path / f"snapshot_{rank}.pickle")) for rank, one in enumerate(cards)]
    run = str(tmp_path / "run")
    assert main(["import", *paths, "-o", run]) == 0
    printed = capsys.readouterr()
    assert " on host unknown, " in printed.out  # a snapshot does not say
    assert "LEAK 1  Rank 1: 1.0 MiB per step" in printed.out
    assert "steps were found from the rhythm" in printed.err
    assert main(["summary", run, "--rank", "1"]) == 0
    assert "train.py:58" in capsys.readouterr().out
    assert main(["analyze", run]) == 0
    assert main(["export", run, "--format", "db"]) == 0
    assert len(list(tmp_path.glob("msmemscope_*_ascend/device_0/dump/*.db"))) == 2
    capsys.readouterr()
    for words, status in (
        ([*paths, "-o", run], 2),
        ([*paths, "-o", run + "2", "--ranks", "0,x"], 2),
        ([*paths, "-o", run + "2", "--ranks", "0"], 2),
        ([*paths, "-o", run + "2", "--steps-by", "epoch"], 3),
        ([str(tmp_path / "none_0.pickle"), "-o", run + "2"], 3),
        (paths, 2),
    ):
        assert main(["import", *words]) == status
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "run2").exists()
