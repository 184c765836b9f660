"""A run directory from somebody else: every file of it is made hostile in every way, one at a time.

Whatever is done to it, `summary`, `analyze`, `export`, `owner` and `compare` end in good time with a status of their
own (0: the part was left out and counted; 3: the run cannot be used, in one line), change no file outside of the run,
and never call it a fault of msmemscope.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_run import leaky_job
from test_store import S, announcement, message

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.shard import Shard
from msmemscope.cli.main import main
from msmemscope.errors import RunError
from msmemscope.report.outputs import write_outputs
from msmemscope.tables.run_files import Anchor, inspect
from msmemscope.vocabulary import EVENT_COLUMNS, Kind
from msmemscope.wire.reports import JobReport

GOOD_TIME_S = 60
PRECIOUS = b"a file of somebody else\n" * 1000
COMMANDS = (["summary"], ["analyze"])
ALL_COMMANDS = (*COMMANDS, ["export", "--format", "csv"], ["export", "--format", "db"])
LOOKS = (["owner", "0x100"], ["compare", "--ranks", "0:1"])  # of those that write nothing in a run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all outputs."""
    job = leaky_job(ranks=2)
    for ring in (1, 2):
        job.sample(2000, "cpu", ring=ring, used=1 << 30, total=1 << 33, process_used=1 << 20, rss=1 << 20)
    path = job.save(tmp_path_factory.mktemp("finished") / "run_1")
    write_outputs(path)
    return path


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose aggregator was killed: a part in tables, the rest in the journal."""
    path = tmp_path_factory.mktemp("torn") / "run_1"
    path.mkdir()
    shard = Shard(path, S, roll_rows=50)
    coordinator = Coordinator(
        path, {"session": S, "config": {}, "host": "here"}, "0", lambda: JobReport([shard.report()])
    )
    shard.note = coordinator.write
    for data in (announcement(), message(0, 60)):
        shard.answer(data)
    shard.roll()
    shard._wait()
    for first in (60, 70, 80):
        shard.answer(message(first, 10))
    coordinator.write()
    assert list(path.glob("events/**/part-*.parquet"))
    assert list(path.glob("journal/segment-*.journal"))
    return path


@contextmanager
def time_limit() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeoutError(f"still running after {GOOD_TIME_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(GOOD_TIME_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def try_commands(
    run: Path, capsys: pytest.CaptureFixture[str], what: str, commands: Sequence[list[str]] = COMMANDS
) -> set[int]:
    """Runs them all, in the end on the run itself; returns their statuses. What may write and is not the last one gets
    a copy, so that each meets the run as it was made."""
    statuses = set()
    ordered = sorted(commands, key=lambda words: words not in LOOKS)  # False first: these write nothing
    for words in ordered:
        place = run
        if words not in LOOKS and words is not ordered[-1]:
            place = run.with_name("copy")
            shutil.copytree(run, place, symlinks=True, copy_function=_copy)
        with time_limit():
            status = main([words[0], str(place), *words[1:]])
        said = capsys.readouterr()
        assert status in (0, 3), (what, words, status, said.err)
        assert "fault of msmemscope" not in said.err, (what, words, said.err)
        assert "Traceback" not in said.err, (what, words, said.err)
        if status:
            assert len([line for line in said.err.splitlines() if "Error" in line]) == 1, (what, words, said.err)
        statuses.add(status)
        if place is not run:
            shutil.rmtree(place)
    return statuses


def _copy(source: str, to: str) -> str:
    mode = os.lstat(source).st_mode
    if os.path.stat.S_ISFIFO(mode):
        os.mkfifo(to)
        return to
    if os.path.stat.S_ISSOCK(mode):
        _socket(Path(to))
        return to
    return str(shutil.copy2(source, to))


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket may not be long
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def entries(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def one_of_each(names: Sequence[str]) -> list[str]:
    """Of files that differ in their number alone the first."""
    return list({re.sub(r"\d+", "N", name): name for name in reversed(names)}.values())[::-1]


@pytest.mark.parametrize("which", ["finished", pytest.param("torn", marks=pytest.mark.long)])
def test_nothing_is_followed(
    which: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file and directory of a run becomes a link to a file or a directory of somebody else, a FIFO, a socket."""
    source: Path = request.getfixturevalue(which)
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("precious", "run.json", "part-000000.parquet"):
        (outside / name).write_bytes(PRECIOUS)
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    makers: dict[str, Callable[[Path], Any]] = {
        "link to a file": lambda path: path.symlink_to(outside / "precious"),
        "link to a directory": lambda path: path.symlink_to(outside),
        "link to nothing": lambda path: path.symlink_to(outside / "new"),
        "FIFO": os.mkfifo,
        "socket": _socket,
    }
    names = entries(source)
    # Also what is not there yet, but will be written.
    names += ["journal", "run.json.tmp", ".summary.txt.part", "cluster/.leaks.csv.part", "blocks/new"]
    for name in one_of_each(names):
        for what, make in makers.items():
            run = tmp_path / "run"
            shutil.copytree(source, run)
            place = run / name
            if not place.parent.is_dir():
                shutil.rmtree(run)
                continue
            if place.is_dir():
                shutil.rmtree(place)
            place.unlink(missing_ok=True)
            make(place)
            assert try_commands(run, capsys, f"{name} is a {what}") == {3}
            assert {path.name: path.read_bytes() for path in outside.iterdir()} == before, (name, what)
            shutil.rmtree(run)


@pytest.mark.parametrize("which", ["finished", pytest.param("torn", marks=pytest.mark.long)])
def test_content_that_lies(
    which: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file is emptied, cut, filled with noise, and has bits turned."""
    source: Path = request.getfixturevalue(which)
    changes: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda _: b"",
        "cut": lambda data: data[: len(data) // 2],
        "noise": lambda data: bytes((i * 7919 + 13) % 251 for i in range(max(len(data), 64))),
        "first bit": lambda data: bytes([data[0] ^ 1]) + data[1:] if data else b"",
        "middle bit": lambda data: (
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 16]) + data[len(data) // 2 + 1 :] if data else b""
        ),
        "last bit": lambda data: data[:-1] + bytes([data[-1] ^ 128]) if data else b"",
        "nested": lambda _: b'{"a":' * 200_000,
        "list": lambda _: b"[" * 200_000,
    }
    for name in one_of_each(entries(source)):
        if not (source / name).is_file():
            continue
        is_only_written = name.startswith("cluster/") and name.endswith(".csv")
        for what, change in changes.items():
            if is_only_written and what != "noise":
                continue
            run = tmp_path / "run"
            shutil.copytree(source, run)
            (run / name).write_bytes(change((run / name).read_bytes()))
            commands = (*ALL_COMMANDS, *LOOKS) if what == "middle bit" else (["analyze"], LOOKS[1])
            try_commands(run, capsys, f"{name}: {what}", commands)
            shutil.rmtree(run)


HOSTILE_VALUES = (2**40, 2**64, -(2**40), 2**63, -1, 1.5, "x", 1e400, None, "", [], {}, "\x1b[31m" * 1000, True)


def test_numbers_that_lie(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each value of run.json, at any depth, becomes one that no aggregator writes."""
    document = json.loads((finished / "run.json").read_text())
    document |= {"losses": {"gaps": {"MALLOC": 1}, "holes": 1}, "usage": {"interval_ms": 1, "cards": ""}}
    document |= {"roll_call": [{"rank": 0, "reported": True, "events": 1, "last_event_ns": 1}], "hosts": ["a"]}
    document |= {"config": {"device": ["auto"], "steps": [1], "watch": {"start": "a", "end": "b"}, "format": "csv"}}
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for place in dict.fromkeys(_places(document)):
        # What a process and the configuration say also decides over names and rows of the per-device files.
        export = place[0] in ("processes", "config")
        command = ["export", str(run), "--format", "csv"] if export else ["summary", str(run)]
        for value in HOSTILE_VALUES[:: 2 if export else 1]:
            changed = json.loads(json.dumps(document))
            _put(changed, place, value)
            (run / "run.json").write_text(json.dumps(changed))
            with time_limit():
                status = main(command)
            said = capsys.readouterr().err
            assert status in (0, 3), (place, value, said)
            assert "fault of msmemscope" not in said, (place, value, said)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*at, key))
    elif isinstance(value, list) and value:
        yield from _places(value[0], (*at, 0))


def _put(document: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = value


def test_events_that_lie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole parts, each with the least and the greatest value of one column in one event of every kind."""
    for name, dtype in EVENT_COLUMNS.items():
        limits = np.iinfo(np.dtype(dtype))
        for value in (limits.min, limits.max):
            if name == "kind":
                continue
            job = leaky_job(ranks=1, steps=8)
            for number, kind in enumerate(Kind):
                fields = {"ts": 10**9 + number, "ptr": 0x100, "size": 64, "step": 4} | {name: int(value)}
                job.add(kind, fields.pop("ts"), **fields)
            run = job.save(tmp_path / "run")
            assert try_commands(run, capsys, f"{name} is {value}", ALL_COMMANDS[1::2]) == {0}
            shutil.rmtree(run)


def test_columns_that_lie(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each column of each table that the aggregator writes is missing, empty, of text, or at the ends of its type."""
    for name in one_of_each(entries(finished)):
        if not name.endswith(".parquet") or name.split("/")[0] in ("blocks", "steps.parquet", "findings.parquet"):
            continue  # derived: made anew
        table = pq.read_table(finished / name)
        assert table.num_rows
        for at, field in enumerate(table.schema):
            for what, column in _hostile_columns(field.type, table.num_rows).items():
                if column is None:
                    changed = table.remove_column(at)
                else:
                    changed = table.set_column(at, pa.field(field.name, column.type), column)
                run = tmp_path / "run"
                shutil.copytree(finished, run)
                pq.write_table(changed.replace_schema_metadata(table.schema.metadata), run / name)
                try_commands(run, capsys, f"{name}: {field.name} is {what}", (["analyze"], *LOOKS))
                shutil.rmtree(run)


def _hostile_columns(type: pa.DataType, rows: int) -> dict[str, pa.Array | None]:
    found: dict[str, pa.Array | None] = {"missing": None, "empty": pa.nulls(rows, type)}
    found["text"] = pa.array(["\x1b[31m\0"] * rows, pa.string())
    if pa.types.is_integer(type):
        limits = np.iinfo(type.to_pandas_dtype())
        found |= {"least": pa.array([limits.min] * rows, type), "greatest": pa.array([limits.max] * rows, type)}
    return found


def test_a_directory_that_others_can_change_is_not_written_in(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "cluster").chmod(0o777)
    inspect(run, to_write=False)
    with pytest.raises(RunError, match="cluster can be written by everybody"):
        inspect(run, to_write=True)
    if os.geteuid() == 0:
        (run / "cluster").chmod(0o700)
        os.chown(run / "cluster", 12345, -1)
        with pytest.raises(RunError, match="belongs to another user"):
            inspect(run, to_write=True)


def test_an_anchor_is_not_led_out(tmp_path: Path) -> None:
    (tmp_path / "run" / "events").mkdir(parents=True)
    (tmp_path / "run" / "events" / "part").write_bytes(b"inside")
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "part").write_bytes(b"outside")
    anchor = Anchor(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    (tmp_path / "run").symlink_to(tmp_path)
    with anchor.open("events/part") as file:
        assert file.read() == b"inside"
    shutil.rmtree(tmp_path / "elsewhere" / "events")
    (tmp_path / "elsewhere" / "events").symlink_to(tmp_path / "events")
    assert anchor.names("events", "*") == []
    with pytest.raises(OSError, match=r".*"):
        anchor.open("events/part")
