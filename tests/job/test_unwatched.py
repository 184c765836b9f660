"""A process that can record nothing is counted, and named with the reason, in run.json, summary and console."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from namespaces import may_cut_off, may_mount
from running import Watch

SELF_LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))"
RECORDS = "import torch; torch.ones(1000)"

NEW_NETWORK = 0x40000000  # CLONE_NEWNET: no socket of the old one has a name there
CHILDREN_THAT_GO_AWAY = f"""
import ctypes
import os
import subprocess
import sys
import torch
torch.ones(1000)

def drops_its_rights():
    os.setgid(65534)
    os.setuid(65534)

def in_a_root_of_its_own(flags=0):
    assert ctypes.CDLL(None).unshare(flags) == 0
    os.makedirs("empty", exist_ok=True)
    os.chroot("empty")
    os.chdir("/")

def in_a_root_and_network_of_its_own():
    in_a_root_of_its_own({NEW_NETWORK:#x})

for leave in (drops_its_rights, in_a_root_of_its_own, in_a_root_and_network_of_its_own):
    if os.fork() == 0:
        leave()
        torch.ones(1000)
        os._exit(0)
    assert os.wait()[1] == 0
inside = "mount -t tmpfs tmpfs /dev/shm && exec $0 -c '{RECORDS}'"  # with memory of its own
subprocess.run(["unshare", "-m", "--pid", "--fork", "sh", "-c", inside, sys.executable], check=True)
"""
WITH_LIMITED_CHILDREN = f"""
import subprocess
import sys
import torch
torch.ones(1000)
for _ in range(2):
    subprocess.run([sys.executable, "-c", "{SELF_LIMITED}; {RECORDS}"], check=True)
"""
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do that")


@pytest.mark.parametrize(
    ("program", "unwatched", "processes", "reasons"),
    [
        (WITH_LIMITED_CHILDREN, 2, 1, {"ulimit -f": 2}),
        (f"{SELF_LIMITED}; {RECORDS}", 1, 0, {"ulimit -f": 1}),
        pytest.param(
            CHILDREN_THAT_GO_AWAY,
            4,
            1,
            # Without the old network a process cannot say who it is.
            {"closed to its user": 1, "out of its sight": 3, "a child of process": 1},
            marks=(only_root, may_mount, may_cut_off),
        ),
    ],
)
def test_a_process_that_records_nothing_is_counted(
    watch: Watch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    unwatched: int,
    processes: int,
    reasons: dict[str, int],
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
    told = [line for line in outcome.stderr.splitlines() if "is not recorded: " in line]
    assert len(told) == unwatched
    assert {reason: sum(reason in line for line in told) for reason in reasons} == reasons
    assert not list(Path("/dev/shm").glob(f"msmemscope-*-{info['session']}*"))
