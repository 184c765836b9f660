"""A program that makes no step is judged by seconds, in words of its own, and never accused of a leak."""

from __future__ import annotations

import pytest
from fake_run import SECOND, FakeRun, frame, process

from msmemscope.analysis.findings import GROWTH, LEAK
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.report.console import plain_text
from msmemscope.vocabulary import Kind

KIB, MIB = 1 << 10, 1 << 20


def serving(seconds: int, *, keeps: bool = True, steps: bool = False) -> Analysis:
    """Ten requests a second: each makes a block that is freed three seconds later; one a second is kept as well."""
    run = FakeRun([process(1, rank=None, program="server.py")], batch_rows=500)
    answer, log = run.frames(frame("/app/server.py", "answer", 7)), run.frames(frame("/app/server.py", "log", 12))
    number = 0
    for second in range(seconds):
        for request in range(10):
            ts = (10 + second) * SECOND + request * SECOND // 10
            number += 1
            if number > 30:
                run.free(ts, (number - 30) << 20)
            run.malloc(ts + 1, number << 20, 64 * KIB, stack_py=answer)
        if keeps:
            run.malloc(ts + 2, 1 << 50 | second << 20, 256 * KIB, stack_py=log)
        if steps and second in (20, 40):
            run.add(Kind.STEP, ts + 3, step=second // 20, attr=second // 20)
    return analyse(run)  # type: ignore[arg-type]


def test_growth_is_said_per_minute() -> None:
    made = serving(300)
    (found,) = (one for one in made.summary.findings if not one.is_note)
    assert found.kind == GROWTH
    assert found.line == 12
    assert found.bytes_per_step == 60 * 256 * KIB
    assert found.evidence["per"] == "minute"
    assert "15 MiB more per minute is held from server.py:12" in found.sentence
    assert "4 minutes" in found.sentence
    assert " step" not in found.sentence.replace("no steps are told", "")
    assert found.sentence in plain_text(made)


@pytest.mark.parametrize(
    ("seconds", "keeps", "steps"),
    [(50, True, False), (300, False, False), (300, True, True)],
    ids=["it may still be loading", "nothing is kept", "it has steps, if too few"],
)
def test_nothing_is_said(seconds: int, keeps: bool, steps: bool) -> None:
    found = serving(seconds, keeps=keeps, steps=steps).summary.findings
    assert not [one for one in found if one.kind in (LEAK, GROWTH)]


@pytest.mark.parametrize("steps", [0, 2])
def test_the_last_line_knows_of_steps_that_were_too_few(steps: int) -> None:
    """A server beside a trainer that made two, as of GRPO with its rollout."""
    run = FakeRun([process(1, rank=None, program="server.py"), process(2, rank=0)], batch_rows=500)
    for second in range(300):
        run.malloc((10 + second) * SECOND, 1 << 20, 64 * KIB)
        run.free((10 + second) * SECOND + 1, 1 << 20)
    for step in range(1, 4):
        run.malloc((10 + step) * SECOND, step << 20, MIB, ring=2)
        if step <= steps:
            run.add(Kind.STEP, (10 + step) * SECOND + 1, ring=2, step=step, attr=step)
    (last,) = [line for line in plain_text(analyse(run)).splitlines() if line.startswith("msMemScope: ")]  # type: ignore[arg-type]
    said = "too few steps to say what leaks; processes without steps were" if steps else "no steps were told, so it was"
    assert last.startswith(f"msMemScope: {said} judged by time: nothing grows")
