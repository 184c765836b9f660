"""What a test that fails after a long wait says of the processes that it waited for."""

import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

CONFTEST = """
import hangs
from hangs import pytest_runtest_protocol

hangs.FIRST_LOOK_S, hangs.BETWEEN_LOOKS_S, hangs.OLD_S = 0.2, 0.2, 0.1
"""
TEST = """
import subprocess, sys

PROGRAM = '''
import subprocess, sys

def wait_for_the_child():
    subprocess.run([sys.executable, "-c", "def wait_here(): input()\\\\nwait_here()"])

wait_for_the_child()
'''

def test_of_what_hangs():
    started = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE)
    try:
        started.wait(timeout=6)
    finally:
        started.communicate()

def test_of_what_ends():
    assert subprocess.run([sys.executable, "-c", ""]).returncode == 0
"""


def test_processes_that_run_on_are_told_with_their_frames(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST)
    tests = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-o", f"pythonpath={tests}"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    if "Permission denied" in done.stdout or "Operation not permitted" in done.stdout:
        pytest.skip("this user may not look at processes of its own (ptrace)")
    assert "wait_for_the_child (<string>:5)" in done.stdout
    assert "wait_here (<string>:1)" in done.stdout  # of a child's child
