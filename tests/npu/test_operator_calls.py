"""torch's operators on the simulated NPU: the calls of operator_calls.py touch what they touch on the CPU."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from operator_calls import EXPECTED, MISSING_ON_NPU
from simulated import OnNpu

CALLS = Path(__file__).resolve().parents[1] / "operator_calls.py"
# As on a card, where it returns the batch's own figures also when it does not train.
ON_NPU = {
    "batch norm that is used": [
        ("torch._ops.aten.native_batch_norm.default", "R x, R w, R b, R mean, R var, W out0, W out1, W out2")
    ]
}


WAYS = [pytest.param(way, marks=pytest.mark.xdist_group(f"npu-{way}")) for way in ("observer", "fallback")]


@cache
def recorded(on_npu: OnNpu, way: str) -> dict[str, list[list[str]]]:
    done = on_npu(CALLS, way, "npu")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in MISSING_ON_NPU])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_touches_what_it_is_known_to_touch(
    on_npu: OnNpu, request: pytest.FixtureRequest, way: str, name: str
) -> None:
    if way == "observer":
        request.getfixturevalue("observer")
    assert [tuple(one) for one in recorded(on_npu, way)[name]] == ON_NPU.get(name, EXPECTED[name])
