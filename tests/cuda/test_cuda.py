"""On a real GPU, what a run says of its memory is what torch's own counters say. Never skipped silently: without a GPU
each test says so.

`make test-cuda` runs them with the torch that is installed. The same programs run on the simulated NPU
(tests/npu/test_card.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import card_truth
import operator_calls
import pytest
from compilers import needs_observer

DEADLINE_S = 240.0
ASK = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"


@cache
def card() -> str:
    """The name of the GPU that torch sees, or ""."""
    if not Path("/dev/nvidiactl").exists():
        return ""
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.stdout.strip()


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


pytestmark = pytest.mark.skipif(not card(), reason="no GPU that torch sees here")


def test_a_run_says_what_torch_counts(tmp_path: Path) -> None:
    truth = tmp_path / "truth"
    tool = ["-m", "msmemscope", "--analysis", "leaks,oom,decompose,ledger", "-o", tmp_path / "out", "--"]
    run(*tool, sys.executable, card_truth.__file__, "cuda", truth)
    (path,) = (tmp_path / "out").glob("run_*")
    card_truth.require(path, "cuda", json.loads(truth.read_text()))


@cache
def recorded(way: str) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = json.loads(run(operator_calls.__file__, way, "cuda").stdout)
    return found


@pytest.mark.parametrize("name", operator_calls.EXPECTED)
@pytest.mark.parametrize("way", ["observer", "fallback"])
def test_a_call_touches_what_it_is_known_to_touch(way: str, name: str) -> None:
    if way == "observer":
        needs_observer()
    assert [tuple(one) for one in recorded(way)[name]] == operator_calls.EXPECTED[name]
