"""Actors of a real Ray under the tool, on one node and on two: which of them leaks, with its line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from framework_runs import PROGRAMS, complete
from running import Watch
from truth import read_findings


@pytest.mark.parametrize("program", ["actors.py", "two_nodes.py"])
def test_a_leak_in_an_actor_of_ray_is_found_where_it_is(watch: Watch, program: str) -> None:
    source = (PROGRAMS / program).read_text().splitlines()
    (line,) = (number for number, text in enumerate(source, 1) if text.endswith("# the leak"))

    outcome = watch(sys.executable, PROGRAMS / program)

    assert outcome.status == 0, outcome.stderr
    (kept,) = re.findall(r"^kept 0 24 by (\d+)$", outcome.stdout, re.MULTILINE)
    complete(outcome)
    (found,) = read_findings(outcome.run / "cluster/leaks.csv")
    assert (found.kind, Path(found.file).name, found.line, found.bytes_per_step) == ("leak", program, line, 1 << 20)
    assert re.search(rf"LEAK 1 +ray::Trainer\S* \[pid {kept}\]: 1.0 MiB per step", outcome.stderr), outcome.stderr
