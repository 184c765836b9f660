"""Processes that a program starts by Python's multiprocessing, by each of its methods: what they compute is as without
the tool, what leaks in them is found where it is, and that their pool ends them is no word worth.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from long_form import short_form_is
from running import PROGRAMS, Outcome, Watch, run_to_end
from truth import read_findings

METHODS = ("fork", "spawn", "forkserver")
LINE = next(
    number for number, text in enumerate((PROGRAMS / "pool.py").read_text().splitlines(), 1) if "# the leak" in text
)


def check_complete(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome.stderr
    info = json.loads((outcome.run / "run.json").read_text())
    assert info["finished"]
    assert {name: count for name, count in info["losses"].items() if count} == {}
    assert not re.search(r"^(Died|Killed|\[msmemscope\] Warning)", outcome.stderr, re.MULTILINE), outcome.stderr


@pytest.mark.parametrize("method", short_form_is(lambda method: method != "forkserver", METHODS))
def test_a_leak_in_a_worker_of_a_pool_is_found_there(watch: Watch, method: str) -> None:
    outcome = watch(sys.executable, PROGRAMS / "pool.py", method)

    check_complete(outcome)
    tasks = re.findall(r"^task (\d+) (\d+) (\S+)$", outcome.stdout, re.MULTILINE)
    assert [int(kept) for _, kept, _ in tasks] == [0, 24]
    assert len({weights for *_, weights in tasks}) == 1
    (found,) = read_findings(outcome.run / "cluster/leaks.csv")
    assert (found.kind, Path(found.file).name, found.line, found.bytes_per_step) == ("leak", "pool.py", LINE, 1 << 20)
    assert re.search(rf"LEAK 1 +[^:]*\[pid {tasks[1][0]}\]: 1.0 MiB per step", outcome.stderr), outcome.stderr


@pytest.mark.parametrize("method", short_form_is(lambda method: method != "spawn", METHODS))
def test_workers_of_a_data_loader_that_stay_are_its_own(watch: Watch, method: str) -> None:
    plain = run_to_end(sys.executable, PROGRAMS / "persistent.py", method)

    outcome = watch(sys.executable, PROGRAMS / "persistent.py", method)

    check_complete(outcome)
    assert outcome.stdout == plain.stdout != ""
    assert read_findings(outcome.run / "cluster/leaks.csv") == []
    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    assert summary["others"] == ["persistent.py"]
    assert summary["processes"] == 3
