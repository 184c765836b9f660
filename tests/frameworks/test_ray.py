"""Actors of a real Ray under the tool, on one node and on two, in clusters of the program's own and in such as were
there before: which of the actors leaks, with its line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from framework_runs import LIMIT_S, PROGRAMS, QUIET, complete, free_port, without_tool
from running import Outcome, Watch, environment, tool
from truth import read_findings

from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

KEPT = re.compile(r"^kept 0 24 by (\d+)$", re.MULTILINE)
WEIGHTS = re.compile(r"^weights .*$", re.MULTILINE)
ATTACHED = PROGRAMS / "attached.py"


def check_the_leak(run: Path, program: str, pid: str, told: str) -> None:
    """The one finding of a run, and how it was told."""
    source = (PROGRAMS / program).read_text().splitlines()
    (line,) = (number for number, text in enumerate(source, 1) if text.endswith("# the leak"))
    (found,) = read_findings(run / "cluster/leaks.csv")
    assert (found.kind, Path(found.file).name, found.line, found.bytes_per_step) == ("leak", program, line, 1 << 20)
    assert re.search(rf"LEAK 1 +ray::Trainer\S* \[pid {pid}\]: 1.0 MiB per step", told), told


@pytest.mark.parametrize("program", ["actors.py", "two_nodes.py"])
def test_a_leak_in_an_actor_of_ray_is_found_where_it_is(watch: Watch, program: str) -> None:
    outcome = watch(sys.executable, PROGRAMS / program)

    assert outcome.status == 0, outcome.stderr
    (kept,) = KEPT.findall(outcome.stdout)
    complete(outcome)
    check_the_leak(outcome.run, program, kept, outcome.stderr)


def test_a_node_is_lost_and_the_aggregator_killed_and_nothing_recorded_is_missing(watch: Watch) -> None:
    outcome = watch(sys.executable, PROGRAMS / "node_lost.py")

    assert outcome.status == 0, outcome.stderr
    (kept,) = KEPT.findall(outcome.stdout)
    ((lost, killed),) = re.findall(r"^lost (\d+) killed (\d+)$", outcome.stdout, re.MULTILINE)
    assert killed == "1"
    run = complete(outcome)
    assert {pid: boundaries(run, pid) for pid in (int(kept), int(lost))} == {int(kept): 24, int(lost): 12}
    check_the_leak(outcome.run, "node_lost.py", kept, outcome.stderr)


def boundaries(run: Run, pid: int) -> int:
    """Steps that a process ended."""
    rings = {process.ring for process in run.processes if process.pid == pid}
    return sum(batch.num_rows for batch in run.events(rings=rings, columns=["kind"], kinds=(Kind.STEP,)))


class Cluster:
    """A node of Ray that `ray start` keeps, perhaps under the tool, until stop()."""

    def __init__(self, before: Sequence[str | Path], place: Path) -> None:
        self._place = place  # of Ray's sockets, whose paths must be short
        port = str(free_port())
        self.address = f"127.0.0.1:{port}"
        words = ["ray", "start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
        words += ["--include-dashboard=false", f"--temp-dir={place}", f"--object-store-memory={128 << 20}"]
        self._said = (place / "said").open("w+")
        self._process = subprocess.Popen(
            [*before, *words], stdout=self._said, stderr=self._said, env=environment(**QUIET), start_new_session=True
        )
        deadline = time.monotonic() + LIMIT_S
        while "Ray runtime started" not in self.said():
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)  # polled, with a deadline

    def said(self) -> str:
        return (self._place / "said").read_text()

    def stop(self) -> int:
        """As Ctrl-C does; the status."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            return self._process.wait(LIMIT_S)
        finally:
            self._said.close()

    def kill(self) -> None:
        """Whatever is left of it."""
        self._process.poll()
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


StartCluster = Callable[..., Cluster]


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    clusters = []
    places = []

    def start(*before: str | Path) -> Cluster:
        places.append(Path(tempfile.mkdtemp(prefix="ray-")))
        clusters.append(Cluster(before, places[-1]))
        return clusters[-1]

    yield start
    for one in clusters:
        one.stop()
        one.kill()
    for place in places:
        shutil.rmtree(place, ignore_errors=True)


def test_a_driver_hands_the_workers_of_a_cluster_that_was_there_before_what_watches_them(
    watch: Watch, start_cluster: StartCluster
) -> None:
    cluster = start_cluster()
    plain = without_tool([sys.executable, ATTACHED], RAY_ADDRESS=cluster.address)

    outcome = watch(sys.executable, ATTACHED, RAY_ADDRESS=cluster.address)

    assert WEIGHTS.findall(outcome.stdout) == WEIGHTS.findall(plain) != []
    (kept,) = KEPT.findall(outcome.stdout)
    complete(outcome)
    check_the_leak(outcome.run, "attached.py", kept, outcome.stderr)
    assert "Warning" not in outcome.stderr
    # And a driver that comes later has workers of its own.
    without_tool([sys.executable, ATTACHED], RAY_ADDRESS=cluster.address)
    assert len(outcome.runs) == 1


def test_actors_that_start_it_themselves_are_one_run(tmp_path: Path, start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    output = tmp_path / "out"

    said = without_tool([sys.executable, ATTACHED, output], RAY_ADDRESS=cluster.address)

    (kept,) = KEPT.findall(said)
    run = finished_run(output)
    told = (run / "summary.txt").read_text()
    check_the_leak(run, "attached.py", kept, told)
    complete(Outcome(0, said, told, output))


def test_a_cluster_under_the_tool_is_watched_for_all_of_its_drivers(
    tmp_path: Path, start_cluster: StartCluster
) -> None:
    output = tmp_path / "out"
    cluster = start_cluster(*tool(output, []))

    said = [without_tool([sys.executable, ATTACHED], RAY_ADDRESS=cluster.address) for _ in range(2)]
    cluster.stop()

    run = finished_run(output)
    pids = {pid for text in said for pid in KEPT.findall(text)}
    assert len(pids) == 2
    leaks = read_findings(run / "cluster/leaks.csv")
    assert {found.kind for found in leaks} == {"leak"}, leaks
    assert all(f"[pid {pid}]" in cluster.said() for pid in pids), cluster.said()


def finished_run(output: Path) -> Path:
    """The one run below it, once it is complete."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for info in output.glob("run_*/run.json"):
            if json.loads(info.read_text())["finished"]:
                (run,) = output.glob("run_*")
                return run
        time.sleep(0.1)  # polled, with a deadline
    return pytest.fail(f"no finished run below {output}: {list(output.rglob('*'))}")
