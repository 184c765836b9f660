"""The observer and the dispatch mode with other releases of torch: the calls whose accesses are known beforehand.

Each release lies in a directory of its own, with its name, below build/torch-versions: `make test-torch-versions` puts
them there. Without them there is nothing to test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest
from operator_calls import EXPECTED

ROOT = Path(__file__).resolve().parents[2]
RELEASES = sorted(path.name for path in (ROOT / "build/torch-versions").glob("*") if (path / "torch").is_dir())
LIMIT_S = 600  # the observer is built, too
MISSING = {"fused adamw": ("2.3.",)}  # releases that have no such operator for the CPU
# Under a mode some older releases call it once more in some backward passes. It touches nothing.
DETACH = "torch._ops.aten.detach.default"


@cache
def recorded(release: str, way: str) -> dict[str, list[list[str]]]:
    directory = ROOT / "build/torch-versions" / release
    environment = os.environ | {"PYTHONPATH": str(directory), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert found.stdout.split("+")[0].strip() == release, found.stderr
    done = subprocess.run(
        [sys.executable, ROOT / "tests/operator_calls.py", way, "cpu"],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls: dict[str, list[list[str]]] = json.loads(done.stdout)
    return calls


@pytest.mark.skipif(not RELEASES, reason="no releases below build/torch-versions: make test-torch-versions")
@pytest.mark.parametrize("way", ["observer", "fallback"])
@pytest.mark.parametrize("release", RELEASES)
def test_every_call_touches_what_it_is_known_to_touch(release: str, way: str) -> None:
    def told(operators: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
        return [tuple(one) for one in operators if way == "observer" or one[0] != DETACH]

    seen = recorded(release, way)

    there = {name: known for name, known in EXPECTED.items() if not release.startswith(MISSING.get(name, ()))}
    assert {name: told(seen[name]) for name in there} == {name: told(known) for name, known in there.items()}
