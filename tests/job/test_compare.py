"""`msmemscope compare` as a gate: real trainings of examples/transformer.py, before a change and after it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, run_to_end

EXAMPLE = ROOT / "examples" / "transformer.py"


def tool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_to_end(sys.executable, "-m", "msmemscope", *words)


def record(output: Path, program: Path, *words: str) -> Path:
    recorded = ("--level", "op", "--events", "alloc,free,launch", "--call-stack", "python")
    ended = tool(*recorded, "--output-path", output, "--", sys.executable, program, "--steps", "12", *words)
    assert ended.returncode == 0, ended.stderr
    (run,) = output.glob("run_*")
    return run


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("before"), EXAMPLE)


pytestmark = pytest.mark.xdist_group("compare")


def test_the_same_program_keeps_every_limit(before: Path, tmp_path: Path) -> None:
    again = record(tmp_path / "again", EXAMPLE)
    gate = tool("compare", before, again, "--fail-on", "peak>+2%,end>+2%,allocs>0")
    assert gate.returncode == 0, gate.stdout + gate.stderr
    assert "no pool has more memory by 64 KiB and 1 %, 3 of 3 limits kept" in gate.stdout
    assert "OPERATORS" not in gate.stdout


def test_a_larger_batch_is_stopped_with_the_lines_that_need_more(before: Path, tmp_path: Path) -> None:
    after = record(tmp_path / "after", EXAMPLE, "--batch", "16")
    gate = tool("compare", before, after, "--fail-on", "peak>+2%,allocs>0", "-o", tmp_path / "out")
    assert gate.returncode == 1, gate.stdout + gate.stderr
    assert "peak>+2% is broken: transformer.py" in gate.stderr
    assert "1 of 2 limits kept" in gate.stdout
    with (tmp_path / "out" / "compare_sites.csv").open() as file:
        sites = [row for row in csv.DictReader(file) if row["pool"] == "HOST"]
    with (tmp_path / "out" / "compare.csv").open() as file:
        peak = next(row for row in csv.DictReader(file) if (row["pool"], row["figure"]) == ("HOST", "peak"))
    assert sum(int(row["difference_bytes"]) for row in sites) == int(peak["difference"])
    mlp = next(at for at, line in enumerate(EXAMPLE.read_text().splitlines(), 1) if "self.mlp(self.norm2(x))" in line)
    grown = next(row for row in sites if row["line"] == str(mlp))
    # The activations of a batch of twice the size.
    assert int(grown["b_bytes"]) == 2 * int(grown["a_bytes"]) > 0
    assert "the same ones" in gate.stdout


def test_another_activation_is_a_replaced_operator_and_lines_move_with_the_code(before: Path, tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert "nn.GELU()" in text
    changed = tmp_path / "transformer.py"
    changed.write_text(text.replace("import torch\n", "import torch\n\n\n", 1).replace("nn.GELU()", "nn.ReLU()"))
    gate = tool("compare", before, record(tmp_path / "after", changed), "-o", tmp_path / "out")
    assert gate.returncode == 0, gate.stderr
    assert "OPERATORS 1" in gate.stdout
    with (tmp_path / "out" / "compare_operators.csv").open() as file:
        replaced = {(row["name"], row["other"]): row for row in csv.DictReader(file) if row["change"] == "replaced"}
    names = [pair for pair in replaced if "gelu" in pair[0] and "relu" in pair[1]]
    # Both layers, forward and backward.
    assert sum(int(replaced[pair]["a_launches"]) for pair in names) >= 2, replaced
    with (tmp_path / "out" / "compare_sites.csv").open() as file:
        moves = {int(row["line"]) - int(row["was_line"]) for row in csv.DictReader(file) if row["change"] == "moved"}
    assert moves == {2}
