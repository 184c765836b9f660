"""Comparisons of runs, of which it is known what was changed: in their figures, lines, owners and operators."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from msmemscope.analysis.compare import CompareOptions, Comparison
from msmemscope.analysis.compare_limits import broken, change_text, parse_limits
from msmemscope.analysis.compare_lines import Change, Line, matched, medians
from msmemscope.analysis.compare_sides import Choice, read_choices
from msmemscope.cli.main import main
from msmemscope.errors import InputError, UsageError
from msmemscope.report.comparison import ReadRun, compare_read, read_run, verdict_of
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import played
from msmemscope.selftest.script import KIB, MIB, Process, Script
from msmemscope.vocabulary import DeviceType, Pool

NPU = (DeviceType.NPU, Pool.PTA)
Make = Callable[[Callable[[Script], None]], ReadRun]


@pytest.fixture
def run() -> Iterator[Make]:
    """Makes a run of a script, which is there while the test lasts."""
    with ExitStack() as stack:

        def make(write: Callable[[Script], None]) -> ReadRun:
            job = Script()
            write(job)
            return read_run(stack.enter_context(played(job)).run.path, "run")

        yield make


def healthy(job: Script, ranks: int = 1) -> None:
    for one in job.ranks(ranks):
        train(one)


def larger(job: Script, ranks: int = 1) -> None:
    """4 MiB more while each step's layers are there, at a line of its own."""

    def each(rank: Process, _: int) -> None:
        rank.scratch(4 * MIB, place("model.py:50 extra", "train.py:85"))

    for one in job.ranks(ranks):
        train(one, each, activations=24 * MIB)


def figures(found: Comparison) -> dict[str, tuple[float | None, float | None]]:
    (pair,) = found.pairing.pairs
    a, b = pair.a.figures[NPU], pair.b.figures[NPU]
    return {name: (getattr(a, name), getattr(b, name)) for name in ("peak", "end", "reserved", "allocs")}


def test_a_run_and_itself_differ_in_nothing(run: Make) -> None:
    one = run(lambda job: healthy(job, 2))
    found = compare_read(one, one, CompareOptions(ranks="0,1:0,1"))
    assert [finding.kind for finding in found.findings] == ["no_operators"]
    assert all(change.bytes == 0 for changes in found.lines.values() for change in changes)


def test_figures_and_lines_say_by_how_much(run: Make) -> None:
    found = compare_read(run(healthy), run(larger), CompareOptions())
    weights, gradients, states = 64 * MIB, 16 * MIB, 32 * MIB
    # The peak is behind the backward pass, where the layers, the batch and the gradients are there.
    peaks = [weights + states + gradients + layers + 256 * KIB for layers in (16 * MIB, 24 * MIB)]
    ends = weights + states + gradients
    assert figures(found) == {"peak": tuple(peaks), "end": (ends, ends), "reserved": tuple(peaks), "allocs": (4, 5)}
    more = found.findings[0]
    assert (more.kind, more.headline, more.ranks, more.bytes) == ("more", "MORE", (0,), 8 * MIB)
    assert (more.place, more.device, more.pool) == ("model.py:30", "npu:0", "PTA")
    (changes,) = (changes for (_, at), changes in found.lines.items() if at == NPU)
    assert {change.line.line: change.bytes for change in changes if change.bytes} == {30: 4 * MIB, 34: 4 * MIB}
    assert sum(change.bytes for change in changes) == peaks[1] - peaks[0]


def test_less_is_a_note(run: Make) -> None:
    found = compare_read(run(larger), run(healthy), CompareOptions())
    assert [(one.kind, one.is_note, one.bytes) for one in found.findings[:1]] == [("less", True, -8 * MIB)]
    assert "in B, " in found.findings[0].sentence


def test_small_changes_are_not_told(run: Make) -> None:
    a, b = run(healthy), run(larger)
    for options in (CompareOptions(min_bytes=64 * MIB), CompareOptions(min_share=0.5)):
        kinds = [one.kind for one in compare_read(a, b, options).findings]
        assert "other_ranks" not in kinds
        assert [one.bytes for one in compare_read(a, b, options).findings if one.kind == "more"] in ([], [0])


def test_two_steps_of_one_run(run: Make) -> None:
    def grows(job: Script) -> None:
        kept: list[object] = []
        train(job.rank(), lambda rank, n: kept.append(rank.alloc(MIB, place("train.py:58"))) if n >= 5 else None)

    one = run(grows)
    found = compare_read(one, one, CompareOptions(steps="3:10"))
    (more, *_) = found.findings
    assert (found.a.name, found.b.name) == ("step 3", "step 10")
    # Iteration n, from 0, is step n + 1: at the end of step 10 those of 5 to 9 are kept, at its peak the last is not
    # there yet.
    assert more.bytes == 4 * MIB
    ((_, end),) = [(at, changes) for (_, at), changes in found.lines.items() if at == NPU]
    assert {one.line.place: one.bytes for one in end if one.bytes} == {"train.py:58": 5 * MIB}
    assert (more.place, more.first_step, more.last_step) == ("train.py:58", 10, 10)
    assert "at the end of the step" in "\n".join(more.details)
    same = compare_read(one, one, CompareOptions(steps="2:4"))
    assert not [finding for finding in same.findings if not finding.is_note]


def test_ranks_of_one_run_and_ranks_by_number(run: Make) -> None:
    def uneven(job: Script) -> None:
        for one in job.ranks(4):
            train(one, activations=(16 + 8 * (one.rank >= 2)) * MIB)

    one = run(uneven)
    pair = compare_read(one, one, CompareOptions(ranks="0:3")).findings[0]
    assert (pair.ranks, pair.bytes) == ((3,), 8 * MIB)
    assert "Rank 3 (with rank 0)" in pair.sentence
    halves = compare_read(one, one, CompareOptions(ranks="0-1:2-3")).findings[0]
    assert (halves.ranks, halves.bytes) == ((2, 3), 16 * MIB)
    other = run(lambda job: healthy(job, 4))
    found = compare_read(other, one, CompareOptions()).findings[0]
    assert (found.ranks, found.bytes) == ((2, 3), 16 * MIB)


def test_another_number_of_ranks_is_said_and_medians_are_judged(run: Make) -> None:
    a, b = run(lambda job: healthy(job, 2)), run(lambda job: larger(job, 4))
    found = compare_read(a, b, CompareOptions())
    note = next(one for one in found.findings if one.kind == "other_ranks")
    assert "2 in A, 4 in B" in note.sentence
    assert "rank 2, rank 3 only in B" in note.sentence
    (limit,) = parse_limits("peak>+7MiB")
    said = broken(limit, found.a, found.b, found.pairing)
    assert [text.split(": ")[1].split(",")[0] for text in said] == ["rank 0", "rank 1", "the median of all"]


def test_processes_that_are_no_ranks_go_by_name_and_else_by_age(run: Make) -> None:
    def named(*names: str) -> Callable[[Script], None]:
        def write(job: Script) -> None:
            for at, name in enumerate(names):
                one = job.process(program=name, device=at)
                one.now += at
                train(one, activations=(16 + 8 * at) * MIB)

        return write

    a = run(named("serve.py", "load.py"))
    for names, by_age, pairs in (
        (("load.py", "serve.py"), False, [("load.py", "load.py"), ("serve.py", "serve.py")]),
        (("one.py", "two.py"), True, [("load.py", "two.py"), ("serve.py", "one.py")]),
        (("one.py", "two.py", "three.py"), False, []),
    ):
        found = compare_read(a, run(named(*names)), CompareOptions())
        told = [(pair.a.subject.name.split(" ")[0], pair.b.subject.name.split(" ")[0]) for pair in found.pairing.pairs]
        assert (found.pairing.by_age, sorted(told)) == (by_age, pairs)
        kinds = {one.kind for one in found.findings}
        assert ("by_age" in kinds, "not_compared" in kinds) == (by_age, not pairs)
        assert verdict_of(found, [], [], CompareOptions()).endswith("nothing was compared") is not bool(pairs)


def test_roles_are_compared(run: Make) -> None:
    def two_roles(job: Script) -> None:
        for one in job.ranks(2):
            one.role = ("actor", "rollout")[one.rank]
            train(one, activations=(16 + 8 * one.rank) * MIB)

    one = run(two_roles)
    found = compare_read(one, one, CompareOptions(roles="actor:rollout"))
    assert (found.findings[0].bytes, found.b.name) == (8 * MIB, "role rollout")
    with pytest.raises(InputError, match="there are actor, rollout"):
        compare_read(one, one, CompareOptions(roles="actor:critic"))


def test_owners_at_the_peak(run: Make) -> None:
    def labelled(size: int) -> Callable[[Script], None]:
        def write(job: Script) -> None:
            def each(rank: Process, _: int) -> None:
                with rank.label("kv cache"):
                    rank.scratch(size, place("cache.py:7"))

            train(job.rank(), each, activations=2 * MIB)

        return write

    found = compare_read(run(labelled(32 * MIB)), run(labelled(48 * MIB)), CompareOptions())
    owners = next(held for (_, at), held in found.owners.items() if at == NPU)
    assert owners["PTA@kv cache"] == (32 * MIB, 48 * MIB)
    assert any("kv cache" in line and "+16 MiB" in line for line in found.findings[0].details)


# --- operators ----------------------------------------------------------------------------------------------------


def with_operators(names: list[str], sizes: dict[str, int]) -> Callable[[Script], None]:
    """Each operator keeps a block to the end of the iteration."""

    def write(job: Script) -> None:
        def each(rank: Process, _: int) -> None:
            held = []
            for name in names:
                with rank.op(name):
                    held.append(rank.alloc(sizes.get(name, MIB), place("model.py:60 ops")))
            for block in held:
                rank.free(block)

        train(job.rank(), each)

    return write


def test_operators_that_were_inserted_removed_replaced_and_that_grew(run: Make) -> None:
    a = run(with_operators(["embed", "mm", "gelu", "mm", "dropout", "loss"], {}))
    b = run(with_operators(["embed", "mm", "relu", "mm", "loss", "log"], {"embed": 3 * MIB, "relu": 2 * MIB}))
    found = compare_read(a, b, CompareOptions())
    (one,) = found.launches.values()
    told = {(diff.kind, diff.name, diff.other): (diff.a, diff.b, diff.bytes) for diff in one.found}
    assert told == {
        ("memory", "embed", ""): (1, 1, 2 * MIB),
        ("replaced", "gelu", "relu"): (1, 1, MIB),
        ("removed", "dropout", ""): (1, 0, -MIB),
        ("inserted", "log", ""): (0, 1, MIB),
    }
    assert (one.a, one.b, one.same, one.given_up) == (6, 6, 4, 0)
    # Every byte of the difference is somewhere.
    assert sum(diff.bytes for diff in one.found) + one.behind[1] - one.behind[0] == one.b_net - one.a_net
    finding = next(f for f in found.findings if f.kind == "other_operators")
    assert "1 removed, 1 inserted, 1 replaced; 1 take other memory" in finding.sentence


def test_the_same_operators_are_no_finding(run: Make) -> None:
    names = ["embed", "mm", "loss"]
    found = compare_read(run(with_operators(names, {})), run(with_operators(names, {})), CompareOptions())
    assert found.findings == ()
    (one,) = found.launches.values()
    assert one.found == ()


# --- lines ----------------------------------------------------------------------------------------------------------


def test_the_same_line_of_files_of_one_name_is_laid_together_once() -> None:
    def of(*sizes: tuple[str, int]) -> dict[Line, int]:
        return {Line(file, 10, "forward"): size for file, size in sizes}

    here, there = of(("/x/a/model.py", 1), ("/x/b/model.py", 5)), of(("/y/a/model.py", 2), ("/y/b/model.py", 5))
    assert {(one.a, one.b, one.bytes) for one in matched(here, there)} == {
        (*both, more) for both, more in zip(zip(here, there, strict=True), (1, 0), strict=True)
    }
    alone = list(matched(here, of(("/y/a/model.py", 2))))
    assert (len(alone), sum(one.a_bytes for one in alone), sum(one.b_bytes for one in alone)) == (2, 6, 2)


def test_medians_are_of_all_ranks_also_of_those_without_the_line() -> None:
    def at(line: int) -> Line:
        return Line("/m.py", line, f"of_{line}")

    ranks = [
        matched({at(1): 10, at(2): 4}, {at(1): 20, at(2): 4}),
        matched({at(1): 12, at(3): 9}, {at(1): 21, at(3): 9}),
        matched({at(1): 30, at(2): 6, at(4): -8}, {at(1): 90, at(2): 7, at(4): 8}),
    ]
    found = {one.line: (one.a_bytes, one.b_bytes) for one in medians(ranks)}
    assert found == {at(1): (12, 21), at(2): (4, 4), at(3): (0, 0), at(4): (0, 0)}
    assert {one.line: one.b_bytes for one in medians(ranks[:2])} == {at(1): 20, at(2): 2, at(3): 4}


def test_lines_are_matched_by_what_is_left_of_them() -> None:
    a = {
        Line("/a/model.py", 10, "forward"): 100,
        Line("/a/model.py", 20, "loss"): 50,
        Line("/a/train.py", 5, "main"): 7,
        Line("/a/gone.py", 1, "old"): 3,
    }
    b = {
        Line("/b/model.py", 10, "forward"): 100,  # another directory
        Line("/b/model.py", 24, "loss"): 60,  # moved, too
        Line("/b/train.py", 5, "main"): 9,
        Line("/b/new.py", 1, "young"): 4,
    }
    found = {(one.a and one.a.line, one.b and one.b.line, one.is_moved): one.bytes for one in matched(a, b)}
    assert found == {
        (20, 24, True): 10,
        (None, 1, False): 4,
        (1, None, False): -3,
        (5, 5, False): 2,
        (10, 10, False): 0,
    }


def test_lines_of_a_function_move_by_the_distance_that_fits_most_of_them() -> None:
    def of(*lines: tuple[int, int]) -> dict[Line, int]:
        return {Line("/m.py", line, "f"): size for line, size in lines}

    def told(found: list[Change]) -> set[tuple[int | None, int | None, int]]:
        return {(one.a and one.a.line, one.b and one.b.line, one.bytes) for one in found}

    assert told(matched(of((10, 1), (12, 5)), of((11, 1), (13, 8)))) == {(10, 11, 0), (12, 13, 3)}
    # 12 is in both, and is another line.
    assert told(matched(of((10, 1), (12, 5)), of((12, 1), (14, 5)))) == {(10, 12, 0), (12, 14, 0)}
    added = of((11, 1), (13, 8), (14, 2))
    assert told(matched(of((10, 1), (12, 5)), added)) == {(10, 11, 0), (12, 13, 3), (None, 14, 2)}
    # 10 stayed; 20 and 30 moved by other distances each.
    apart = matched(of((10, 1), (20, 2), (30, 4)), of((10, 1), (21, 9), (28, 1)))
    assert told(apart) == {(10, 10, 0), (20, 21, 7), (30, 28, -3)}
    assert {one.line.line for one in apart if one.is_moved} == {21, 28}


# --- what is chosen, and limits --------------------------------------------------------------------------------------


def test_choices() -> None:
    assert read_choices("3:10", "", "") == (Choice(steps=(3, 3)), Choice(steps=(10, 10)))
    assert read_choices("3-9", "0,2-3:4-6", "") == (
        Choice(steps=(3, 9), ranks=(0, 2, 3)),
        Choice(steps=(3, 9), ranks=(4, 5, 6)),
    )
    for wrong in ("3:", ":", "a", "9-3", "1:2:3", "-1", "³"):
        with pytest.raises(ValueError, match="steps takes"):
            read_choices(wrong, "", "")
    for wrong in ("0,0", "x:1", "5-2", "0:"):
        with pytest.raises(ValueError, match="ranks"):
            read_choices("", wrong, "")


@pytest.mark.parametrize(
    ("text", "a", "b", "breaks"),
    [
        ("peak>+2%", 100, 102, False),
        ("peak>+2%", 100, 103, True),
        ("peak>2%", 100, 103, True),
        ("peak>-5%", 100, 96, True),
        ("peak>-5%", 100, 94, False),
        ("end>+1KiB", 0, 1024, False),
        ("end>+1KiB", 0, 1025, True),
        ("reserved>+1.5MiB", 0, 3 << 19, False),
        ("allocs>0", 10, 10, False),
        ("allocs>0", 10, 11, True),
        ("peak>+900%", 0, 1, True),
        ("peak>+0%", 0, 0, False),
        ("site:a/b.py:12>+1B", 5, 7, True),
    ],
)
def test_limits(text: str, a: float, b: float, breaks: bool) -> None:
    (limit,) = parse_limits(text)
    assert limit.is_broken(a, b) is breaks


@pytest.mark.parametrize(
    "text",
    ["peak", "peak>", "peak>2TB", "peak<2%", "speed>1%", "site>1%", "peak:a.py:1>1%", "allocs>1MiB", "peak>1%,", ">"],
)
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--fail-on"):
        parse_limits(text)


def test_a_change_is_told_with_its_sign_and_its_share_of_what_was_before() -> None:
    assert change_text(4 * MIB, 3 * MIB) == "-1.0 MiB (-25 %)"
    assert change_text(4 * MIB, 7 * MIB) == "+3.0 MiB (+75 %)"
    assert change_text(4 * MIB, 94 * MIB) == "+90 MiB (+2,250 %)"
    assert change_text(0, 2 * MIB) == "+2.0 MiB"
    assert change_text(1000, 3500, in_bytes=False) == "+2,500 (+250 %)"


def test_a_figure_that_a_side_lacks_is_an_error_and_no_pass(run: Make) -> None:
    def on_cpu(job: Script) -> None:
        for one in job.ranks(1, device="cpu"):
            train(one)

    npu, cpu, other = run(healthy), run(on_cpu), run(larger)
    lacking = {
        "site:model.py:50>+1MiB": (npu, other, "allocates nothing at model.py:50"),
        "site:nowhere.py:1>0": (npu, other, "allocates nothing at nowhere.py:1"),
        "peak>+1%": (npu, cpu, "in different pools"),
    }
    for text, (a, b, says) in lacking.items():
        found = compare_read(a, b, CompareOptions())
        (limit,) = parse_limits(text)
        with pytest.raises(InputError, match=says):
            broken(limit, found.a, found.b, found.pairing)
    found = compare_read(npu, other, CompareOptions())
    (limit,) = parse_limits("site:model.py:30>+4MiB")
    assert broken(limit, found.a, found.b, found.pairing) == []
    (limit,) = parse_limits("site:model.py:30>+3MiB")
    assert len(broken(limit, found.a, found.b, found.pairing)) == 1


# --- the command ------------------------------------------------------------------------------------------------------


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_command_says_writes_and_exits(run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run(healthy).run.path, run(larger).run.path
    out = tmp_path / "out"
    assert main(["compare", str(a), str(b), "--fail-on", "peak>+1%,end>+1%", "-o", str(out)]) == 1
    said = capsys.readouterr()
    assert "MORE 1  Rank 0: peak of npu:0 PTA 136 MiB in B, 128 MiB in A" in said.out
    assert "1 of 2 limits kept" in said.out
    assert "peak>+1% is broken: rank 0, from 128 MiB to 136 MiB" in said.err
    rows = {row["figure"]: row for row in table(out / "compare.csv") if row["pool"] == "PTA"}
    assert (rows["peak"]["difference"], rows["end"]["difference"]) == (str(8 * MIB), "0")
    sites = table(out / "compare_sites.csv")
    assert sum(int(row["difference_bytes"]) for row in sites if row["pool"] == "PTA") == 8 * MIB
    assert json.loads((out / "compare.json").read_text())["broken"][0].startswith("peak>+1% is broken")
    assert main(["compare", str(a), str(b), "--fail-on", "peak>+10%"]) == 0
    assert main(["compare", str(b), str(a), "--fail-on", "peak>+0%"]) == 0


def test_each_limit_counts_that_is_given(run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (str(run(one).run.path) for one in (healthy, larger))
    assert main(["compare", a, b, "--fail-on", "peak>+1%", "--fail-on", "end>+1%,allocs>+90%"]) == 1
    said = capsys.readouterr()
    assert "2 of 3 limits kept" in said.out
    assert "peak>+1% is broken" in said.err


def test_several_sides_of_one_run_are_each_compared_with_the_first(
    run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def grows(job: Script) -> None:
        for one in job.ranks(2):
            for _ in range(10):
                one.alloc((one.rank + 1) * MIB, "train.py:5")
                one.step()

    path, out = str(run(grows).run.path), tmp_path / "out"
    words = ["--steps", "2:4:7", "--ranks", "1", "--fail-on", "peak>+5MiB", "-o", str(out)]
    assert main(["compare", path, *words]) == 1
    assert "peak>+5MiB is broken: rank 1, from 4.0 MiB to 14 MiB" in capsys.readouterr().err
    for name, change in (("B", 4 * MIB), ("C", 10 * MIB)):
        (row,) = (row for row in table(out / name / "compare.csv") if row["figure"] == "peak")
        assert (row["subject_b"], row["difference"]) == ("rank 1", str(change))
    assert main(["compare", path, "--ranks", "0:1:0", "--steps", "5:5:5", "--fail-on", "peak>0"]) == 1
    said = capsys.readouterr()
    assert said.err.count("is broken") == 1
    assert [line for line in said.out.splitlines() if line.startswith(f"msMemScope compare {path}")] == [
        f"msMemScope compare {path}: {sides}" for sides in ("rank 0 with rank 1", "A with B")
    ]


def test_events_that_were_lost_are_said_beside_the_figures(run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    def loses(job: Script) -> None:
        one = job.rank(ring_bytes=64 * KIB)
        train(one, steps=4, ends=False)
        with one.unread():
            for _ in range(2000):
                one.scratch(KIB, "train.py:5")
        train(one, steps=4)

    a, b = run(healthy), run(loses)
    assert a.doubts == []
    assert main(["compare", str(a.run.path), str(b.run.path)]) == 0
    assert "Doubtful in B: lost gaps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 2, "one run alone"),
        (["--steps", "3"], 2, "one run alone"),
        (["--steps", "x:3"], 2, "--steps takes"),
        (["--fail-on", "peak", "--steps", "3:4"], 2, "--fail-on"),
        (["--fail-on", "", "--steps", "3:4"], 2, "--fail-on"),
        (["--fail-on", "peak>0,", "--steps", "3:4"], 2, "--fail-on"),
        (["--steps", "3:4:5", "--ranks", "0:1"], 2, "--ranks names 2 sides, and another option 3"),
        (["--steps", "3:4:x"], 2, "--steps takes"),
        (["--min-share", "2", "--steps", "3:4"], 2, "--min-share"),
        (["--steps", "3:400"], 3, "has no step 400; complete are 0-"),
        (["--ranks", "0:9"], 3, "rank 9 recorded nothing; its ranks are 0"),
        (["--steps", "3:4", "--fail-on", "site:x.py:1>0"], 3, "allocates nothing"),
    ],
)
def test_wrong_usage_and_what_is_not_there(
    run: Make, capsys: pytest.CaptureFixture[str], words: list[str], status: int, says: str
) -> None:
    path = run(healthy).run.path
    assert main(["compare", str(path), *words]) == status
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1
