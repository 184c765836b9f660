"""An engine of real tensors sleeps and wakes up under the tool: what it forgot is told, with its line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import Watch

pytest.importorskip("torch")

MIB = 1 << 20
ENGINE = """
import sys, types
import torch

class Worker:  # of vLLM, which is not here: the names by which it is known
    def sleep(self, level=1):
        self.weights = self.cache = None
        return "asleep"
    def wake_up(self, tags=None):
        self.weights, self.cache = weights(), cache()

def weights(): return torch.ones(32 << 20)
def cache(): return torch.ones(16 << 20)
def graphs(): return torch.ones(24 << 20)  # FORGOTTEN

worker = Worker()
worker.weights, worker.cache, worker.graphs = weights(), cache(), graphs()
"""
BY_HAND = """
import msmemscope
msmemscope.mark("sleep")
worker.sleep()
msmemscope.mark("wake_up")
worker.wake_up()
"""
AS_VLLM = """
from vllm.v1.worker.gpu_worker import Worker
worker = Worker()
worker.weights, worker.cache, worker.graphs = weights(), cache(), graphs()
assert worker.sleep(level=2) == "asleep"
assert Worker.sleep.__name__ == "sleep"
worker.wake_up(tags=["weights"])
worker.wake_up(tags=["kv_cache"])
"""


def rows_of(run: Path, kind: str) -> list[dict[str, object]]:
    summary = json.loads((run / "cluster" / "summary.json").read_text())
    return [one for one in summary["findings"] if one["kind"] == kind]


def test_what_an_engine_forgets_is_told_between_its_own_marks(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "engine.py"
    program.write_text(ENGINE + BY_HAND)
    done = watch(sys.executable, program)
    assert done.status == 0, done.stderr
    # The host is no card: what survives there is shown, and accuses nobody.
    (note,) = rows_of(done.run, "gave_back")
    figures = next(iter(note["evidence"]["per_rank"].values()))  # type: ignore[index]
    assert (figures["host_before_bytes"], figures["host_kept_bytes"]) == (288 * MIB, 96 * MIB)
    text = (done.run / "cluster" / "audit.csv").read_text().splitlines()
    lines = [dict(zip(text[0].split(","), one.split(","), strict=True)) for one in text[1:]]
    number = ENGINE.splitlines().index("def graphs(): return torch.ones(24 << 20)  # FORGOTTEN") + 1
    kept = {int(one["line"]): int(one["kept_bytes"]) for one in lines if int(one["kept_bytes"])}
    assert kept == {number: 96 * MIB}


def test_vllms_worker_marks_its_sleep_by_itself(watch: Watch, tmp_path: Path) -> None:
    package = tmp_path / "vllm" / "v1" / "worker"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    body = ENGINE.split("class Worker")[1].split("def weights()")[0]
    (package / "gpu_worker.py").write_text("from __main__ import weights, cache\nclass Worker" + body)
    program = tmp_path / "engine.py"
    program.write_text(ENGINE.replace("worker = Worker()\nworker.weights, ", "none = None\n# ") + AS_VLLM)
    done = watch(sys.executable, program)
    assert done.status == 0, done.stderr
    (note,) = rows_of(done.run, "gave_back")
    figures = next(iter(note["evidence"]["per_rank"].values()))  # type: ignore[index]
    assert (figures["host_kept_bytes"], figures["host_made_bytes"], figures["times"]) == (96 * MIB, 0, 1)
