"""When a process looks up who holds its tensors, by what the aggregator has said of it and how long it lived."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from msmemscope.aggregate.meta import _texts
from msmemscope.analysis.holders import _parsed
from msmemscope.collect.rank import lookup
from msmemscope.collect.rank.bounds import Extent
from msmemscope.collect.rank.holders import Holder
from msmemscope.collect.session import LEAKING
from msmemscope.wire.messages import MAX_TEXT

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

    def at_exit(told: dict[str, list[int]] | None, *, steps: int = 40, judged: int = 40) -> list[object]:
        asked.clear()
        said.step = steps
        path = tmp_path / f"{LEAKING}{RING:016x}"
        path.unlink(missing_ok=True)
        if told is not None:
            path.write_text(json.dumps({"judged": judged, "blocks": told}))
        one = lookup.Lookup(str(tmp_path))
        monkeypatch.setattr(one, "_look", asked.append)
        one.at_exit()
        return list(asked)

    return at_exit


def test_what_is_known_to_leak_is_looked_for_however_many_steps_were_judged(
    looked: Callable[..., list[object]],
) -> None:
    assert looked({"a": [1]}) == [{"a": [1]}]
    assert looked({"a": [1]}, steps=4000) == [{"a": [1]}]


def test_a_process_that_was_not_judged_or_by_its_first_steps_alone_looks_at_all_there_is(
    looked: Callable[..., list[object]],
) -> None:
    assert looked(None) == [None]
    assert looked(None, steps=4000) == [None]
    assert looked({}, judged=26) == [None]
    assert looked({}, steps=lookup.FEWEST_STEPS, judged=0) == []


def test_a_process_that_was_judged_by_most_of_its_steps_and_in_which_nothing_leaks_does_not_look(
    looked: Callable[..., list[object]],
) -> None:
    assert looked({}, judged=27) == []
    assert looked({}) == []


@pytest.mark.parametrize("text", ["deque `recent` (40 of at most 100 items)", "x" * 1000, "\U0001f9e0" * 1000])
def test_what_graphs_keep_is_told_in_records_that_are_kept_whole(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[str] = []
    kept = [{(1 << 46) + 977 * n for n in range(600)}, {64 * n + 1 for n in range(9)}]
    monkeypatch.setattr(
        lookup, "_native", SimpleNamespace(current_step=lambda: 41, meta=lambda _, one: records.append(one))
    )
    found = [Holder(text, 20, 20, [1, 2], extent=Extent(40, 100), kept=kept)]
    monkeypatch.setattr("msmemscope.collect.rank.holders.find_holders", lambda *_: found)
    lookup.Lookup("/nowhere")._look(None)
    parsed = [_parsed(one) for one in records]
    graphs = [one["graphs"] for one in parsed if one is not None and one["graphs"]]
    assert len(graphs) == len(records) - 1 > 1
    encoded = [one.encode() for one in records]
    assert max(map(len, encoded)) <= MAX_TEXT
    ids, sizes = np.arange(len(encoded), dtype="<u8"), np.array([len(one) for one in encoded], "<u4")
    batch = SimpleNamespace(strings={"id": ids.tobytes(), "bytes": sizes.tobytes(), "text": b"".join(encoded)})
    assert list(_texts(batch).values()) == encoded
    assert [{address for part in graphs for address in part[entry]} for entry in (0, 1)] == kept
