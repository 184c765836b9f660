"""Owners that a program names: threads, asyncio tasks, generators, tensors; and words that are none."""

from __future__ import annotations

import json
import sys

import pyarrow.parquet as pq
import pytest
from running import PROGRAMS, Outcome, Watch

from msmemscope.describe import describer


def check_owners(outcome: Outcome) -> int:
    """Every block that the program has told of has the owner that is due. Returns how many there are."""
    assert outcome.status == 0, outcome.stderr
    due = dict(line.split(" ", 1) for line in outcome.stdout.splitlines())
    (part,) = outcome.run.glob("blocks/part-*.parquet")
    rows = pq.read_table(part, columns=["size", "owner"]).to_pylist()
    found = {str(row["size"]): row["owner"] or "-" for row in rows if str(row["size"]) in due}
    assert found == due
    return len(due)


def test_every_form_of_a_label_gives_its_owner(watch: Watch) -> None:
    outcome = watch(sys.executable, PROGRAMS / "described.py")

    assert check_owners(outcome) > 30
    assert outcome.stderr.count("Error: describer(owner='fourth') is ignored") == 1
    assert json.loads((outcome.run / "cluster/summary.json").read_text())["anomalies"]["unknown_label"]["count"] == 2


@pytest.mark.parametrize("loop", ["pools", "trio", "uvloop"])
def test_labels_where_contexts_move(watch: Watch, loop: str) -> None:
    if loop != "pools":
        pytest.importorskip(loop)

    assert check_owners(watch(sys.executable, PROGRAMS / "described_tasks.py", loop)) > 10


@pytest.mark.parametrize(
    ("what", "owner", "error", "said"),
    [
        ((), 7, TypeError, "takes a text as owner; got int"),
        ((), "", ValueError, "needs an owner"),
        ((), "x" * 129, ValueError, "at most 128 characters; got 129"),
        ((object(),), "x", TypeError, "a tensor or an address; got object"),
        ((True,), "x", TypeError, "a tensor or an address; got bool"),
        ((0,), "x", ValueError, "a positive address"),
        ((1, 2), "x", TypeError, "one tensor or address; got 2"),
    ],
)
def test_words_that_are_none_are_errors(what: tuple[object, ...], owner: object, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        describer(*what, owner=owner)  # type: ignore[arg-type]


def test_a_tensor_without_memory_is_an_error() -> None:
    import torch

    with pytest.raises(ValueError, match="without memory"):
        describer(torch.empty(4, device="meta"), owner="x")
    with pytest.raises(ValueError, match="without memory"):
        describer(torch.empty(0), owner="x")
    gone = torch.empty(4)
    gone.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="without memory"):
        describer(gone, owner="x")


def test_a_label_of_128_characters_with_any_sign_is_taken() -> None:
    with describer(owner="@" + "é" * 127):
        pass
