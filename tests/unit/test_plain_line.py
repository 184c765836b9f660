"""Lines that are read without click mean what click says they mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from msmemscope.cli.plain_line import read_plain_line
from msmemscope.cli.run import command

PLAIN = (
    "true",
    "-- true",
    "-- analyze --help",
    "python train.py --analysis=leaks -v --help",
    "--format=db -- python train.py",
    "--format db python train.py -- x",
    "--analysis=leaks --analysis= --level=op,kernel python x.py",
    "--output=/tmp/a --output-path /tmp/b true",
    "--data-format db --verbose --quiet --debug true",
    "--call-stack=python:3,c:4 --steps=1,2 --watch=op0,full-content=1 true -",
    "--compare --input-path=a,b true",
    "--output-path=a=b true",
)
FOR_CLICK = (
    "",
    "--",
    "--help",
    "--version true",
    "-v true",
    "-o /tmp/a true",
    "- true",
    "--verbose=1 true",
    "--form=db true",
    "--format",
    "--format --verbose true",
    "--format -- true",
    "--unknown true",
    "--load-api-env",
    "--format=db",
)


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_is_read_as_click_reads_it(line: str) -> None:
    words = line.split()
    read = read_plain_line(words)
    assert read is not None
    program, values = read
    before: dict[str, Any] = command.make_context("msmemscope", list(words), resilient_parsing=True).params
    given = {name: value for name, value in before.items() if value not in (None, False) and name != "program"}
    assert (program, values) == (list(before["program"]), given)


@pytest.mark.parametrize("line", FOR_CLICK)
def test_every_other_line_is_left_to_click(line: str) -> None:
    assert read_plain_line(line.split()) is None


def test_running_a_program_imports_nothing_large(tmp_path: Path) -> None:
    code = (
        "import os, sys; out = os.fdopen(os.dup(1), 'w'); from msmemscope.cli.main import main; "  # main() lets go of 1
        "status = main(sys.argv[1:]); "
        "print(sorted({'click', 'rich', 'numpy', 'pyarrow', 'zmq'} & set(sys.modules)), status, file=out)"
    )
    words = ["--output-path", str(tmp_path / "out"), "true"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\n", done.stderr
