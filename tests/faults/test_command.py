"""`msmemscope selftest`: what it prints and when it fails."""

from __future__ import annotations

import re

import pytest

from msmemscope.cli.main import main
from msmemscope.selftest import case as cases
from msmemscope.selftest.case import Case, Expected
from msmemscope.selftest.loops import train
from msmemscope.selftest.script import Script


def healthy(job: Script) -> None:
    train(job.rank())


def breaks(job: Script) -> None:
    raise KeyError("a part of the machine")


def test_says_how_many_were_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "watch", "a_training"]) == 0
    assert re.fullmatch(r"6 of 6, \d+\.\d s\n", capsys.readouterr().out)


def test_what_is_wrong_is_told_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Case("missed_one", "leaks", healthy, (Expected("leak", ranks=(0,), place="train.py:1"),))
    chosen = [wrong, Case("breaks", "steps", breaks, ()), Case("fine", "steps", healthy, ())]
    monkeypatch.setattr(cases, "all_cases", lambda: chosen)
    assert main(["selftest"]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "WRONG leaks: missed_one: missed: leak of ranks 0 at train.py:1",
        "WRONG steps: breaks: KeyError: 'a part of the machine'",
    ]
    assert lines[2].startswith("1 of 3, ")


def test_names_are_listed_and_others_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--list", "peers"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["peers", "fault", "one_of_four"] in listed
    assert {line[0] for line in listed} == {"peers"}
    assert main(["selftest", "nonsense"]) == 2
    assert "unknown selftest 'nonsense'" in capsys.readouterr().err
