"""When a process looks up who holds its tensors, by what the aggregator has said of it and how long it lived."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from msmemscope.collect.rank import lookup
from msmemscope.collect.session import LEAKING

RING = 7


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """What was looked for at the end of a process of so many steps and seconds; no process here records."""
    asked: list[object] = []
    said = SimpleNamespace(step=0)
    native = SimpleNamespace(
        stats=lambda: {"recording": True, "ring_id": RING}, current_step=lambda: said.step, meta=lambda *_: None
    )
    monkeypatch.setattr(lookup, "_native", native)

    def at_exit(told: dict[str, list[int]] | None, *, steps: int = 40, lived_s: float = 3.0) -> list[object]:
        asked.clear()
        said.step = steps
        path = tmp_path / f"{LEAKING}{RING:016x}"
        path.unlink(missing_ok=True)
        if told is not None:
            path.write_text(json.dumps(told))
        one = lookup.Lookup(str(tmp_path))
        one._began -= lived_s
        monkeypatch.setattr(one, "_look", asked.append)
        one.at_exit()
        return list(asked)

    return at_exit


def test_what_is_known_to_leak_is_looked_for_however_long_the_process_lived(
    looked: Callable[..., list[object]],
) -> None:
    assert looked({"a": [1]}) == [{"a": [1]}]
    assert looked({"a": [1]}, lived_s=4000) == [{"a": [1]}]


def test_a_young_process_looks_at_tensors_of_one_size_whether_or_not_its_first_steps_were_judged(
    looked: Callable[..., list[object]],
) -> None:
    assert looked(None) == [None]
    assert looked({}) == [None]
    assert looked({}, steps=lookup.FEWEST_STEPS) == []


def test_an_old_process_in_which_nothing_leaks_does_not_look(looked: Callable[..., list[object]]) -> None:
    assert looked({}, lived_s=21) == []
