"""`msmemscope owner` of a real run: whose a tensor's block was at each step, by its address."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running import LIMIT_S, Watch

pytest.importorskip("torch")

PROGRAM = """
import torch
import msmemscope
from msmemscope.describe import describer

kept = torch.ones(3000)  # ALLOCATED
print(kept[7:].data_ptr(), flush=True)
nobodys = torch.ones(500)
for number in range(1, 6):
    msmemscope.step()
    if number == 1:
        describer(kept, owner="cache")
    if number == 3:
        describer(kept[100:], owner="result")
"""


def test_whose_a_block_was_at_a_step(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    outcome = watch(sys.executable, program)

    assert outcome.status == 0, outcome.stderr
    address = int(outcome.stdout)
    line = next(n for n, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith("# ALLOCATED"))

    def ask(*words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "msmemscope", "owner", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    said = ask(outcome.run, hex(address), "--step", "4")
    assert said.returncode == 0, said.stderr
    first, allocated, *owners = said.stdout.splitlines()
    assert "12000 bytes" in first
    assert first.startswith("program.py [pid ")
    assert first.endswith("steps 0 to 6")  # it ends with the interpreter
    assert allocated.startswith(f"  allocated at {program}({line}): <module>")
    assert owners == ["  in step 4: result", "  from step 0: cache", "  from step 4: result"]
    assert "  in step 3: cache" in ask(outcome.run, str(address), "--step", "3").stdout.splitlines()
    nowhere = ask(outcome.run, "0x10")
    assert (nowhere.returncode, nowhere.stdout) == (3, "")
    assert "no recorded block held the address 0x10" in nowhere.stderr
    wrong = ask(outcome.run, "0xhere")
    assert wrong.returncode == 2
    assert "'0xhere' is no address" in wrong.stderr
    lines = ask(outcome.run, "result")
    assert lines.returncode == 0, lines.stderr
    first, *rest = lines.stdout.splitlines()
    assert first == "cpu HOST: 11.7 KiB at the end of the last complete step"
    assert len(rest) == 1
    assert f"program.py:{line} `kept = torch.ones(3000)" in rest[0]
    assert rest[0].endswith("  result")
    assert "11.7 KiB at the end of step 2" in ask(outcome.run, "cache", "--step", "2").stdout
    unknown = ask(outcome.run, "weights")
    assert unknown.returncode == 3
    assert "no bytes belonged to 'weights' then; there are cache, result" in unknown.stderr
    later = ask(outcome.run, "cache", "--step", "99")
    assert later.returncode == 3
    assert "the lines of owners are not known of step 99; complete are 0-5" in later.stderr
    nameless = ask(outcome.run, "unattributed").stdout
    assert "2.0 KiB  100.0 %  lines are told apart of named owners alone; cluster/peak.csv has all" in nameless
    assert "an unknown line" not in nameless
