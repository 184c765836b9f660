"""A process that can record nothing is counted, and named with the reason, in run.json, summary and console."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from running import Watch

SELF_LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))"
RECORDS = "import torch; torch.ones(1000)"

DROPS_ITS_RIGHTS = """
import os
import torch
torch.ones(1000)
if os.fork() == 0:
    os.setgid(65534)
    os.setuid(65534)
    torch.ones(1000)
    os._exit(0)
assert os.wait()[1] == 0
"""
WITH_LIMITED_CHILDREN = f"""
import subprocess
import sys
import torch
torch.ones(1000)
for _ in range(2):
    subprocess.run([sys.executable, "-c", "{SELF_LIMITED}; {RECORDS}"], check=True)
"""
IN_A_ROOT_OF_ITS_OWN = """
import ctypes
import os
import torch
torch.ones(1000)
if os.fork() == 0:
    assert ctypes.CDLL(None).unshare({flags:#x}) == 0
    os.mkdir("empty")
    os.chroot("empty")
    os.chdir("/")
    torch.ones(1000)
    os._exit(0)
assert os.wait()[1] == 0
"""
NEW_NETWORK = 0x40000000  # CLONE_NEWNET: no socket of the old one has a name there
WITH_MEMORY_OF_ITS_OWN = f"""
import subprocess
import sys
import torch
torch.ones(1000)
inside = "mount -t tmpfs tmpfs /dev/shm && exec $0 -c '{RECORDS}'"
subprocess.run(["unshare", "-m", "--pid", "--fork", "sh", "-c", inside, sys.executable], check=True)
"""
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do that")


@pytest.mark.parametrize(
    ("program", "unwatched", "processes", "reason"),
    [
        (WITH_LIMITED_CHILDREN, 2, 1, "ulimit -f"),
        (f"{SELF_LIMITED}; {RECORDS}", 1, 0, "ulimit -f"),
        pytest.param(DROPS_ITS_RIGHTS, 1, 1, "closed to its user", marks=only_root),
        pytest.param(IN_A_ROOT_OF_ITS_OWN.format(flags=0), 1, 1, "out of its sight", marks=only_root),
        pytest.param(IN_A_ROOT_OF_ITS_OWN.format(flags=NEW_NETWORK), 1, 1, "a child of process", marks=only_root),
        pytest.param(WITH_MEMORY_OF_ITS_OWN, 1, 1, "out of its sight", marks=only_root),
    ],
)
def test_a_process_that_records_nothing_is_counted(
    watch: Watch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    unwatched: int,
    processes: int,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = watch(sys.executable, "-c", program)

    assert outcome.status == 0
    info = json.loads((outcome.run / "run.json").read_text())
    assert info["losses"]["unwatched_processes"] == unwatched
    assert len(info["processes"]) == processes
    summary = json.loads((outcome.run / "cluster" / "summary.json").read_text())
    assert summary["losses"] == {"unwatched_processes": unwatched}
    assert f"Lost: unwatched_processes {unwatched}" in outcome.stdout + outcome.stderr
    assert outcome.stderr.count("is not recorded: ") == unwatched
    assert reason in outcome.stderr
    assert not list(Path("/dev/shm").glob(f"msmemscope-*-{info['session']}*"))
