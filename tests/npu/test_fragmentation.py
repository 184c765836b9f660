"""A pool of the real torch_npu that grows because small blocks pin its segments: the line, and the bytes as torch
counts them; and one that only keeps what it has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from simulated import PROGRAMS, OnNpu

PROGRAM = PROGRAMS / "fragmented.py"


def found(on_npu: OnNpu, tmp_path: Path, how: str) -> tuple[list[dict[str, object]], dict[str, int], str]:
    """Its findings, what torch counted, and what was printed."""
    truth = tmp_path / "truth"
    done = on_npu("-m", "msmemscope", "-o", tmp_path / "out", sys.executable, PROGRAM, how, truth)
    assert done.returncode == 0, done.stderr[-4000:]
    (summary,) = (tmp_path / "out").glob("run_*/cluster/summary.json")
    return json.loads(summary.read_text())["findings"], json.loads(truth.read_text()), done.stderr


def test_the_line_that_pins_segments_is_named_with_the_bytes_that_torch_counts(on_npu: OnNpu, tmp_path: Path) -> None:
    findings, truth, printed = found(on_npu, tmp_path, "keeps")
    line = next(n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith("# RENEWED"))
    (one,) = [one for one in findings if one["kind"] in ("fragmented_growth", "cached_growth")]
    assert (one["kind"], one["line"], one["bytes"]) == ("fragmented_growth", line, truth["pinned"])
    # The table is no leak; that it frees its old blocks has not been seen for long enough to say so.
    assert not [one for one in findings if one["kind"] == "leak"]
    assert truth["pinned"] > 17 * 20 << 20
    assert "FRAGMENTED 1  " in printed
    assert "expandable_segments:True" in printed


def test_segments_that_are_free_as_a_whole_are_a_note(on_npu: OnNpu, tmp_path: Path) -> None:
    findings, truth, _ = found(on_npu, tmp_path, "leaves")
    (one,) = [one for one in findings if one["kind"] in ("cached_growth", "fragmented_growth")]
    assert (one["kind"], one["bytes"]) == ("cached_growth", truth["cached"])
    assert truth["pinned"] == 0
    assert not [one for one in findings if one["severity"] != "info"]
