"""Two streams of a simulated card under the real torch_npu: each block is of the stream it was allocated for, and is
judged by what that stream does."""

from __future__ import annotations

import json
import re
import sys

import pytest
from simulated import PROGRAMS, OnNpu

import msmemscope
from msmemscope.query.opened import OpenedRun

PROGRAM = PROGRAMS / "two_streams.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def ran(on_npu: OnNpu, observer: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenedRun, dict[str, int]]:
    """The run, and torch's numbers of the streams."""
    output = tmp_path_factory.mktemp("streams")
    tool = ["-m", "msmemscope", "--analysis", "inefficient", "-o", output, "--"]
    done = on_npu(*tool, sys.executable, PROGRAM)
    assert done.returncode == 0, done.stderr
    (path,) = output.glob("run_*")
    said = re.search(r"STREAMS (\d+) (\d+)", done.stdout)
    assert said
    return msmemscope.open_run(path), {"main": int(said[1]), "side": int(said[2])}


def truth() -> dict[tuple[str, int, str], int]:
    """Pattern, line and stream -> MiB, as the program says them."""
    lines = enumerate(PROGRAM.read_text().splitlines(), 1)
    told = ((number, re.search(r"# (\w+) (\d+) (main|side)$", text)) for number, text in lines)
    return {(said[1], number, said[3]): int(said[2]) for number, said in told if said}


def test_what_each_stream_holds_in_vain_is_told_and_nothing_else(ran: tuple[OpenedRun, dict[str, int]]) -> None:
    run, streams = ran
    names = {number: name for name, number in streams.items()}
    found = {}
    for one in run.findings("inefficient").to_pylist():
        evidence = json.loads(one["evidence"])
        found[evidence["pattern"], one["line"], names[evidence["stream"]]] = one["bytes"]
    assert len(truth()) == 3
    assert found.keys() == truth().keys()
    for line, mib in truth().items():  # the pool leaves a rest of less than 1 MiB with the block
        assert mib * MIB < found[line] <= (mib + 1) * MIB


def test_blocks_and_operators_say_their_stream(ran: tuple[OpenedRun, dict[str, int]]) -> None:
    run, streams = ran
    blocks = run.blocks(pool="PTA", at_least=16 * MIB, columns=["place", "stream"]).read_all().to_pylist()
    lines = dict(enumerate(PROGRAM.read_text().splitlines(), 1))
    found = {(lines[int(one["place"].rpartition(":")[2])].split()[0], one["stream"]) for one in blocks}
    of_main = {(name, streams["main"]) for name in ("late", "read_there", "recorded", "idle", "waits", "large")}
    assert found == of_main | {(name, streams["side"]) for name in ("own", "large")}
    events = run.events(kinds=["OP_START", "ACCESS"], columns=["kind", "name", "device", "stream", "size"]).read_all()
    rows = events.filter(events["device"].cast("string").to_numpy(zero_copy_only=False) == "npu:0").to_pylist()
    adds = [one["stream"] for one in rows if one["kind"] == "OP_START" and one["name"].endswith("add_.Tensor")]
    assert {stream: adds.count(stream) for stream in set(adds)} == dict.fromkeys(streams.values(), 3100)
    reads = {one["stream"] for one in rows if one["kind"] == "ACCESS" and one["size"] // MIB == 17}
    assert reads == set(streams.values())
    told = [one["stream"] for one in rows if one["kind"] == "ACCESS" and "record_stream" in one["name"]]
    assert told == [None]
