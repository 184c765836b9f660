"""The end of library mode on a node of several ranks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from patience import LIMIT_S

from msmemscope.collect.session import Session
from msmemscope.options.settings import Config

WAITING = """
import os, sys
from msmemscope.collect.rank import leaving
from msmemscope.collect.presence import join
from msmemscope.collect.session import Session

session = Session.load(sys.argv[1])
join(session.directory, os.getpid())
leaving.anybody_lives = lambda directory: False  # all came at the same moment
leaving.QUIET_S, leaving.LONGEST_WAIT_S = 3.0, 4.0
print("ready", flush=True)
sys.stdin.readline()
leaving._leave(session, os.getpid())
"""


def test_ranks_that_wait_together_say_so_once(tmp_path: Path) -> None:
    session = Session.create(Config(output_path=str(tmp_path / "out")), ["true"], mode="library")
    pipe = subprocess.PIPE
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING, session.directory], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        for _ in range(3)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
        said = "".join(rank.communicate(timeout=LIMIT_S)[1] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
        shutil.rmtree(session.directory)

    assert said.count("] writing ") == 1
    assert said.count("the outputs are not there yet") == 3
