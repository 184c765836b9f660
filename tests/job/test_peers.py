"""A real job of four ranks, one of which keeps a buffer: it is named, with its line, and nothing else is."""

from __future__ import annotations

import csv
import json
import re

from running import PROGRAMS, Watch, forked_ranks

PROGRAM = PROGRAMS / "hoarding_rank.py"
KEPT_BYTES = 64 << 20
GATHERED_BYTES = 96 << 20


def test_the_rank_that_keeps_a_buffer_is_named_with_its_line(watch: Watch) -> None:
    outcome = watch(*forked_ranks(4, PROGRAM))
    assert outcome.status == 0, outcome.stderr
    line = next(n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith("# KEPT"))

    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    (one,) = [one for one in summary["findings"] if one["kind"] == "uses_more"]
    assert (one["ranks"], one["device"], one["line"]) == ("2", "cpu", line)
    assert one["evidence"]["lines"][0]["bytes"] == KEPT_BYTES
    assert one["evidence"]["peers"] == "0-1,3"
    with (outcome.run / "cluster/peers.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["kind"], row["ranks"], row["line"]) == ("uses_more", "2", str(line))
    assert row["line_bytes"] == str(KEPT_BYTES)
    assert "MORE THAN PEERS 1  Rank 2 uses " in outcome.stderr
    assert f"64 MiB of it at {PROGRAM.name}:{line}" in outcome.stderr
    assert summary["leaks"] == 0


def test_what_one_rank_frees_within_its_step_is_named_with_its_line_and_its_bytes(watch: Watch) -> None:
    program = PROGRAMS / "gathering_rank.py"
    outcome = watch(*forked_ranks(4, program))
    assert outcome.status == 0, outcome.stderr
    line = next(n for n, text in enumerate(program.read_text().splitlines(), 1) if text.endswith("# GATHERED"))

    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    (one,) = [one for one in summary["findings"] if one["kind"] == "uses_more"]
    assert (one["ranks"], one["device"], one["line"]) == ("2", "cpu", line)
    first = one["evidence"]["lines"][0]
    assert (first["bytes"], first["only_here"]) == (GATHERED_BYTES, True)
    assert one["evidence"]["figure"] == "peak"
    # The gather comes when activations and gradients of others' peaks are gone: the lines add up to the excess.
    evidence = one["evidence"]
    more = sum(part["bytes"] for part in evidence["lines"]) + evidence["other_bytes"] - evidence["less_bytes"]
    assert abs(one["bytes"] - more) <= one["bytes"] // 100
    assert summary["leaks"] == 0


def test_a_hot_expert_gets_more_tokens(watch: Watch) -> None:
    """A router that likes one of four experts: the places of the ranks are told by torch's own DeviceMesh."""
    program = PROGRAMS / "experts.py"
    lines = {text.split("# ")[-1]: n for n, text in enumerate(program.read_text().splitlines(), 1) if "  # " in text}
    outcome = watch(*forked_ranks(4, program), "hot")
    assert outcome.status == 0, outcome.stderr
    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    (one,) = [one for one in summary["findings"] if one["kind"] == "uses_more"]
    assert (one["ranks"], one["device"], one["evidence"]["coordinate"]) == ("2", "cpu", "ep=2")
    load = one["evidence"]["load"]
    assert (load["gets_more"], load["expert"]) == ("tokens", "2")
    fed = {line["line"] for line in one["evidence"]["lines"] if line["fed_more"]}
    assert fed == {lines["EXPERT"], lines["BACKWARD"]}
    # The routers told how many rows each expert got in the last step: the memory says the same.
    # Four ranks write: between a text and its end of line another's may stand.
    tokens = [int(number) for number in re.findall(r"tokens (\d+)", outcome.stdout)]
    assert len(tokens) == 4
    others = sorted(tokens)[:3]
    assert abs(load["ratio"] - max(tokens) / others[1]) < 0.2 * load["ratio"]
    assert f"Expert parallel rank 2 holds {load['ratio']:.1f}x of its peers' memory at " in outcome.stderr
    assert "because it gets more tokens" in outcome.stderr


def test_experts_that_get_as_many_tokens_are_silent(watch: Watch) -> None:
    outcome = watch(*forked_ranks(4, PROGRAMS / "experts.py"), "even")
    assert outcome.status == 0, outcome.stderr
    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    assert not [one for one in summary["findings"] if one["kind"] in ("uses_more", "uses_less", "differs")]
