"""The per-device files of a run as a whole: how large they become, what an interruption leaves, who is told when."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun, leaky_job, process
from patience import LIMIT_S
from test_dump import check_accounting, only_file, read_csv

from msmemscope.cli.main import main
from msmemscope.export import per_device
from msmemscope.export.lanes import Lanes
from msmemscope.export.per_device import write_dumps
from msmemscope.options.given import parse_command_line, parse_keywords
from msmemscope.options.settings import Config
from msmemscope.report import upstream_files
from msmemscope.report.outputs import write_outputs


def three_processes() -> FakeRun:
    run = FakeRun([process(ring, rank=ring - 1, pid=100 + ring) for ring in (1, 2, 3)], batch_rows=100)
    for ring in (1, 2, 3):
        for number in range(300):
            run.malloc(10 + 2 * number, 0x1000 * (number + 1), 512, ring=ring)
            run.free(11 + 2 * number, 0x1000 * (number + 1), ring=ring)
    return run


def everything_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("file_format", ["csv", "db"])
def test_files_beyond_the_limit_leave_nothing_and_take_nothing_away(tmp_path: Path, file_format: str) -> None:
    run = three_processes()
    most = 3 * max(file.stat().st_size for file in write_dumps(run, tmp_path, file_format=file_format).files)  # type: ignore[arg-type]
    exported = everything_below(tmp_path)

    other = tmp_path / "other"
    for out in (tmp_path, other):
        report = write_dumps(run, out, file_format=file_format, most_bytes=most - 5000)  # type: ignore[arg-type]
        assert report.too_large
        assert report.files == []
        assert everything_below(other) == {}
        assert everything_below(tmp_path) == exported
    assert list(other.iterdir()) == []

    report = write_dumps(run, other, file_format=file_format, most_bytes=most)  # type: ignore[arg-type]
    assert not report.too_large
    assert len(report.files) == 3
    assert everything_below(other).keys() == {name for name in exported if not name.startswith("other/")}


def test_what_was_not_asked_for_is_left_out_when_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = leaky_job().save(tmp_path / "run_1")
    monkeypatch.setattr(upstream_files, "MOST_UNASKED_BYTES", 20_000)  # of four files

    outcome = write_outputs(path, config=Config())

    assert list(tmp_path.rglob("memscope_dump_*")) == []
    assert (path / "cluster" / "leaks.csv").exists()
    (note,) = [note for note in outcome.notes if "left out" in note]
    command = re.search(r"msmemscope (export \S+ --format csv)$", note)
    assert command is not None
    assert main(command[1].split()) == 0
    printed = capfd.readouterr().out.splitlines()
    assert sorted(map(str, tmp_path.rglob("memscope_dump_*.csv"))) == sorted(printed)
    assert len(printed) == 4

    outcome = write_outputs(path, config=parse_command_line({"format": "db"}).config)
    assert len(list(tmp_path.rglob("memscope_dump_*.db"))) == 4


def test_a_format_that_was_asked_for_is_known_as_such() -> None:
    assert parse_command_line({"format": "csv"}).config.format_given
    assert not parse_command_line({}).config.format_given
    configured = parse_keywords({"format": "csv"}).config
    assert configured.format_given
    assert parse_keywords({"level": "0"}, configured).config.format_given
    assert not parse_keywords({"level": "0"}).config.format_given
    assert Config.from_dict(configured.as_dict()).format_given


def test_export_writes_the_files_of_a_run_alone_and_as_far_as_it_is_stored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = three_processes()
    run.info["finished"] = False
    path = run.save(tmp_path / "run_1")
    before = everything_below(path)

    assert main(["export", str(path), "--format", "csv"]) == 0

    assert everything_below(path) == before
    printed = capfd.readouterr()
    assert "not finished" in printed.err
    assert len(printed.out.splitlines()) == 3
    for line in printed.out.splitlines():
        rows = read_csv(Path(line))
        assert len(rows) == 600
        check_accounting(rows)


def test_the_verdict_is_told_before_anything_long_is_written(tmp_path: Path) -> None:
    path = leaky_job().save(tmp_path / "run_1")
    told: list[str] = []

    write_outputs(path, progress=lambda stage, *_: told.append(stage), tell=lambda text: told.append(text[:10]))

    assert told.index("msMemScope") < told.index("writing the table of blocks") < told.index("writing csv files")


def test_interrupted_files_are_whole_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = three_processes()
    monkeypatch.setattr(per_device, "_PROCESSES_AT_ONCE", 1)
    events_of = per_device.events_of

    def interrupted(run: Any, rings: Any) -> Iterator[tuple[int, Any]]:
        for number, piece in enumerate(events_of(run, rings)):
            if 3 in rings and number == 2:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(per_device, "events_of", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"2 csv files are whole.*msmemscope export run --format csv"):
        write_dumps(run, tmp_path)  # type: ignore[arg-type]

    files = [Path(name) for name in everything_below(tmp_path)]
    assert sorted(file.name[:13] for file in files) == ["config.json", "config.json", "memscope_dump", "memscope_dump"]
    for file in tmp_path.rglob("memscope_dump_*"):
        check_accounting(read_csv(file))


_UNTIL_CTRL_C = """
import signal, sys, threading
from msmemscope.cli.main import main
from msmemscope.export import files, process_rows
process_rows._ROWS_AT_ONCE = 100
interrupted = threading.Event()

def interrupt(*signal_and_frame):
    interrupted.set()
    signal.default_int_handler(*signal_and_frame)

signal.signal(signal.SIGINT, interrupt)
for kind in (files.CsvFile, files.DbFile):
    write = kind.write
    kind.write = lambda self, *rest, write=write: (write(self, *rest), interrupted.wait())
from msmemscope.export import order
order.Chronology.__init__.__defaults__ = (10,)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("file_format", ["csv", "db"])
def test_ctrl_c_removes_what_is_half_written_and_says_so(tmp_path: Path, file_format: str) -> None:
    path = three_processes().save(tmp_path / "run_1")
    words = [sys.executable, "-c", _UNTIL_CTRL_C, "export", str(path), "--format", file_format]
    export = subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + LIMIT_S
    while not list(tmp_path.glob("msmemscope_*_ascend/device_*/dump/.memscope_dump_*.part")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    export.send_signal(signal.SIGINT)
    _, said = export.communicate(timeout=LIMIT_S)

    assert export.returncode == 130
    assert f"0 {file_format} files are whole, the others are removed" in said
    assert f"msmemscope export {path} --format {file_format}" in said
    assert [file.name for file in tmp_path.iterdir()] == ["run_1"]


def test_both_formats_can_be_exported_one_after_the_other(tmp_path: Path) -> None:
    run = three_processes()
    run.processes = run.processes[:1]
    for file_format in ("csv", "db", "csv"):
        write_dumps(run, tmp_path, file_format=file_format)  # type: ignore[arg-type]
    with sqlite3.connect(only_file(tmp_path, "cpu", "db")) as db:
        (rows,) = db.execute("SELECT count(*) FROM memscope_dump").fetchone()
    assert rows == len(read_csv(only_file(tmp_path))) == 600


def test_pieces_of_a_lane_keep_their_order_and_lanes_go_on_side_by_side() -> None:
    done: list[tuple[int, int]] = []
    met = threading.Barrier(2, timeout=LIMIT_S)
    with Lanes(2) as lanes:
        for lane in (0, 1):
            lanes.do(lane, lambda: met.wait() and None)  # never over in one thread alone
        for number in range(50):
            for lane in (0, 1):
                lanes.do(lane, partial(done.append, (lane, number)))
    for lane in (0, 1):
        assert [number for of, number in done if of == lane] == list(range(50))


def test_the_first_failure_of_a_lane_is_raised_and_nothing_more_is_done() -> None:
    done: list[int] = []

    def fail() -> None:
        raise OSError("no room")

    def work() -> None:
        with Lanes(1) as lanes:
            lanes.do(0, fail)
            for number in range(20):
                lanes.do(0, partial(done.append, number))

    with pytest.raises(OSError, match="no room"):
        work()
    assert done == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane-")]


def test_lanes_of_several_processes_make_the_files_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = three_processes()
    contents = []
    for lanes in (1, 3):
        monkeypatch.setattr(per_device, "lanes_for", lambda _processes, lanes=lanes: lanes)
        out = tmp_path / str(lanes)
        write_dumps(run, out)  # type: ignore[arg-type]
        contents.append(everything_below(out))
    assert contents[0] == contents[1]
    assert len(contents[0]) == 6
