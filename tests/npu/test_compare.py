"""Two trainings of a small GPT on a simulated card, of which the second has another activation and a larger batch."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from simulated import PROGRAMS, OnNpu

from msmemscope.imports.memory_compare import compare_files

pytestmark = pytest.mark.xdist_group("two programs are run once")


def tool(on_npu: OnNpu, *words: str | Path) -> CompletedProcess[str]:
    return on_npu("-m", "msmemscope", *words, TASK_QUEUE_ENABLE="0")


def recorded(on_npu: OnNpu, place: Path, text: str) -> tuple[Path, Path]:
    """The run, and the directory of upstream's files beside it."""
    place.mkdir()
    program = place / "gpt.py"
    program.write_text(text)
    options = ["--level", "op,kernel", "--events", "alloc,free,launch", "--call-stack", "python"]
    done = tool(on_npu, "-o", place / "out", *options, "--", sys.executable, program, place / "counters")
    assert done.returncode == 0, done.stderr[-4000:]
    (run,) = (place / "out").glob("run_*")
    (dumps,) = (place / "out").glob("msmemscope_*_ascend")
    return run, dumps


@pytest.fixture(scope="module")
def both(on_npu: OnNpu, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    place = tmp_path_factory.mktemp("compared")
    text = (PROGRAMS / "gpt.py").read_text()
    changed = text.replace("nn.GELU()", "nn.ReLU()").replace("16, 4\n", "16, 8\n")
    assert changed.count("nn.ReLU()") == 1
    assert "16, 8\n" in changed
    return [recorded(on_npu, place / "before", text), recorded(on_npu, place / "after", changed)]


def test_upstreams_files_with_call_stacks_say_what_the_run_says(both: list[tuple[Path, Path]]) -> None:
    (run, dumps), _ = both
    found = compare_files(run, dumps, ["op", "kernel"])
    assert len(found.rows) > 500
    assert {row.event for row in found.rows} == {"OP_LAUNCH", "KERNEL_LAUNCH"}
    assert {(row.diff, (row.compare_net or 0) - (row.base_net or 0)) for row in found.rows} == {(0, 0)}
    assert all(row.base is not None and row.compare is not None for row in found.rows)


def test_upstreams_comparison_of_the_two(on_npu: OnNpu, both: list[tuple[Path, Path]], tmp_path: Path) -> None:
    (_, before), (_, after) = both
    done = tool(on_npu, "--compare", f"--input-path={before},{after}", "--level", "op", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.rglob("memory_compare_*.csv")
    rows = [line.split(",") for line in written.read_text().splitlines()[2:]]
    only_before = {row[1] for row in rows if row[4] == "N/A"}
    only_after = {row[1] for row in rows if row[3] == "N/A"}
    assert any("gelu" in name for name in only_before)
    assert any("relu" in name for name in only_after)
    assert not any("gelu" in name for name in only_after)
    assert any(row[3] != row[4] for row in rows if "N/A" not in row)


def test_the_change_is_told_with_its_operators_and_stopped_at_the_gate(
    on_npu: OnNpu, both: list[tuple[Path, Path]]
) -> None:
    (before, _), (after, _) = both
    done = tool(on_npu, "compare", before, after, "--fail-on", "peak>+64KiB,reserved>+50%", "--min-bytes", "1024")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "peak>+64KiB is broken" in done.stderr
    assert "1 of 2 limits kept" in done.stdout
    assert "peak of npu:0 PTA" in done.stdout
    assert "OPERATORS 1" in done.stdout
    again = tool(on_npu, "compare", before, before, "--fail-on", "peak>+0%,end>+0%,reserved>+0%,allocs>0")
    assert again.returncode == 0, again.stdout + again.stderr
