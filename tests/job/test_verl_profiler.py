"""`global_profiler.tool=msmemscope` in a config of verl: what its DistProfiler starts and stops is what is recorded.

verl itself stands in tests/frameworks; here is a class that calls its profiler as verl's does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from running import analysed

from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

PROFILE = """
import functools

class Nothing:
    def start(self, **_): pass
    def stop(self): pass

class DistProfiler:
    def __init__(self, rank, tool):
        self._tool, self._impl, self._this_step = tool, Nothing(), False
    def start(self, **named):
        self._this_step = True
        return self._impl.start(**named)
    def stop(self):
        self._this_step = False
        return self._impl.stop()
    @classmethod
    def annotate(cls, message=None, color=None, **outer):
        def decorator(function):
            @functools.wraps(function)
            def wrapper(this, *arguments):
                impl = this.profiler._impl
                if not this.profiler._this_step or not hasattr(impl, "annotate"):
                    return function(this, *arguments)
                return impl.annotate(message=message, color=color, **outer)(function)(this, *arguments)
            return wrapper
        return decorator
"""
PROGRAM = """
import pickle, sys, torch
from verl.utils.profiler.profile import DistProfiler

class Worker:
    def __init__(self, tool):
        self.profiler = DistProfiler(0, tool)
        self.weight = torch.nn.Parameter(torch.ones(64))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
    @DistProfiler.annotate(color="red", role="actor_update")
    def update(self, step):
        made = torch.zeros(1000 + step)
        (self.weight.sum() * made.sum()).backward()
        self.optimizer.step()
        return step

worker = Worker(sys.argv[1])
for step in range(1, 7):
    if step in (3, 4):
        worker.profiler.start(role="train", profile_step=str(step))
    assert worker.update(step) == step
    if step in (3, 4):
        worker.profiler.stop()
print(type(pickle.loads(pickle.dumps(worker.profiler))._impl).__name__)
"""


@pytest.mark.parametrize(("mode", "recorded"), [("deferred", [3, 4]), ("immediate", [1, 2, 3, 4, 5, 6])])
def test_the_steps_that_verl_profiles_are_recorded(tmp_path: Path, mode: str, recorded: list[int]) -> None:
    package = tmp_path / "verl/utils/profiler"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "profile.py").write_text(PROFILE)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)

    run = Run(
        analysed(
            tmp_path / "out",
            "leaks",
            sys.executable,
            program,
            "msmemscope",
            options=("--collect-mode", mode, "--device", "cpu"),
        )
    )

    sizes, ranges = [], []
    for batch in run.events(columns=["kind", "size", "name"], kinds=(Kind.MALLOC, Kind.CALL)):
        for row in batch.to_pylist():
            if row["kind"] == Kind.MALLOC:
                sizes.append(row["size"])
            else:
                ranges.append(run.string(row["name"]))
    assert [step for step in range(1, 7) if 4 * (1000 + step) in sizes] == recorded
    assert ranges.count("actor_update") == 2 * 2  # a beginning and an end for each step
