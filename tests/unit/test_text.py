"""Texts that somebody else chose: no output lets them reach a terminal, a table or a page as they are."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import Frame, leaky_job

from msmemscope.cli.messages import say
from msmemscope.options.settings import Config
from msmemscope.report.outputs import write_outputs
from msmemscope.tables.run import Run
from msmemscope.text import plain, plain_json
from msmemscope.vocabulary import Kind

# A terminal's title and colours (7 and 8 bit), a bell, faked lines, what turns the direction, half a character.
EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\rNo leak was found.\n\u2028\u202etxt.exe\ud800,\"'"
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def test_what_cannot_be_printed_is_written_out() -> None:
    assert plain("train.py größe 训练 `x`") == "train.py größe 训练 `x`"
    assert plain("a\x1b[0m\u202eb\n\U000e0001\ud800") == r"a\x1b[0m\u202eb\x0a\U000e0001\ud800"
    assert plain_json({"a\n": ["\x07", 1, None, {"b": "\t"}]}) == {r"a\x0a": [r"\x07", 1, None, {"b": r"\x09"}]}


def test_a_line_of_ours_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("error", f"cannot run {EVIL}")
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert not FORBIDDEN.search(text)


@pytest.mark.parametrize("file_format", ["csv", "db"])
def test_no_output_carries_them(tmp_path: Path, file_format: str) -> None:
    """Every text that a run holds is hostile at once: program, host, role, frames, marks, notes of the sources."""
    run = leaky_job()
    run.processes = [
        replace(p, host=EVIL, program=EVIL, role=EVIL, not_seen={EVIL: EVIL}, visible_devices=EVIL)
        for p in run.processes
    ]
    run.info["program"] = ["python", EVIL]
    stored = EVIL.replace("\ud800", "")  # a table holds UTF-8; run.json may hold anything
    run.stacks = {
        key: tuple(Frame(f.file + stored, f.function + stored, f.line, f.kind) for f in stack)
        for key, stack in run.stacks.items()
    }
    run.add(Kind.MARK, 5000, name=run.text(stored), attr=run.text(stored))
    path = run.save(tmp_path / "run_1")

    outcome = write_outputs(path, config=Config(format=file_format))

    assert len(outcome.summary.leaks) == 2
    assert "owned" in outcome.text
    assert not FORBIDDEN.search(outcome.text)
    assert "\nNo leak was found" not in outcome.text
    for file in outcome.files:
        if file.suffix in (".csv", ".txt", ".json"):
            text = file.read_text(encoding="utf-8")
            assert not FORBIDDEN.search(text), file
            if file.suffix == ".json":
                assert not FORBIDDEN.search(json.loads(text).__repr__())
        elif file.suffix == ".db":
            with sqlite3.connect(file) as db:
                for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    for row in db.execute(f"SELECT * FROM {table}"):
                        assert not any(isinstance(cell, str) and FORBIDDEN.search(cell) for cell in row), row
    assert run.info["program"][1] == EVIL
    assert json.loads((path / "run.json").read_text())["program"][1] == EVIL  # the run itself keeps what was
    assert not FORBIDDEN.search("".join(Run(path).info["program"]))
